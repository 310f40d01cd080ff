"""Other systems that do the same work: each in an environment of its own, as a process that answers over a pipe.

`environment` makes the environments from pinned versions, `remote` is this side of the pipe and `serve` the other. The
module named after a peer is run by the peer's Python; it knows nothing of GEAR. Its ``CASES`` says, by measurement, how
the candidates are made, and its ``version()`` what they are.
"""

NAMES = ("reverb", "torchrl", "cpprb", "flashbax", "transferqueue", "sb3", "tianshou")
