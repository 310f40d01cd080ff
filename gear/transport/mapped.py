"""Gathering on the paths whose tables lie in this process's own memory.

Rows are read only while their pin lives: a reader says which pin it reads, asks whether the pin was taken
back, gathers, and asks again. What was read under a lost pin is thrown away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gear.plan import late_columns
from gear.storage.names import names
from gear.storage.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gear.batch import Selection
    from gear.devices.target import Target
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

    maps = True

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
        if not isinstance(out, np.ndarray):
            return self._gather_there(table, selection, plan.behind(first, steps) if first else plan, out)
        collect = (_collect or _kernels()) if table.arena is None else _by_device(table)
        pin, placed = selection.pin, plan.behind(first, steps) if first else plan
        table.reading.append(pin)
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
            table.reading.remove(pin)
        return not self.revoked(table, selection)

    def _gather_there(self, table: OpenTable, selection: Selection, plan: Plan, out: Target) -> bool:
        """The same into memory of a GPU, which reads rows until its event: so long the pin counts as being read."""
        table.reading.append(selection.pin)
        try:
            if self.revoked(table, selection):
                return False
            presence, neighbours = None, selection.neighbours
            if table.layout.late and (names := late_columns(table.table, plan.views)):
                presence = Presence(table.layout, table.segment, names, selection.starts)
                neighbours = presence.near(neighbours)
            out.gather(table, plan, selection, neighbours)
            if presence is not None:
                out.wait()
                while not presence.unchanged and not self.revoked(table, selection):
                    out.gather(table, plan, selection, neighbours)
                    out.wait()
        finally:
            out.stream.after(partial(_through, table, selection.pin))
        if self.revoked(table, selection):
            out.stream.drain()  # whoever lets go of the pin now does so behind the kernels
            return False
        return True


def _through(table: OpenTable, pin: int) -> None:
    """Kernels of one gathering are through; until now they needed the table's memory."""
    table.reading.remove(pin)


def _by_device(table: OpenTable) -> Callable[..., None]:
    """The gather of a table with columns on a device into memory of the host."""
    from gear.devices.reading import collector_of

    assert table.arena is not None
    collector = collector_of(table, table.arena.number)
    return lambda segment, *rows: collector.to_host(*rows)
