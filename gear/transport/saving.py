"""A checkpoint of a whole server: every shard saves its part, then one of them completes it.

Whoever asks for it leads. If a shard fails, or the leader gives up, all parts are removed again; of a leader that dies
a directory remains that counts for nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gear.checkpoint import Checkpoint
from gear.errors import ConnectionLost, DeadlineExceeded, GearError
from gear.transport import messages as m
from gear.transport.remote import deadline_of, expect

if TYPE_CHECKING:
    from gear.transport.conversation import Call
    from gear.transport.session import RemoteSession

TICK = 0.25
"""Seconds between two looks at how far it has come."""

Progress = Callable[[int, int], None]


def save(
    sessions: Mapping[int, RemoteSession], count: int, timeout: float | None, progress: Progress | None = None
) -> Checkpoint:
    """Save a checkpoint of all shards.

    Parameters
    ----------
    sessions : by the numbers of their shards.
    count : int
        How many shards the server has.
    progress : (bytes done, bytes in all) -> None
        Called now and then.

    Raises
    ------
    CheckpointError, ConnectionLost, DeadlineExceeded
        Nothing was saved then.
    """
    if len(sessions) < count:
        gone = sorted(set(range(count)) - set(sessions))
        raise ConnectionLost(f"shard {', '.join(map(str, gone))} is gone, so there would be a hole in the checkpoint")
    began, deadline, token = time.monotonic(), deadline_of(timeout), secrets.token_hex(8)
    calls: dict[int, Call] = {}
    try:
        for shard, session in sessions.items():
            calls[shard] = session.post(m.Save(token))
        saved: list[m.Saved] = []
        for shard, session in sessions.items():
            while not session.await_answer(calls[shard], min(deadline, time.monotonic() + TICK)):
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded("checkpoint: it was not written in time; nothing of it is kept")
                if progress is not None:
                    _tell(sessions, progress)
            saved.append(expect(session.answer(calls[shard], "checkpoint", deadline), m.Saved))
        first = sessions[min(sessions)]
        done = expect(first.answer(first.post(m.Complete(token)), "checkpoint", deadline), m.Completed)
    except BaseException:
        for shard in calls:
            try:
                sessions[shard].post(m.Unsave(token))
            except GearError:
                continue
        raise
    if progress is not None:
        progress(done.nbytes, done.nbytes)
    counts = sum(one.trajectories for one in saved), sum(one.left_out for one in saved)
    return Checkpoint(done.path, done.nbytes, done.written, time.monotonic() - began, *counts)


def _tell(sessions: Mapping[int, RemoteSession], progress: Progress) -> None:
    soon = time.monotonic() + TICK
    calls = {shard: session.post(m.AskSaving()) for shard, session in sessions.items()}
    came = [call.answer for shard, call in calls.items() if sessions[shard].await_answer(call, soon)]
    states = [answer for answer in came if isinstance(answer, m.Saving)]
    progress(sum(state.done for state in states), sum(state.total for state in states))
