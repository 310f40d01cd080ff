"""Gathering on the paths whose tables lie in this process's own memory.

Rows are read only while their pin lives: a reader says which pin it reads, asks whether the pin was taken
back, gathers, and asks again. What was read under a lost pin is thrown away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gear.plan import late_columns
from gear.storage.names import names
from gear.storage.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from gear.batch import Selection
    from gear.plan import Plan
    from gear.transport.base import OpenTable


_collect: Callable[..., None] | None = None


def _kernels() -> Callable[..., None]:
    """The gather, imported when first needed: an actor that only inserts never compiles or imports kernels."""
    global _collect
    from gear.kernels.collect import collect

    _collect = collect
    return collect


class Mapped(ABC):
    """The part of a `Session` that reads `OpenTable.segment`."""

    @abstractmethod
    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether the pin has been taken back."""

    def arrived(self, table: OpenTable, selection: Selection, plan: Plan) -> npt.NDArray[np.uint8] | None:
        """Never: rows are read where they are stored."""
        return None

    def names(self, table: OpenTable, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """Ids of trajectories that begin in leased blocks."""
        return names(table.layout, table.block_records, blocks)

    def gather(
        self,
        table: OpenTable,
        selection: Selection,
        plan: Plan,
        out: npt.NDArray[np.uint8],
        first: int = 0,
        steps: int = 0,
    ) -> bool:
        """Gather the rows of a held selection; see `Session.gather`."""
        collect = _collect or _kernels()
        pin, placed = selection.pin, plan.behind(first, steps) if first else plan
        table.reading.add(pin)
        try:
            if self.revoked(table, selection):
                return False
            presence, neighbours = None, selection.neighbours
            if table.layout.late and (names := late_columns(table.table, plan.views)):
                presence = Presence(table.layout, table.segment, names, selection.starts)
                neighbours = presence.near(neighbours)
            rows = (table.segment, placed, selection.starts, selection.lengths, neighbours, out)
            collect(*rows)
            while presence is not None and not presence.unchanged and not self.revoked(table, selection):
                collect(*rows)
        finally:
            table.reading.discard(pin)
        return not self.revoked(table, selection)
