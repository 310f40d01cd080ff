"""Collect: pure functions over arrays. They know no table, no socket and no thread.

`reference` (NumPy, written for clarity) and `host` (Numba) offer the same functions under the same
signatures; the tests run both against each other. `records` fixes the binary records and the plan they
read, `compile` how a kernel is compiled and cached. Importing this package imports neither of them.
"""
