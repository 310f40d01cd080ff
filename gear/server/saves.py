"""The checkpoints of a shard: parts are saved, and whole ones completed, on a thread of their own.

The loop does nothing of it but the instant. One thing is done at a time, in the order in which it was asked for.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gear
from gear.errors import CheckpointError, GearError
from gear.storage import shelf
from gear.storage.memory import size_text
from gear.storage.saving import PartSave
from gear.storage.saving_table import Subject
from gear.transport import messages as m

if TYPE_CHECKING:
    from gear.server.bulk import Refuse, Send
    from gear.server.clients import Client
    from gear.server.tables import Place, Tables
    from gear.server.weights import Weights
    from gear.storage.table import StoredTable
    from gear.transport.channel import Buffer

logger = logging.getLogger(__name__)


MOST_WAITING = 64
"""Requests about checkpoints that wait at a shard."""


class Shelf(NamedTuple):
    """Where checkpoints of a server lie, how many are kept (0: all), and the server's name."""

    directory: str = ""
    keep: int = 0
    server: str = ""


@dataclass(eq=False)
class _Job:
    """Something to be done, and what its outcome is told to; `save`: of one that has an instant."""

    run: Callable[[], m.Message]
    answer: Callable[[m.Message | GearError], None]
    save: PartSave | None = None
    taken: threading.Event = field(default_factory=threading.Event)
    failed: Exception | None = None
    """Why there was no instant."""


