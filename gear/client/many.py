"""Inserting many trajectories at once: pipelined, each committed by itself, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.port import left, until
from gear.errors import DataError, DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gear.client.port import Port, Priority


def insert_many(
    port: Port,
    trajectories: Sequence[Mapping[str, Any]],
    priorities: Sequence[Priority] | None,
    terminated: bool | Sequence[bool],
    timeout: float | None,
) -> None:
    """What `Client.insert_many` does, for one table."""
    deadline = until(timeout)
    count = len(trajectories)
    ends = [terminated] * count if isinstance(terminated, (bool, np.bool_)) else list(terminated)
    raw: list[Priority] = [None] * count if priorities is None else list(priorities)
    if len(ends) != count or len(raw) != count:
        raise DataError(
            f"insert_many: got {count} trajectories, {len(raw)} priorities and {len(ends)} terminated flags"
        )
    encoded = []
    for index, (trajectory, priority) in enumerate(zip(trajectories, raw, strict=True)):
        try:
            encoded.append(port.encode(trajectory, priority, None))
        except DataError as error:
            raise DataError(f"trajectory {index} of {count}: {error}; nothing was inserted") from None
    sequences: list[int] = []
    last_pieces: list[int] = []  # pieces submitted up to the end of each trajectory
    try:
        for one, end in zip(encoded, ends, strict=True):
            sequences += port.insert(*one, bool(end), left(deadline))
            last_pieces.append(len(sequences))
        port.session.wait(port.open, sequences[-1], left(deadline))
    except DeadlineExceeded as error:
        done = port.withdraw(sequences)
        whole = sum(pieces <= done for pieces in last_pieces)
        if whole < count:
            late = DeadlineExceeded(f"{error}; {whole} of {count} trajectories were committed, the others were not")
            late.committed = whole  # type: ignore[attr-defined]
            raise late from None
