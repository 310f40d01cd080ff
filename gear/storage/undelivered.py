"""Draws that were made and not delivered, as if they had not been made: for the copy of a table's directory.

Draws are numbered. Who restores the copy draws again from the first undelivered one on, and so gets the same items,
if one reader took them in order. Uses and credit of the limiter are counted anew by whoever takes the copy up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.kernels.reference import random_bits
from gear.schema import Epochs
from gear.storage import fields as f

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.table import StoredTable


def take_back(stored: StoredTable, arrays: dict[str, np.ndarray]) -> None:
    """Undo, in copied regions, the draws whose pins are not settled."""
    counters = arrays["counters"]
    open_draws = [pin for pin in stored.pins.unsettled() if not pin.void and not pin.claim]
    for pin in reversed(open_draws):
        counters[f.CREDITED] -= pin.credit
        n, one = len(pin.ids), stored.layout.sets[pin.which]
        if not n:
            continue
        counters[f.DRAWS] -= n
        mine = counters
        if pin.which:
            mine = arrays[one.region("counters")]
            mine[f.DRAWS] -= n
        if isinstance(stored.table.sampler, Epochs):
            _undraw(stored, mine, arrays[one.region("live")], pin.ids, pin.which)


def _undraw(
    stored: StoredTable,
    counters: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int64],
    which: int,
) -> None:
    """The last draws of the running epoch, undone the last first: a Fisher-Yates shuffle is a row of exchanges."""
    layout = stored.layout
    blocks = layout.view(stored.segment, "blocks")
    rows = ids & ((1 << layout.row_bits) - 1)
    block, within = np.divmod(rows, layout.block_steps)
    if layout.params[f.P_ITEM] == f.WHOLE:
        items = blocks[block, f.SLOT].astype(np.int64)
    else:
        items = block * layout.items_per_block + within // int(layout.params[f.P_STRIDE])
    params = layout.params.reshape(len(layout.sets), -1)[which]
    total, seed = int(counters[f.LIVE_ITEMS]), int(params[f.P_SEED])
    for k in range(len(items) - 1, -1, -1):
        drawn = int(counters[f.EPOCH_DRAWN]) - 1
        if drawn < 0 or order[drawn] != items[k]:
            return  # of an epoch that has ended, or given out between others: it comes in the next one
        number = random_bits(seed, int(counters[f.DRAWS]) + k, 0) >> 11
        chosen = drawn + int(float(number) * (1.0 / 9007199254740992.0) * (total - drawn))
        order[drawn], order[chosen] = order[chosen], order[drawn]
        counters[f.EPOCH_DRAWN] = drawn