class Saves:
    """Saves what a shard holds.

    Parameters
    ----------
    shelf : Shelf
    place, tables, weights : of the shard.
    send, refuse : see `bulk`.
    wake : () -> None
        Called from another thread when `finish` has something to do.
    """

    def __init__(
        self,
        shelf: Shelf,
        place: Place,
        tables: Tables,
        weights: Weights,
        send: Send,
        refuse: Refuse,
        wake: Callable[[], None],
    ) -> None:
        self._shelf, self._place, self._tables, self._weights = shelf, place, tables, weights
        self._send, self._refuse, self._wake = send, refuse, wake
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._due: deque[_Job] = deque()
        self._done: deque[tuple[_Job, m.Message | GearError]] = deque()
        self._left = 0
        self._stirred = threading.Event()
        self._thread: threading.Thread | None = None
        self._now: PartSave | None = None
        self._ending = False
        self._failures = self._aside = 0
        self._last: m.Saved | None = None
        self._last_time = 0.0

    def handlers(self) -> dict[type, Callable[[Client, int, Any, list[Buffer]], None]]:
        """What it answers."""
        return {
            m.Save: self._on_save,
            m.Complete: self._on_complete,
            m.Unsave: self._on_unsave,
            m.AskSaving: self._on_ask,
        }

    # Requests

    def _on_save(self, client: Client, request: int, body: m.Save, parts: list[Buffer]) -> None:
        save = self._new(body.token)
        self._start(_Job(lambda: self._write(save), self._answering(client, request), save))

    def _on_complete(self, client: Client, request: int, body: m.Complete, parts: list[Buffer]) -> None:
        directory = self._directory()

        def complete() -> m.Message:
            shards, server = self._place.shards, self._shelf.server
            try:
                path, whole = shelf.seal(directory, body.token, shards, gear.__version__, server, time.time())
            except OSError as error:
                if isinstance(error, CheckpointError):
                    raise
                raise CheckpointError(f"the checkpoint could not be completed: {error}; nothing of it counts") from None
            for gone in shelf.keep(directory, self._shelf.keep):
                logger.info("removed checkpoint %s", gone)
            return m.Completed(str(path), whole.nbytes, whole.written)

        self._start(_Job(complete, self._answering(client, request)))

    def _on_unsave(self, client: Client, request: int, body: m.Unsave, parts: list[Buffer]) -> None:
        root = shelf.partial(self._directory(), body.token)

        def unsave() -> m.Message:
            shelf.abandon(root, self._place.shard)
            return m.Done()

        self._start(_Job(unsave, self._answering(client, request)))

    def _on_ask(self, client: Client, request: int, body: m.AskSaving, parts: list[Buffer]) -> None:
        now = self._now
        done, total = (now.progress.done, now.progress.total) if now is not None else (0, 0)
        self._send(client, request, m.Saving(min(done, total), total), [])

    def _answering(self, client: Client, request: int) -> Callable[[m.Message | GearError], None]:
        def answer(outcome: m.Message | GearError) -> None:
            if isinstance(outcome, GearError):
                self._refuse(client, request, outcome)
            else:
                self._send(client, request, outcome, [])

        return answer

    def _directory(self) -> Path:
        if not self._shelf.directory:
            raise CheckpointError("the server keeps no checkpoints: start it with --checkpoint DIR")
        return Path(self._shelf.directory)

    def _new(self, token: str, last: bool = False) -> PartSave:
        subjects = [
            Subject(h.stored, h.declared, h.spec, h.part, h.parts, not h.hidden) for h in self._tables
        ]  # fmt: skip
        return PartSave(
            self._directory(), token, self._place.shard, subjects, self._weights.parcels, yields=not last,
            in_vain=lambda: self._ending and not last, dropped=self._dropped,
        )  # fmt: skip

    def _dropped(self, stored: StoredTable) -> bool:
        """Whether a table is none of the shard's any more; from any thread."""
        hosted = self._tables.get(stored.layout.index)
        return hosted is None or hosted.stored is not stored

    # The thread

    def _start(self, job: _Job) -> None:
        if self._left >= MOST_WAITING:
            raise CheckpointError(
                f"{MOST_WAITING} requests about checkpoints wait, the most there may be; ask again later"
            )
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
            self._thread.start()
        self._left += 1
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._do(self._jobs.get())  # no name of it: what a save holds ends with it, not with the next one

    def _do(self, job: _Job) -> None:
        outcome: m.Message | GearError
        try:
            if job.save is not None:
                job.save.prepare()
                self._due.append(job)
                self._stir()
                job.taken.wait()
                if job.failed is not None:
                    raise job.failed
            outcome = job.run()
        except GearError as error:
            outcome = error
        except Exception as error:  # a bug of ours must not end the thread
            logger.exception("a checkpoint failed")
            outcome = CheckpointError(f"internal error of the server: {error!r}; see its log")
        self._done.append((job, outcome))
        self._stir()

    def _stir(self) -> None:
        self._stirred.set()
        self._wake()

    def _write(self, save: PartSave) -> m.Saved:
        began, part = save.progress.began, save.write()
        tables = part.tables
        counts = sum(t.trajectories for t in tables), sum(t.left_out for t in tables)
        return m.Saved(sum(e.nbytes for e in part.files()), part.written, *counts, time.monotonic() - began)

    # The loop

    def finish(self) -> None:
        """Take the instants that are due, and tell outcomes."""
        while self._due:
            job = self._due.popleft()
            assert job.save is not None
            self._now = job.save
            try:
                job.save.take()
            except Exception as error:  # memory may be short; it must end this save, not the shard
                job.failed = error
            job.taken.set()
        while self._done:
            job, outcome = self._done.popleft()
            self._left -= 1
            self._note(job, outcome)
            if job.save is None or not self._ending:  # else it is asked for again of the one that takes its place
                job.answer(outcome)

    def _note(self, job: _Job, outcome: m.Message | GearError) -> None:
        if job.save is not None:
            job.save.let_go()
            self._aside = max((snapshot.most_aside for snapshot in job.save.snapshots), default=0)
            self._now = None
        if isinstance(outcome, m.Saved):
            self._last, self._last_time = outcome, time.time()
            logger.info(
                "saved %s (%s of it new) in %.2f s%s", size_text(outcome.nbytes), size_text(outcome.written),
                outcome.seconds, f"; {outcome.left_out} trajectories were evicted meanwhile" * bool(outcome.left_out),
            )  # fmt: skip
        elif isinstance(outcome, GearError):
            self._failures += 1
            logger.error("%s", outcome)

    def last(self, token: str) -> None:
        """The shard serves nobody any more: save what it holds.

        A save that is under way is given up: whoever asked for it can have no shard complete it any more. What is
        being completed already is waited for.
        """
        if not self._shelf.directory:
            return
        self._ending = True
        self.finish()
        while self._left:
            self._stirred.wait()
            self._stirred.clear()
            self.finish()
        save = self._new(token, last=True)
        job = _Job(lambda: self._write(save), lambda outcome: None, save)
        try:
            save.prepare()
            save.take()
            self._note(job, self._write(save))
        except GearError as error:
            self._note(job, error)
        except Exception as error:  # the shard is to end in order all the same
            logger.exception("the last checkpoint failed")
            self._note(job, CheckpointError(f"internal error of the server: {error!r}"))

    def info(self) -> dict[str, Any]:
        """The last save: when, bytes, new ones, seconds, most bytes aside; failures so far. Plain data."""
        last = self._last
        return {
            "running": int(self._now is not None),
            "last_time": self._last_time,
            "last_seconds": last.seconds if last else 0.0,
            "bytes": last.nbytes if last else 0,
            "written_bytes": last.written if last else 0,
            "left_out_trajectories": last.left_out if last else 0,
            "most_aside_bytes": self._aside,
            "failures": self._failures,
        }
