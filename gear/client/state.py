"""What the verbs of a client share: its session, its tables, and what it has handed out."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from gear.client.arguments import Queries
from gear.client.tables import Tables
from gear.client.threads import Threads

if TYPE_CHECKING:
    from gear.batch import NewBatch
    from gear.client.loader import Loader
    from gear.client.port import Port
    from gear.client.reader import Reader
    from gear.client.spread import Spread
    from gear.client.writing import Writing
    from gear.transport.base import Service


class State:
    """The state of one client.

    Parameters
    ----------
    session : Service
    new_batch : Plan, buffer or None -> Batch
        Makes the kind of batch the client's device wants.
    device : str, optional
        Where arrays are wanted that come in no batch; None for NumPy.
    """

    def __init__(self, session: Service, new_batch: NewBatch, device: str | None = None) -> None:
        self._session, self._device = session, device
        self._tables = Tables(session, new_batch)
        self._query = Queries()
        self._kinds: dict[str, NewBatch] = {}  # by device, where other batches than the client's were asked for
        self._consumers: dict[str, str] = {}  # by table, the one sampled for last
        self._closed = False
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._writers: weakref.WeakSet[Writing] = weakref.WeakSet()
        self._loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
        self._threads = Threads()

    def _publish(self, of: Reader | Port | Spread, timeout: float | None) -> None:
        """Let whoever reads that table see what this client's writers have written."""
        for writer in list(self._writers):
            if writer.table is of.open:
                writer.publish(timeout)
