"""Gathering on the paths whose tables lie in this process's own memory.

Rows are read only while their pin lives: a reader says which pin it reads, asks whether the pin was taken
back, gathers, and asks again. What was read under a lost pin is thrown away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gear.kernels.records import KIND, MASK, PER_STEP, TARGET, WIDTH
from gear.query import late_columns
from gear.storage.presence import Presence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.batch import Selection
    from gear.query import Plan
    from gear.transport.base import OpenTable


class Mapped(ABC):
    """The part of a `Session` that reads `OpenTable.segment`."""

    @abstractmethod
    def revoked(self, table: OpenTable, selection: Selection) -> bool:
        """Whether the pin has been taken back."""

    def gather(
        self, table: OpenTable, selection: Selection, plan: Plan, out: npt.NDArray[np.uint8], first: int = 0
    ) -> bool:
        """Gather the rows of a held selection; see `Session.gather`."""
        from gear.kernels.host import gather  # an actor that only inserts never compiles or imports kernels

        pin, rows = selection.pin, _rows_from(plan, first) if first else plan.rows
        table.reading.add(pin)
        try:
            if self.revoked(table, selection):
                return False
            presence = None
            if table.layout.late and (names := late_columns(table.table, plan.views)):
                presence = Presence(table.layout, table.segment, names, selection.starts)
            gather(table.segment, rows, plan.pads, selection.starts, selection.lengths, out)
            while presence is not None and not presence.unchanged and not self.revoked(table, selection):
                gather(table.segment, rows, plan.pads, selection.starts, selection.lengths, out)
        finally:
            table.reading.discard(pin)
        return not self.revoked(table, selection)


def _rows_from(plan: Plan, first: int) -> npt.NDArray[np.int64]:
    """``plan.rows`` for items that go to the batch from number `first` on."""
    rows = plan.rows.copy()
    for column in rows[1:]:
        column[TARGET] += first * column[WIDTH] * (plan.length if column[KIND] == PER_STEP else 1)
    if plan.mask_offset >= 0:
        rows[0, MASK] += first * plan.length
    return rows
