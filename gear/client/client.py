"""The client a user holds: thin verbs over the ports and readers of its tables, each kind in a file of its own.

A client is safe to use from several threads. After a fork the child's copy starts afresh: leases, writers
and loaders stay the parent's.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from gear.batch import Batch
from gear.client import arguments as check
from gear.client.aio import Coroutines
from gear.client.checkpointing import Checkpointing
from gear.client.deadline import left, until
from gear.client.listing import Listing
from gear.errors import GearError

if TYPE_CHECKING:
    from types import TracebackType

    from gear.batch import NewBatch
    from gear.schema import Table
    from gear.transport.base import Service

_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client(Coroutines, Checkpointing, Listing):
    """Inserts trajectories and samples batches; made by `connect` or `embedded`.

    `table` may be left out of every call while there is one table. Timeouts are in seconds: None and infinity
    wait for ever, a negative one not at all. Use it as a context manager or call `close`.
    """

    def __init__(self, session: Service, new_batch: NewBatch = Batch, device: str | None = None) -> None:
        super().__init__(session, new_batch, device)
        _clients.add(self)

    def create_table(self, table: Table, *, timeout: float | None = None) -> None:
        """Create a table; nothing happens if an equal one exists.

        Raises
        ------
        TableMismatch
            If a table of that name differs, naming each difference.
        InsufficientMemory, DeviceError
        """
        self._session.create_table(table, check.seconds(timeout))
        self._tables.forget_default()

    def reset(self, table: str | None = None, *, timeout: float | None = None) -> None:
        """Drop every trajectory of a table."""
        timeout = check.seconds(timeout)
        port = self._tables.port(table, timeout)
        port.session.reset(port.open, timeout)

    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Figures of the service and of each table, as plain data."""
        return self._session.info(check.seconds(timeout))

    def close(self, timeout: float | None = 10.0) -> None:
        """End what is awaited, stop loaders, end writers, wait for queued commits, give everything back. Idempotent.

        Raises
        ------
        GearError
            If something that was inserted or written could not be committed: how much.
        """
        timeout = check.seconds(timeout)
        if self._closed:
            return
        self._closed = True
        deadline = until(timeout)
        errors: list[GearError] = []
        self._threads.close()
        for loader in list(self._loaders):
            loader.close()
        if self._session.path != "inproc":  # tables of this process end with their client
            for end in (*(w.close for w in list(self._writers)), *(p.flush for p in self._tables)):
                try:
                    end(left(deadline))
                except GearError as error:
                    errors.append(error)
        for writer in list(self._writers):
            writer.abandon("the client has been closed")
        if "gear.devices.streams" in sys.modules:  # what kernels are still reading is let go of before
            sys.modules["gear.devices.streams"].drain_all()
        self._session.close()
        if errors:
            told = list(dict.fromkeys(map(str, errors)))  # a writer and its table may say the same
            raise errors[0] if len(told) == 1 else type(errors[0])("; ".join(told))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self) -> None:
        """In the child of a fork: what was under way is the parent's."""
        self._tables.forget()
        for writer in self._writers:
            writer.forget()
        for loader in self._loaders:
            loader.forget()
        self._start_afresh()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget()


def _at_exit() -> None:
    """What is lost with writers that nobody closed is said; tables of this process end with it, so nothing of them."""
    for client in list(_clients):
        for writer in list(client._writers):
            if client._session.path != "inproc":
                writer.tell_loss("was not closed before the end of the program")
            writer.told = True  # without its lock, which a thread that waits may hold for ever


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
