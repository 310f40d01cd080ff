"""Inserting many trajectories at once: one compiled call writes the rows of many of them, all columns.

Trajectories (pieces of them, where they are longer than `max_length`) are taken in groups, as many as there are
leases for. Each is committed by itself, in order, exactly as one inserted alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client import arguments as check
from gear.client.deadline import until
from gear.client.ends import mask
from gear.client.group import Group, Many, Pieces
from gear.client.listed import Listed, address, dense, listed, refused
from gear.client.priorities import as_priorities
from gear.errors import ConnectionLost, DataError, DeadlineExceeded, GearError

if TYPE_CHECKING:
    import numpy.typing as npt

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
    wait: bool = True,
) -> npt.NDArray[np.int64] | None:
    """What `Client.insert_many` does, for one table."""
    deadline = until(timeout)
    first = port.living()[0]
    if offsets is not None and not isinstance(trajectories, Mapping):
        raise DataError(
            "insert_many: offsets= say where each trajectory of one dict begins; leave them out with a list"
        )
    if isinstance(trajectories, Mapping):
        lengths, sources, values, longest, arrays = _packed(first, trajectories, offsets)
    else:
        lengths, sources, values, longest, arrays = listed(first, trajectories)
    count = len(lengths)
    if not count:
        return np.empty(0, np.int64) if wait else None
    if keys is not None or port.table.group_size:
        values.append(_keys(first, keys, count))
    ends = bool(terminated) if np.ndim(terminated) == 0 else mask("terminated", terminated, count)
    finals = None if final is None else first.codec.finals(final, count)
    raw, numbers = _priorities(first, priorities, lengths), _versions(first, versions, count)
    many = Many(lengths, sources, values, raw, numbers, ends, finals, np.empty(count, np.int64), arrays)
    _send(port.living(), many, Pieces.cut(lengths, first.max_length, longest), wait, deadline)
    return many.ids if wait else None


def _send(ports: list[Port], many: Many, pieces: Pieces, wait: bool, deadline: float | None) -> None:
    """Commit all pieces, a group to each port in turn; a trajectory's pieces go to one."""
    groups = [Group(one, many, pieces) for one in ports]
    turn, at, count = 0, 0, len(many.lengths)
    try:
        while at < len(pieces.of):
            at += groups[turn % len(groups)].send(at, deadline)
            turn += int(pieces.last[at - 1])
        if not wait:
            return
        for group in groups:
            group.wait(deadline)
        for group in groups:
            group.identify(deadline)
    except DeadlineExceeded as error:
        whole = sum(group.withdraw() for group in groups)
        if whole < count:
            raise _late(
                f"{error}; {whole} of {count} trajectories were committed, the others were not", whole
            ) from None
        if wait and any(group.nameless for group in groups):
            raise _late(
                f"{error}; all {count} trajectories were committed, but their ids did not come", whole
            ) from None
    except ConnectionLost:
        if len(groups) == 1 and groups[0].port.shard is None:
            raise
        raise _lost(groups, count, deadline) from None
    except BaseException:  # a key, no memory: nobody waits for the rest, and a part of a trajectory is none
        for group in groups:
            with contextlib.suppress(GearError):
                group.withdraw()
        raise


def _late(message: str, committed: int) -> DeadlineExceeded:
    """The error for a deadline that passed when so many were committed."""
    late = DeadlineExceeded(message)
    late.committed = committed  # type: ignore[attr-defined]
    return late


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


def _packed(port: Port, values: Mapping[str, Any], offsets: Any) -> Listed:
    """Columns that hold all trajectories behind each other."""
    if offsets is None:
        raise DataError(
            "insert_many: one dict is the packed form, which needs offsets=int64[N + 1] saying where each trajectory "
            "begins; or give a list of trajectories"
        )
    from gear.kernels.host_insert import read_offsets

    bounds, arrays, rows = port.codec.packed(values, offsets)
    arrays = list(map(dense, arrays))
    bases, count = np.array(list(map(address, arrays)), np.int64), len(bounds) - 1
    lengths, sources = np.empty(count, np.int64), np.empty((len(bases), count), np.int64)
    longest = read_offsets(bounds, len(arrays[0]), bases, port.rows.widths, lengths, sources)
    if longest < 0:
        raise _misplaced(bounds, len(arrays[0]))
    if longest > port.max_length:
        for index, length in enumerate(lengths.tolist()):
            try:
                port.pieces(length)
            except DataError as error:
                raise refused(index, count, error) from None
    return Listed(lengths, sources, rows, longest, arrays)


def _misplaced(bounds: npt.NDArray[np.int64], total: int) -> DataError:
    """The error for offsets that do not rise from 0 to the number of rows."""
    short = np.diff(bounds) < 1
    got = f"{bounds[0]} to {bounds[-1]}"
    if short.any():
        got = f"offsets[{int(np.argmax(short)) + 1}] = {bounds[1:][short][0]} after {bounds[:-1][short][0]}"
    return DataError(
        f"offsets: expected numbers that rise from 0 to {total}, the rows there are, at least one row per trajectory; "
        f"got {got}"
    )


def _versions(port: Port, given: Any, count: int) -> npt.NDArray[np.int64] | None:
    """The policy version of each trajectory, None for the table's."""
    if given is None:
        return None
    if np.ndim(given) == 0:
        number = check.version_of(port.table, given)
        return np.full(count, -1 if number is None else number)
    each = np.asarray(given)
    if each.shape != (count,):
        raise DataError(f"insert_many: expected {count} versions, one per trajectory, got {list(each.shape)}")
    numbers = [check.version_of(port.table, version) for version in each.tolist()]
    return np.array([-1 if number is None else number for number in numbers], np.int64)


def _priorities(port: Port, given: Any, lengths: npt.NDArray[np.int64]) -> Any:
    """Nothing, float64[N], or per trajectory: None, one number for all its items, or one each."""
    count = len(lengths)
    if given is None:
        return None
    try:
        got = len(given)
    except TypeError:  # one number
        got = given
    if got is given or got != count:
        raise DataError(f"insert_many: expected {count} priorities, one per trajectory, got {got}")
    if not isinstance(given, (list, tuple)) or all(isinstance(one, (int, float)) for one in given):
        return as_priorities(given, count)
    checked: list[Priority] = []
    for index, (one, steps) in enumerate(zip(given, lengths.tolist(), strict=True)):
        try:
            checked.append(None if one is None else port.priorities(one, steps))
        except DataError as error:
            raise refused(index, count, error) from None
    return checked


def _keys(port: Port, groups: Sequence[Key] | None, count: int) -> npt.NDArray[np.uint8]:
    """The keys of the trajectories' groups, uint8[N, KEY_BYTES]."""
    if groups is None or isinstance(groups, (str, bytes)) or len(groups) != count:
        got = "none" if groups is None else len(groups)
        port.group_key(None if groups is None else 0)
        raise DataError(f"insert_many: expected {count} keys of groups, one per trajectory, got {got}")
    return np.stack([port.group_key(key) for key in (groups.tolist() if isinstance(groups, np.ndarray) else groups)])
