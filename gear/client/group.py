"""Trajectories that are written and submitted together, to one shard: a fixed number of calls for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gear.client.deadline import left, patiently
from gear.client.port import WHOLE
from gear.client.priorities import item_count
from gear.errors import DeadlineExceeded
from gear.storage.fields import CONTINUED, CONTINUES, HAS_FINAL, TERMINATED
from gear.storage.layout import COMMIT_ENTRY

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client.port import Port

GROUP = 64
"""Pieces written and submitted together at most: what one message to the shard takes."""

GROUP_BYTES = 4 << 20
"""Bytes of rows after which a group is full: the shard commits one while the next is written."""

_NO_PRIORITIES = np.empty(0, np.float64)


class Pieces(NamedTuple):
    """What is committed as one entry each: steps begin..begin + steps of trajectory number `of`.

    Attributes
    ----------
    of, begin, steps : int64[P].
    last : bool[P], whether its trajectory ends with it.
    whole : whether each trajectory is one piece.
    """

    of: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    last: npt.NDArray[np.bool_]
    whole: bool

    def which(self, first: int, stop: int) -> npt.NDArray[np.int64] | slice:
        """The trajectories of pieces first..stop-1, as an index into what there is of each."""
        return slice(first, stop) if self.whole else self.of[first:stop]

    @staticmethod
    def cut(lengths: npt.NDArray[np.int64], most: int, longest: int) -> Pieces:
        """The pieces of at most `most` steps of trajectories of those lengths, int64[N], in order."""
        count = len(lengths)
        if longest <= most:
            return Pieces(np.arange(count), np.zeros(count, np.int64), lengths, lengths > 0, True)
        each = -(-lengths // most)
        of = np.repeat(np.arange(count), each)
        ends = np.cumsum(each)
        begin = (np.arange(len(of)) - (ends - each)[of]) * most
        last = np.zeros(len(of), np.bool_)
        last[ends - 1] = True
        return Pieces(of, begin, np.minimum(lengths[of] - begin, most), last, False)


class Many(NamedTuple):
    """Trajectories that fit their table.

    Attributes
    ----------
    lengths : int64[N], steps of each, all >= 1.
    sources : int64[C, N], address of the first row of each, per step column; the others lie behind it.
    values : dtype[N, *shape] per per-trajectory column, and the key of its group where it has one.
    priorities : None, float64[N] (one for all items of each), or a list of N of what `insert` takes.
    versions : int64[N], -1 for the table's; None where the table has none.
    terminated : bool[N], or one for all.
    finals : dtype[N, *shape] per step column, None for those not given; None without any.
    ids : int64[N], filled in while they are sent, and by `Group.identify`.
    arrays : what the addresses lie in.
    """

    lengths: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    values: list[np.ndarray]
    priorities: Any
    versions: npt.NDArray[np.int64] | None
    terminated: npt.NDArray[np.bool_] | bool
    finals: list[np.ndarray | None] | None
    ids: npt.NDArray[np.int64]
    arrays: object


class Group:
    """The pieces that go to one shard.

    Attributes
    ----------
    sequences : the number of each entry that was submitted.
    """

    def __init__(self, port: Port, many: Many, pieces: Pieces) -> None:
        self.port, self._many, self._pieces = port, many, pieces
        rows = pieces.steps if many.finals is None else pieces.steps + pieces.last
        self._needs = (rows + (port.layout.block_steps - 1)) // port.layout.block_steps
        self._ends = pieces.steps.cumsum()
        self._most_steps = max(1, GROUP_BYTES // port.row_bytes)
        self._flags = _flags(pieces, many)
        self.sequences: list[int] = []
        self._unnamed: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []  # trajectories, their numbers
        self._last_pieces: list[int] = []  # pieces up to the end of each trajectory

    @property
    def sent(self) -> int:
        """Trajectories of which anything was submitted."""
        sent = len(self.sequences)
        return sum(end <= sent for end in self._last_pieces)

    def wait(self, deadline: float | None) -> None:
        """Wait until all that was submitted is committed."""
        if self.sequences:
            patiently(self.port.session.wait, self.port.open, self.sequences[-1], timeout=left(deadline))

    @property
    def nameless(self) -> bool:
        """Whether ids are still to be asked for."""
        return bool(self._unnamed)

    def identify(self, deadline: float | None) -> None:
        """Have the ids of all that was committed in `Many.ids`, if they are not there yet."""
        if self._unnamed:
            of, numbers = (np.concatenate(part) for part in zip(*self._unnamed, strict=True))
            identify = self.port.session.identify
            self._many.ids[of] = patiently(identify, self.port.open, numbers, timeout=left(deadline))
            self._unnamed.clear()

    def withdraw(self) -> int:
        """Take back what is not committed; how many trajectories are, whole."""
        done = self.port.withdraw(self.sequences)
        return sum(end <= done for end in self._last_pieces)

    def send(self, first: int, deadline: float | None) -> int:
        """Write and submit pieces from number `first` on, as many as a group takes and leases are there; how many.

        An error gives back the leases of what was not submitted.
        """
        port, pieces = self.port, self._pieces
        stop = self._full(first)
        slots, blocks = port.pool.take_many(self._needs[first:stop], left(deadline))
        if not len(slots):
            slot, chain = port.allocate(int(self._needs[first]), left(deadline))
            slots, blocks = np.array([slot], np.int32), np.array(chain, np.int32)
        stop = first + len(slots)
        needs = self._needs[first:stop]
        at = needs.cumsum() - needs
        ours = True  # until the shard has them: what it refuses it takes back itself
        try:
            self._write(first, stop, slots, blocks, at)
            entries, priorities = self._entries(first, stop, slots)
            begun = slice(None) if pieces.whole else np.flatnonzero(pieces.begin[first:stop] == 0)
            of = slice(first, stop) if pieces.whole else pieces.of[first:stop][begun]
            ids = port.session.names(port.open, blocks[at[begun]])
            if ids is not None:
                self._many.ids[of] = ids
            ours = False
            number = port.submit_many(entries, blocks, priorities, left(deadline))
        except BaseException as error:
            if ours or isinstance(error, DeadlineExceeded):
                port.pool.put(slots.tolist(), blocks)
            raise
        if ids is None:
            self._unnamed.append((pieces.of[first:stop][begun], np.arange(number, number + len(slots))[begun]))
        sent, count = len(self.sequences), len(slots)
        if pieces.whole:
            self._last_pieces += range(sent + 1, sent + 1 + count)
        else:
            self._last_pieces += (sent + 1 + np.flatnonzero(pieces.last[first:stop])).tolist()
        self.sequences += range(number, number + count)
        return count

    def _full(self, first: int) -> int:
        """The piece behind the last that goes into one group with piece number `first`."""
        stop, ends = min(first + GROUP, len(self._ends)), self._ends
        most = self._most_steps + (int(ends[first - 1]) if first else 0)
        return stop if ends[stop - 1] <= most else max(first + 1, int(ends.searchsorted(most, "right")))

    def _entries(
        self, first: int, stop: int, slots: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.float64]]:
        """The entries of pieces first..stop-1 but for their numbers, and the priorities that they name."""
        pieces, entries = self._pieces, np.zeros(stop - first, COMMIT_ENTRY)
        entries["slot"], entries["blocks"] = slots, self._needs[first:stop]
        entries["length"] = pieces.steps[first:stop]
        entries["flags"] = WHOLE if self._flags is None else self._flags[first:stop]
        if not pieces.whole:
            begin = pieces.begin[first:stop]
            entries["before"], entries["follows"] = begin, np.where(begin > 0, -1, 0)
            if begin[0]:
                entries["follows"][0] = self.sequences[-1]
        raw = self._many.priorities
        if raw is None:
            return entries, _NO_PRIORITIES
        if isinstance(raw, np.ndarray):
            entries["priorities"] = 1
            return entries, raw[pieces.which(first, stop)]
        given = [self._priority(number) for number in range(first, stop)]
        entries["priorities"] = [len(one) for one in given]
        return entries, np.concatenate(given)

    def _priority(self, piece: int) -> npt.NDArray[np.float64]:
        """Of the piece: none, one number, or its share of one per item."""
        raw = self._many.priorities[self._pieces.of[piece]]
        if raw is None:
            return np.empty(0, np.float64)
        if not isinstance(raw, np.ndarray):
            return np.array([raw], np.float64)
        table, longest = self.port.table, self.port.max_length
        before = int(self._pieces.begin[piece]) // longest * item_count(table, longest)
        return raw[before : before + item_count(table, int(self._pieces.steps[piece]))]

    def _write(
        self,
        first: int,
        stop: int,
        slots: npt.NDArray[np.int32],
        blocks: npt.NDArray[np.int32],
        at: npt.NDArray[np.int64],
    ) -> None:
        """Write rows, final rows and values of pieces first..stop-1 to their leases; `at`: the first block of each."""
        many, pieces, rows = self._many, self._pieces, self.port.rows
        of, steps = pieces.which(first, stop), pieces.steps[first:stop]
        sources = np.ascontiguousarray(many.sources[:, of])
        if not pieces.whole:
            sources += pieces.begin[first:stop] * rows.widths[:, None]
        rows.write_many(blocks, self._needs[first:stop], steps, sources)
        for place, value in zip(rows.values, many.values, strict=True):
            place[slots] = value[of]
        if rows.versions is not None:
            rows.versions[slots] = -1 if many.versions is None else many.versions[of]
        if many.finals is not None:
            ending = np.flatnonzero(pieces.last[first:stop])
            ordinal, row = np.divmod(steps[ending], rows.block_steps)
            block, last = blocks[at[ending] + ordinal], pieces.of[first:stop][ending]
            for strip, final in zip(rows.strips, many.finals, strict=True):
                strip[block, row] = 0 if final is None else final[last]


def _flags(pieces: Pieces, many: Many) -> npt.NDArray[np.int32] | None:
    """The flags of each piece's entry, int32[P]; None if they are but `WHOLE`."""
    if pieces.whole and many.terminated is False and many.finals is None:
        return None
    flags = np.full(len(pieces.of), WHOLE, np.int32)
    if not pieces.whole:
        flags |= np.where(pieces.begin > 0, CONTINUES, 0) | np.where(pieces.last, 0, CONTINUED)
    if isinstance(many.terminated, np.ndarray):
        flags[pieces.last & many.terminated[pieces.of]] |= TERMINATED
    elif many.terminated:
        flags[pieces.last] |= TERMINATED
    if many.finals is not None:
        flags[pieces.last] |= HAS_FINAL
    return flags
