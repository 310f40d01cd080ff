"""Inserting many trajectories at once: their rows behind each other, one scatter per column for all of them.

Trajectories (pieces of them, where they are longer than `max_length`) are taken in groups, as many as there are
leases for. Each is committed by itself, in order, exactly as one inserted alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client import arguments as check
from gear.client.deadline import until
from gear.client.ends import mask
from gear.client.group import Group, Many, Part
from gear.client.priorities import as_priorities
from gear.errors import ConnectionLost, DataError, DeadlineExceeded, GearError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.client.encode import Encoded
    from gear.client.port import Port, Priority
    from gear.client.spread import Spread
    from gear.grouping import Key


def insert_many(
    port: Port | Spread,
    trajectories: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    offsets: Any,
    priorities: Any,
    terminated: Any,
    final: Mapping[str, Any] | None,
    versions: Any,
    timeout: float | None,
    keys: Sequence[Key] | None = None,
) -> None:
    """What `Client.insert_many` does, for one table."""
    deadline = until(timeout)
    first = port.living()[0]
    many = _packed(first, trajectories, offsets) if isinstance(trajectories, Mapping) else _listed(first, trajectories)
    count = len(many.lengths)
    if not count:
        return
    if keys is not None or port.table.group_size:
        many.values.append(_keys(first, keys, count))
    ends = np.full(count, bool(terminated)) if np.ndim(terminated) == 0 else mask("terminated", terminated, count)
    finals = None if final is None else first.codec.finals(final, count)
    raw, numbers = _priorities(first, priorities, many.lengths), _versions(first, versions, count)
    groups = [Group(one, many, ends, finals, raw, numbers) for one in port.living()]
    turn = 0
    try:
        for index, length in enumerate(many.lengths):
            group = groups[turn % len(groups)]
            group.add_all(index, length, deadline)
            turn += group.empty  # it has just been submitted: the next one goes to the next shard
        for group in groups:
            group.submit(deadline)
        for group in groups:
            group.wait(deadline)
    except DeadlineExceeded as error:
        whole = sum(group.withdraw() for group in groups)
        if whole < count:
            late = DeadlineExceeded(f"{error}; {whole} of {count} trajectories were committed, the others were not")
            late.committed = whole  # type: ignore[attr-defined]
            raise late from None
    except ConnectionLost:
        if len(groups) == 1 and groups[0].port.shard is None:
            raise
        raise _lost(groups, count, deadline) from None
    except KeyboardInterrupt:
        for group in groups:
            with contextlib.suppress(GearError):
                group.withdraw()
        raise
    finally:
        for group in groups:
            group.give_back()


def _lost(groups: list[Group], count: int, deadline: float | None) -> ConnectionLost:
    """The error for a shard that died meanwhile; what was sent to the others is waited for."""
    whole = unknown = 0
    dead = groups[0].port
    for group in groups:
        try:
            group.wait(deadline)
            whole += group.sent
        except DeadlineExceeded:
            whole += group.withdraw()
        except ConnectionLost:
            dead, unknown = group.port, unknown + group.sent
    lost = dead.lost_with(unknown, f", {whole} of {count} were committed on other shards")
    lost.committed = whole  # type: ignore[attr-defined]
    return lost


def _packed(port: Port, values: Mapping[str, Any], offsets: Any) -> Many:
    """Columns that hold all trajectories behind each other."""
    if offsets is None:
        raise DataError(
            "insert_many: one dict is the packed form, which needs offsets=int64[N + 1] saying where each trajectory "
            "begins; or give a list of trajectories"
        )
    bounds, arrays, rows = port.codec.packed(values, offsets)
    starts, lengths = bounds.tolist(), np.diff(bounds).tolist()
    for index, length in enumerate(lengths):
        try:
            port.pieces(length)
        except DataError as error:
            raise _refused(index, len(lengths), error) from None
    arrays = [np.ascontiguousarray(array) for array in arrays]
    return Many(lengths, lambda pieces: (arrays, [starts[p.of] + p.begin for p in pieces]), rows)


def _listed(port: Port, trajectories: Sequence[Mapping[str, Any]]) -> Many:
    """Trajectories of their own, joined when they are written."""
    encoded: list[Encoded] = []
    for index, trajectory in enumerate(trajectories):
        try:
            encoded.append(port.codec.trajectory(trajectory))
            port.pieces(encoded[-1].steps)
        except DataError as error:
            raise _refused(index, len(trajectories), error) from None

    room = [a[:0] for a in encoded[0].arrays] if encoded else []  # used again and again: fresh pages are slow

    def rows(pieces: list[Part]) -> tuple[list[np.ndarray], Sequence[int]]:
        total = sum(p.steps for p in pieces)
        if total > len(room[0]):
            room[:] = [np.empty((total, *a.shape[1:]), a.dtype) for a in room]
        parts = [
            e.arrays if p.steps == e.steps else [a[p.begin : p.begin + p.steps] for a in e.arrays]
            for p, e in ((p, encoded[p.of]) for p in pieces)
        ]
        joined = [np.concatenate(c, out=a[:total]) for c, a in zip(zip(*parts, strict=True), room, strict=True)]
        return joined, list(accumulate((p.steps for p in pieces[:-1]), initial=0))

    columns = zip(*(one.rows for one in encoded), strict=True)
    return Many([one.steps for one in encoded], rows, [np.stack(column) for column in columns])


def _versions(port: Port, given: Any, count: int) -> list[int | None]:
    """The policy version of each trajectory, None for the table's."""
    if given is None:
        return [None] * count
    each = np.broadcast_to(np.asarray(given), (count,)) if np.ndim(given) == 0 else np.asarray(given)
    if each.shape != (count,):
        raise DataError(f"insert_many: expected {count} versions, one per trajectory, got {list(each.shape)}")
    return [check.version_of(port.table, version) for version in each.tolist()]


def _priorities(port: Port, given: Any, lengths: list[int]) -> list[Priority]:
    """Per trajectory: None, one number for all its items, or one each."""
    count = len(lengths)
    if given is None:
        return [None] * count
    if len(given) != count:
        raise DataError(f"insert_many: expected {count} priorities, one per trajectory, got {len(given)}")
    if not isinstance(given, (list, tuple)) or all(isinstance(one, (int, float)) for one in given):
        return as_priorities(given, count).tolist()  # type: ignore[no-any-return]
    checked: list[Priority] = []
    for index, (one, steps) in enumerate(zip(given, lengths, strict=True)):
        try:
            checked.append(None if one is None else port.priorities(one, steps))
        except DataError as error:
            raise _refused(index, count, error) from None
    return checked


def _keys(port: Port, groups: Sequence[Key] | None, count: int) -> npt.NDArray[np.uint8]:
    """The keys of the trajectories' groups, uint8[N, KEY_BYTES]."""
    if groups is None or isinstance(groups, (str, bytes)) or len(groups) != count:
        got = "none" if groups is None else len(groups)
        port.group_key(None if groups is None else 0)
        raise DataError(f"insert_many: expected {count} keys of groups, one per trajectory, got {got}")
    return np.stack([port.group_key(key) for key in (groups.tolist() if isinstance(groups, np.ndarray) else groups)])


def _refused(index: int, count: int, error: object) -> DataError:
    return DataError(f"trajectory {index} of {count}: {error}; nothing was inserted")
