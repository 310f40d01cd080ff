"""A client's verb for consumers: acknowledge what was sampled for one of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gear.client import arguments as check
from gear.client.priorities import as_ids
from gear.client.state import State
from gear.errors import DataError
from gear.schema import Table

STALE, APPLIED, AGAIN, REPEATED = range(4)
"""Outcomes per id, as `gear.storage.acknowledge` says them."""


class Acknowledged(NamedTuple):
    """What became of the acknowledged items.

    Attributes
    ----------
    applied : how many are acknowledged now, and will not be served to this consumer again.
    repeated : how many the consumer had acknowledged before; nothing has changed.
    stale : how many have left the table.
    served_again : int64[K], ids of those that another client of this consumer was served meanwhile, because this
        one had lost its connection: they are that client's to acknowledge.
    """

    applied: int
    repeated: int
    stale: int
    served_again: npt.NDArray[np.int64]


class Consuming(State):
    """Items are claimed by `sample(..., consumer=name)` and stay claimed until they are acknowledged."""

    def ack(self, ids: Any, *, consumer: str | None = None, timeout: float | None = None) -> Acknowledged:
        """Acknowledge items: this consumer is done with them.

        May come long after the sample, say with the trainer's own checkpoint, and from another client than the one
        that sampled, say the trainer started anew. Whatever is not acknowledged when the connection of the client
        that sampled it ends is served again, first.

        Parameters
        ----------
        ids : int64[N]
            From `Batch.ids`; they know their table.
        consumer : str, optional
            Default: the one for which this client sampled last, or the only one the table has.

        Returns
        -------
        Acknowledged

        Raises
        ------
        DataError
            If the table has no such consumer.
        """
        timeout, named = check.seconds(timeout), check.at_once(as_ids(ids))
        outcomes = np.empty(len(named), np.int8)
        for port, where in self._tables.by_id(named):
            name = self._consumer_of(port.table, consumer)
            part = named if where is None else named[where]
            outcomes[slice(None) if where is None else where] = port.session.acknowledge(port.open, part, name, timeout)
        counts = np.bincount(outcomes, minlength=4).tolist()
        return Acknowledged(counts[APPLIED], counts[REPEATED], counts[STALE], named[outcomes == AGAIN])

    def _consumer_of(self, table: Table, consumer: str | None) -> str:
        """The consumer meant."""
        name = consumer or self._consumers.get(table.name) or (table.consumers[0] if len(table.consumers) == 1 else "")
        if not table.consumers:
            raise DataError(
                f"table {table.name!r} declares no consumers: nothing is acknowledged; declare consumers=('trainer',)"
            )
        table.consumer(name)
        return name
