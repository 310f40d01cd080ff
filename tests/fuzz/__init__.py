"""Malformed input, made from the declarations of what is well-formed, against everything that reads.

Generators take a `random.Random`: hypothesis' own in the short tests, which shrink what they find, a seeded one in
`python -m tests.fuzz`, which sends a million messages to a real server. What was found lies in `corpus/` and is sent
again by every test run.
"""
