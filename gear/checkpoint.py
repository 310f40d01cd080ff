"""What `Client.checkpoint` returns."""

from __future__ import annotations

from typing import NamedTuple


class Checkpoint(NamedTuple):
    """A complete checkpoint on the server's disk.

    Attributes
    ----------
    path : its directory, on the server's host.
    nbytes : bytes of all its files.
    written : those of them that were not in an earlier checkpoint.
    seconds : from the request until it was complete.
    trajectories : how many it holds.
    left_out : trajectories that were evicted before they could be written.
    """

    path: str
    nbytes: int
    written: int
    seconds: float
    trajectories: int
    left_out: int
