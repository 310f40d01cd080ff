"""What a learner asks for: a `Query` of views, a size and a layout. Frozen data that compares by value."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from gear.errors import SchemaError
from gear.rules import whole_number
from gear.views import AnyView, as_views

MOST_ITEMS = 1 << 20
"""Items per batch at most, as many as one message of the control channel may name."""

Layout = Literal["padded", "packed"]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `Client.sample` and `Client.select` draw and how the batch looks.

    Parameters
    ----------
    size : int, optional
        Items per batch, at most `MOST_ITEMS`. Default 256; with `max_steps`, as many as fit.
    table : str, optional
        Name of the table; may be left out where there is one table.
    views : sequence of View, NStep, ReturnToGo, Timestep or str, optional
        Arrays of the batch; a name stands for ``View(name)``. Default: every column but the late ones that are not
        required.
    require : sequence of str, optional
        Late columns that the items must have; one of the table's declared `requirements`.
    include_open : bool
        Draw open trajectories too, as long as they are now.
    layout : {"padded", "packed"}
        ``padded``: [B, L, ...], padding where an item is shorter than the longest one. ``packed``: [N, ...], the N
        steps of all items one behind the other, and `Batch.cu_seqlens` that says where each begins.
    max_steps : int
        Most steps of a batch, 0 (default) without a limit. Items are taken in the order of the draw up to the first
        that does not fit; the batch is smaller where no more can be drawn at that moment, never empty. Such tables lie
        on one shard.
    overlong : {"error", "alone"}
        What comes of an item that alone is longer than `max_steps`: a DataError, or a batch of its own.
    """

    size: int = None  # type: ignore[assignment]  # not given; a number from __post_init__ on
    table: str = ""
    views: tuple[AnyView, ...] = ()
    require: tuple[str, ...] = ()
    include_open: bool = False
    layout: Layout = "padded"
    max_steps: int = 0
    overlong: Literal["error", "alone"] = "error"

    def __post_init__(self) -> None:
        force_setattr(self, "max_steps", whole_number("Query", "max_steps", self.max_steps, 0, 2**31 - 1))
        if self.overlong not in ("error", "alone"):
            raise SchemaError(f"Query: overlong must be 'error' or 'alone', got {self.overlong!r}")
        size: object = self.size
        if size is None:
            size = min(self.max_steps, MOST_ITEMS) or 256
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
            raise SchemaError(f"Query: size must be a whole number >= 1, got {size!r}")
        if size > MOST_ITEMS:
            raise SchemaError(f"Query: size must be at most {MOST_ITEMS} items, got {size!r}; draw several batches")
        force_setattr(self, "size", int(size))
        if not isinstance(self.table, str):
            raise SchemaError(f"Query: table must be a name, got {self.table!r}")
        force_setattr(self, "views", as_views(self.views))
        force_setattr(self, "require", _names(self.require))
        if not isinstance(self.include_open, bool):
            raise SchemaError(f"Query: include_open must be True or False, got {self.include_open!r}")
        as_layout(self.layout)

    @property
    def budget(self) -> tuple[int, bool] | None:
        """Most steps, and whether a longer item comes alone; None without a limit."""
        return (self.max_steps, self.overlong == "alone") if self.max_steps else None

    @property
    def packed(self) -> bool:
        """Whether the batch is packed."""
        return self.layout == "packed"


def _names(require: object) -> tuple[str, ...]:
    """Names of late columns, sorted, each once."""
    names = (require,) if isinstance(require, str) else require
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"Query: require must name late columns, got {require!r}")
    return tuple(sorted(set(names)))


def as_layout(layout: object) -> bool:
    """Whether a layout's name means packed.

    Raises
    ------
    SchemaError
        If there is no such layout.
    """
    if layout not in ("padded", "packed"):
        raise SchemaError(f"layout must be 'padded' or 'packed', got {layout!r}")
    return layout == "packed"
