"""What a client says of one commit, as it stands in messages and as kernels read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

COMMIT_ENTRY = np.dtype(
    [
        ("sequence", "<i8"),  # number of this insert, per client and table, from 1
        ("slot", "<i4"),
        ("blocks", "<i4"),  # how many new blocks this entry adds to the slot's chain
        ("length", "<i4"),  # how many rows this entry adds (the final row not counted)
        ("flags", "<i4"),
        ("priorities", "<i4"),  # 0: the default, 1: one for all items, else one per new item
        # Rows of the slot in earlier entries, where rows travel with the entry; of one that begins a piece of a split
        # trajectory, the trajectory's steps before it.
        ("before", "<i4"),
        ("follows", "<i8"),  # number of the entry that ended the piece before, 0 where there is none
    ]
)
"""One commit on the wire; block numbers and priorities follow in arrays of their own, in entry order."""


def adds_up(entries: npt.NDArray[np.void], blocks: npt.NDArray[np.int32], priorities: npt.NDArray[np.float64]) -> bool:
    """Whether entries name as many blocks and priorities as there are; else nothing may be cut by what they say."""
    return all(
        bool((entries[name] >= 0).all()) and int(entries[name].sum(dtype=np.int64)) == len(there)
        for name, there in (("blocks", blocks), ("priorities", priorities))
    )
