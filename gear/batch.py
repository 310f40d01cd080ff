"""What a learner holds: a `Selection` of items and the `Batch` collected from it.

A selection is plain data that can be sent to another process; the rows it names stay readable while its
pin lives. A batch owns one buffer, and its arrays are views of that buffer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from gear.errors import DataError, InsufficientMemory, ProtocolError
from gear.weights import Normalize, exponent, importance

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from gear.plan import Field, Plan

    NewBatch = Callable[[Plan, "npt.NDArray[np.uint8] | None"], "Batch"]
    """Makes the kind of batch that a client wants: of a plan, over a buffer or over memory of its own."""


NO_NEIGHBOURS = np.empty(0, np.int32)


class Update(NamedTuple):
    """Outcome of a priority update: how many ids were applied, how many named data evicted since."""

    applied: int
    stale: int


class Part(NamedTuple):
    """The next `size` items of a selection come from this shard and are pinned there; with none, a mere credit is."""

    shard: int
    size: int
    pin: int
    near: int = 0
    """How many of the selection's neighbours are on the shard."""


@dataclass(eq=False, slots=True)  # not frozen: that costs 1.5 us a batch
class Selection:
    """Items drawn from a table and pinned until released.

    Attributes
    ----------
    table : str
        Name of the table.
    ids : int64[B]
        Ids of the items, valid for `update_priorities` for ever.
    probabilities : float64[B]
        Probability with which each item was drawn.
    starts : int64[B]
        Row number of each item's first stored row.
    lengths : int32[B]
        Stored rows of each item, padding not counted.
    smallest : float
        Smallest non-zero probability of any item at the draw; bounds importance weights table-wide.
    pin : int
        Number of the pin that keeps the rows readable.
    parties : int
        How many `collect`-ors share the selection before its pin ends.
    deadline : float
        `time.time()` at which the pin ends at the latest.
    parts : tuple of Part
        Where the items come from if the table lies on several shards; `pin` is 0 then. Rows are numbered by shard.
    neighbours : int32[K]
        Slots, in rising order (part by part), of other pieces of split trajectories that the pin keeps readable too,
        for views that show rows beyond the items'.
    draw : int
        Number of the draw that it is a rank's part of (`world_size`), else -1.
    versions : int64[B], optional
        Policy version of each item's trajectory, in tables that keep versions.
    """

    table: str
    ids: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    smallest: float
    pin: int
    parties: int = 1
    deadline: float = float("inf")
    parts: tuple[Part, ...] = ()
    neighbours: npt.NDArray[np.int32] = field(default_factory=lambda: NO_NEIGHBOURS)
    draw: int = -1
    versions: npt.NDArray[np.int64] | None = None

    @staticmethod
    def empty(table: str, parties: int) -> Selection:
        """No item, and nothing pinned."""
        nothing = np.empty(0, np.int64)
        return Selection(table, nothing, np.empty(0), nothing, np.empty(0, np.int32), 1.0, 0, parties, 0.0)

    @property
    def key(self) -> object:
        """What tells it from all other selections of its table."""
        return self.parts or self.pin

    def split(self) -> Iterator[tuple[Part, int, Selection]]:
        """Each part, the number of its first item, and the part as a selection of its shard."""
        first = near = 0
        for part in self.parts:
            items, neighbours = slice(first, first + part.size), slice(near, near + part.near)
            yield part, first, Selection(
                self.table, self.ids[items], self.probabilities[items], self.starts[items], self.lengths[items],
                self.smallest, part.pin, self.parties, self.deadline, (), self.neighbours[neighbours],
            )  # fmt: skip
            first, near = first + part.size, near + part.near

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.time() > self.deadline

    def to_bytes(self) -> bytes:
        """The selection as msgpack, for another process of the same server."""
        arrays = (self.ids, self.probabilities, self.starts, self.lengths, self.neighbours)
        raw = [np.ascontiguousarray(a).tobytes() for a in arrays]
        return msgspec.msgpack.encode(
            (
                self.table,
                *raw,
                self.smallest,
                self.pin,
                self.parties,
                self.deadline,
                self.parts,
                self.draw,
                None if self.versions is None else self.versions.tobytes(),
            )
        )

    @staticmethod
    def from_bytes(data: bytes) -> Selection:
        """The selection from `to_bytes`.

        Raises
        ------
        ProtocolError
            If the bytes are no selection.
        """
        try:
            table, ids, probabilities, starts, lengths, near, smallest, pin, parties, deadline, parts, number, made = (
                msgspec.msgpack.decode(
                    data,
                    type=tuple[
                        str,
                        bytes,
                        bytes,
                        bytes,
                        bytes,
                        bytes,
                        float,
                        int,
                        int,
                        float,
                        tuple[Part, ...],
                        int,
                        bytes | None,
                    ],
                )
            )
            neighbours = np.frombuffer(near, np.int32).copy()
            versions = None if made is None else np.frombuffer(made, np.int64).copy()
            arrays = (
                np.frombuffer(ids, np.int64).copy(),
                np.frombuffer(probabilities, np.float64).copy(),
                np.frombuffer(starts, np.int64).copy(),
                np.frombuffer(lengths, np.int32).copy(),
            )
        except (msgspec.DecodeError, ValueError) as error:
            raise ProtocolError(f"expected a selection made by Selection.to_bytes, got other bytes: {error}") from None
        if len({len(a) for a in (*arrays, *(() if versions is None else (versions,)))}) != 1 or (
            parts and (min(p.size for p in parts) < 0 or sum(p.size for p in parts) != len(arrays[0]))
        ):
            raise ProtocolError("expected a selection with equally long arrays; the bytes are damaged")
        if sum(p.near for p in parts) not in (0, len(neighbours)) or any(p.near < 0 for p in parts):
            raise ProtocolError("expected as many neighbours as the parts say; the bytes are damaged")
        return Selection(table, *arrays, smallest, pin, parties, deadline, parts, neighbours, number, versions)


