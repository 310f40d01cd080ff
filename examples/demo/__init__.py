"""CartPole learned through GEAR: one server, several actors, one learner, each a process of its own.

Run it with ``make demo`` or ``python -m examples.demo``. `actor` collects episodes and inserts them,
`learner` trains a double DQN from prioritized samples, `policy` carries the weights from one to the other,
`__main__` starts and stops everything and shows progress.
"""
