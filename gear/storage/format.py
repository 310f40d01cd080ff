"""How a segment starts: the header and the directory of an empty table.

Written once by the shard that owns the table. The header names the format, the declaration and the size,
so that whoever finds the segment can tell what it is before touching the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.errors import SchemaError
from gear.schema import MinSize, Prioritized, StalenessBudget, to_bytes
from gear.storage import fields as f
from gear.storage.item_sets import bits_of
from gear.storage.layout import FORMAT
from gear.storage.regions import ABSENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.layout import Layout

MAGIC = b"GEARSEG\0"


def start(segment: npt.NDArray[np.uint8], layout: Layout) -> None:
    """Write the directory of an empty table into a zeroed segment.

    Raises
    ------
    SchemaError
        If the declaration does not fit into the header.
    """
    table = layout.table
    spec = to_bytes(table)
    header = layout.view(segment, "header")
    if len(spec) + 64 > len(header):
        raise SchemaError(
            f"table {table.name!r}: its declaration takes {len(spec)} bytes, more than {len(header) - 64}"
        )
    header[:8] = np.frombuffer(MAGIC, np.uint8)
    header[8:64].view(np.int64)[:5] = (FORMAT, len(spec), layout.index, layout.shard, layout.nbytes)
    header[64 : 64 + len(spec)] = np.frombuffer(spec, np.uint8)
    layout.view(segment, "blocks")[:, 1:] = -1
    layout.view(segment, "slots")[:, f.WRITER] = -1
    layout.view(segment, "free_blocks")[:] = np.arange(layout.blocks)
    layout.view(segment, "free_slots")[:] = np.arange(layout.slots)
    counters = layout.view(segment, "counters")
    counters[f.FREE_BLOCKS], counters[f.FREE_SLOTS] = layout.blocks, layout.slots
    counters[f.OLDEST] = counters[f.NEWEST] = -1
    if layout.spread and isinstance(table.limiter, MinSize):
        counters[f.INSERT_CREDIT] = f.UNLIMITED
    floats = layout.view(segment, "floats")
    for at, rule in ((f.ALPHA, table.sampler), (f.REMOVER_ALPHA, table.remover)):
        if isinstance(rule, Prioritized):
            floats[at : at + 2] = rule.alpha, rule.eps
    if not isinstance(table.limiter, (MinSize, StalenessBudget)):
        floats[f.RATIO] = table.limiter.samples_per_insert
        floats[f.LOW : f.HIGH + 1] = table.limiter.bounds
    floats[f.MAX_PRIORITY] = 1.0
    layout.view(segment, "lines").reshape(-1, f.LINE_FIELDS)[:, [f.LINE_HEAD, f.LINE_TAIL]] = -1
    for consumer, names in enumerate(table.consumer_needs):
        layout.view(segment, "lines")[consumer * f.LINE_FIELDS + f.LINE_NEEDS] = bits_of(table, names)
    layout.view(segment, "links")[:] = ABSENT
    mates = layout.view(segment, "mates")
    mates[:] = np.arange(len(mates))
    layout.view(segment, "versions")[:] = -1
    trees = [("", "starts", "mins"), ("remover_", "remover_starts", "remover_mins")]
    trees += [("", one.region("starts"), one.region("mins")) for one in layout.sets[1:]]
    for prefix, levels, mins in trees:
        starts = layout.view(segment, levels)
        if len(starts):
            starts[:] = layout.tree_levels[prefix]
            layout.view(segment, mins)[:] = np.inf
