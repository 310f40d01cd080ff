"""One page of a table's listing: which items are stored, how long they are and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_LISTED = 1 << 16
"""Items of one page at most."""


@dataclass(frozen=True, eq=False)
class Page:
    """Some items of a table, as `Client.scan` lists them.

    Attributes
    ----------
    ids : int64[N], as in `Batch.ids`.
    trajectories : int64[N], the number of each item's trajectory, counted by the shard in the order of commits.
    positions : int64[N], the step of its trajectory at which the item begins.
    lengths : int32[N], steps of the item.
    priorities : float64[N], raw, or None where the table keeps none. Where only the sampler's masses are stored
        they are computed back and differ from what was given by rounding.
    """

    ids: npt.NDArray[np.int64]
    trajectories: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    priorities: npt.NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.ids)
