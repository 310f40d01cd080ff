"""A writer's inbox at a shard, as the writer sees it: which bytes of it are under way.

It is where rows go by RDMA if the shard's device cannot hold writers to the blocks that they leased. The shard copies
them from there to the table, so that a part is free again when its commit was answered.
"""

from __future__ import annotations

import bisect

from gear.transport.rdma_queue import Key


class Inbox:
    """The inbox that came with a queue pair, and ends with it.

    Parameters
    ----------
    pair : int
        Number of the queue pair, at the shard.
    address, key : int
        Where it begins, and the key to write to it.
    nbytes : int
        Its size; 0 if there is none.
    """

    def __init__(self, pair: int, address: int, key: int, nbytes: int) -> None:
        self.pair, self.far, self.nbytes = pair, Key(address, key), nbytes
        self._taken: list[tuple[int, int]] = []  # where parts begin and end, in order

    def take(self, nbytes: int) -> int | None:
        """Where so many bytes are free; they are taken now. None if they are not."""
        at = 0
        for begin, end in self._taken:
            if begin - at >= nbytes:
                break
            at = end
        if not nbytes or at + nbytes > self.nbytes:
            return None
        bisect.insort(self._taken, (at, at + nbytes))
        return at

    def give(self, begin: int) -> None:
        """What was taken from there is free again."""
        del self._taken[bisect.bisect_left(self._taken, (begin, 0))]