class Batch(Mapping[str, Any]):
    """Items collected into one buffer: a mapping of name to array.

    With `Step` items the arrays are ``[B, *shape]``, with `Window` and `Whole` items
    ``[B, L, *shape]``, padded where an item is shorter than L (`mask` says where); columns per trajectory
    are ``[B, *shape]``. In the packed layout what has steps is ``[N, *shape]``, the N steps of all items one behind
    the other, and `cu_seqlens` says where each begins. All arrays are views of one buffer. A batch from a loader, or
    one given as ``out=``, is overwritten by the next; `keep` it where it must live longer.

    Attributes
    ----------
    selection : Selection
        The items: ids, probabilities, starts.
    """

    __slots__ = (
        "_beta", "_buffer", "_lengths", "_normalize", "_plan", "_transient", "_weights", "selection",
    )  # fmt: skip

    selection: Selection

    on_device = False
    """Whether kernels fill it on a GPU, while the host goes on."""

    def __init__(self, plan: Plan, buffer: npt.NDArray[np.uint8] | None = None) -> None:
        self._buffer = _memory(plan) if buffer is None else buffer
        self._transient = False
        self._lay_out(plan)

    def _lay_out(self, plan: Plan) -> None:
        """Lay the arrays of `plan` over the buffer; each is made when it is asked for."""
        self._plan = plan

    def reuse(self, plan: Plan) -> None:
        """Lay the arrays of `plan` over the buffer there is.

        Raises
        ------
        DataError
            If the buffer is too small.
        """
        if plan is self._plan:
            return
        if plan.nbytes > len(self._buffer):
            raise DataError(
                f"out: expected a batch of at least {plan.nbytes} bytes ({plan.size} items of {plan.length} steps "
                f"of table {plan.table.name!r}), got one of {len(self._buffer)} bytes; leave out= away for a new one"
            )
        self._lay_out(plan)

    def fill(self, selection: Selection, beta: float | None, normalize: Normalize) -> None:
        """Take note of the selection whose rows the buffer now holds."""
        self.selection = selection
        self._beta, self._normalize = beta, normalize
        self._weights = self._lengths = None

    @property
    def plan(self) -> Plan:
        """Where the arrays lie in `buffer`."""
        return self._plan

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        """The bytes of all arrays, uint8."""
        return self._buffer

    def __getitem__(self, name: str) -> Any:
        _, shape, dtype, offset, _, _ = self._plan.by_name[name]
        return np.ndarray(shape, dtype, self._buffer, offset)

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in self._plan.fields)

    def __len__(self) -> int:
        return len(self._plan.fields)

    def __repr__(self) -> str:
        columns = ", ".join(f"{f.name}: {f.dtype}{list(f.shape)}" for f in self._plan.fields)
        return f"<{type(self).__name__} of {self._plan.size} items from {self._plan.table.name!r}: {columns}>"

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """int64[B], what `Client.update_priorities` takes; always NumPy."""
        return self.selection.ids

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """float64[B], the probability with which each item was drawn; always NumPy."""
        return self.selection.probabilities

    @property
    def versions(self) -> npt.NDArray[np.int64]:
        """int64[B], the policy version of each item's trajectory; always NumPy.

        Raises
        ------
        DataError
            If the table keeps no versions.
        """
        if self.selection.versions is None:
            raise DataError(
                f"versions: table {self._plan.table.name!r} keeps no versions; declare max_staleness=, "
                "sampler=gear.Fresh() or limiter=gear.StalenessBudget(...)"
            )
        return self.selection.versions

    @property
    def draw(self) -> int | None:
        """Number of the draw that the batch is a rank's part of; None where it was drawn for nobody else."""
        return None if self.selection.draw < 0 else self.selection.draw

    @property
    def lengths(self) -> Any:
        """int32[B], the steps of each item that are there."""
        if self._lengths is None:
            self._lengths = self._wrap(np.minimum(self.selection.lengths, np.int32(self._plan.length)))
        return self._lengths

    @property
    def mask(self) -> Any:
        """bool[B, L] (bool[B] for `Step` items), false where an item's step is padding; packed bool[N], all true."""
        plan = self._plan
        if plan.mask_offset < 0:
            return self._wrap(np.ones(plan.total if plan.packed else plan.size, np.bool_))
        return self._wrap(np.ndarray((plan.size, plan.length), np.bool_, self._buffer, plan.mask_offset))

    def mask_of(self, name: str) -> Any:
        """Where the array of that name has values and no padding: bool of its leading axes.

        It is `mask`, unless its view shows other rows than the item's own (`offset`, `length`, `pad`, `shift`).

        Raises
        ------
        KeyError
            If there is no such array.
        """
        field = self._plan.masks.get(name)
        if field is None:
            self._plan.by_name[name]  # there, or KeyError
            return self.mask
        return self._array(field)

    @property
    def cu_seqlens(self) -> Any:
        """int32[B + 1], where each item begins in a packed batch and where the last one ends.

        Raises
        ------
        DataError
            If the batch is padded, or has more steps than an int32 counts.
        """
        if not self._plan.packed:
            raise DataError('cu_seqlens: this batch is padded; ask for Query(..., layout="packed")')
        if self._plan.total > 2**31 - 1:
            raise DataError(f"cu_seqlens: {self._plan.total} steps are more than an int32 counts; draw fewer items")
        bounds = np.zeros(self._plan.size + 1, np.int32)
        np.cumsum(np.minimum(self.selection.lengths, np.int32(self._plan.length)), out=bounds[1:])
        return self._wrap(bounds)

    @property
    def weights(self) -> Any:
        """float32[B], importance weights for the `beta` and `normalize` that the call was given.

        Raises
        ------
        DataError
            If the table is prioritized and no `beta` was given. The weights of other tables are 1.
        """
        if self._weights is None:
            if self._beta is None and self._plan.prioritized:
                raise DataError(
                    f"weights of the prioritized table {self._plan.table.name!r} depend on beta: "
                    "pass it, as in sample(256, beta=0.4), or call batch.importance_weights(beta)"
                )
            self._weights = self.importance_weights(self._beta or 0.0, self._normalize)
        return self._weights

    def importance_weights(self, beta: float, normalize: Normalize = "batch") -> Any:
        """Weights (N * P) ** -beta that undo the bias of prioritized draws, divided by their maximum.

        Parameters
        ----------
        beta : float
            0 corrects nothing, 1 corrects fully; at most 4.
        normalize : {"batch", "table"}
            Whose maximum divides: the largest weight in this batch, or the largest that any item of
            the table could have had at the draw. N, the number of items, cancels either way.

        Returns
        -------
        float32[B], in (0, 1]: a weight too small for a float32 is the smallest normal one.

        Raises
        ------
        DataError
            If beta is not in [0, 4], or normalize none of the two.
        """
        power = exponent(beta, normalize)
        chances = self.selection.probabilities
        if not self._plan.prioritized or power == 0:
            return self._wrap(np.ones(len(chances), np.float32))
        smallest = chances.min(initial=1.0) if normalize == "batch" else self.selection.smallest
        return self._wrap(importance(chances, float(smallest), power))

    def keep(self) -> Batch:
        """The batch itself if nothing will overwrite it, else a copy of it."""
        return self.copy() if self._transient else self

    def copy(self) -> Batch:
        """A batch with the same content in a buffer of its own."""
        twin = self._like(self._buffer[: self._plan.nbytes].copy())
        twin.fill(self.selection, self._beta, self._normalize)
        return twin

    def _like(self, buffer: npt.NDArray[np.uint8]) -> Batch:
        """A batch of the same kind over another buffer."""
        return Batch(self._plan, buffer)

    def outgrown(self, plan: Plan) -> bool:
        """Whether this is a loader's buffer that a batch of `plan` does not fit into: time for a larger one."""
        return self._transient and plan.nbytes > len(self._buffer)

    def lend(self) -> None:
        """Mark that the buffer will be overwritten, so that `keep` copies it."""
        self._transient = True

    def arrived(self) -> None:
        """Called when the buffer has been filled anew; tensors on another device follow here."""

    def handed(self) -> None:
        """Called on the consumer's thread when it gets the batch."""

    def taken_back(self) -> None:
        """Called on the consumer's thread when its memory is to be filled anew."""

    def settle(self) -> None:
        """Wait until it is filled."""

    @property
    def afterwards(self) -> Callable[[Callable[[], None]], None]:
        """Does something once it is filled; it needs the batch no longer."""
        return _at_once

    def _array(self, field: Field) -> Any:
        """The array of a field that has no name among the columns."""
        return np.ndarray(field.shape, field.dtype, self._buffer, field.offset)

    def _wrap(self, array: np.ndarray) -> Any:
        """`array` as this kind of batch hands it out."""
        return array


def _memory(plan: Plan) -> npt.NDArray[np.uint8]:
    """A new buffer.

    Raises
    ------
    InsufficientMemory
        If there is not that much.
    """
    try:
        return np.empty(plan.nbytes, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more than can be addressed
        raise InsufficientMemory(
            f"a batch of {plan.size} items of {plan.length} steps of table {plan.table.name!r} takes {plan.nbytes} "
            "bytes, which are not there; draw fewer items or name fewer columns"
        ) from None


def _at_once(action: Callable[[], None]) -> None:
    action()
