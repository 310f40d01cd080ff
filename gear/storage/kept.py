"""Which regions of a table's memory a snapshot copies; what is left out is made anew from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gear.schema import Epochs, Prioritized, Uniform

if TYPE_CHECKING:
    from gear.storage.layout import Layout

_REMADE = ("header", "arena", "trajectories", "journal", "claims", "links")
_REMADE_PARTS = ("mins", "position", "starts", "remover_tree", "remover_keys")


def kept_regions(layout: Layout) -> dict[str, int]:
    """The regions of a table's memory that a snapshot copies, and how many entries of each: the rest follows."""
    has_raw = layout.regions["raw"].count > 0
    ordered = isinstance(layout.table.sampler, (Uniform, Epochs)), isinstance(layout.table.remover, Uniform)
    found = {}
    for name, region in layout.regions.items():
        bare = name.partition("@")[0]
        if name in _REMADE or bare.endswith(_REMADE_PARTS) or bare in _REMADE_PARTS or not region.count:
            continue
        if (bare == "live" and not ordered[0]) or (bare == "remover_live" and not ordered[1]):
            continue
        count = region.count
        if bare == "tree":  # leaves of other sets, and those of raw priorities that are kept, are computed
            if has_raw or name != bare or not isinstance(layout.table.sampler, Prioritized):
                continue
            levels = layout.tree_levels[""]
            count = levels[1] if len(levels) > 1 else region.count
        found[name] = count
    return found
