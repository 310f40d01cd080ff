"""What all writers have in common: one port, one lock, flushing, closing and their life after a fork."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from gear.client.arguments import seconds, version_of
from gear.client.deadline import left, until

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from gear.client.port import Port
    from gear.client.spread import Spread
    from gear.transport.base import OpenTable

logger = logging.getLogger(__name__)


class Writing(ABC):
    """A way to append rows to one table; see `Writer` and `VectorWriter`."""

    def __init__(self, port: Port | Spread, publish: Literal["end", "rows"]) -> None:
        self._port = port
        self._by_rows = publish == "rows"
        self._lock = threading.Lock()
        self._version: int | None = None
        self.told = False  # what is lost with it, or that nothing is

    @property
    def version(self) -> int | None:
        """Version of the policy that acts: that of trajectories that begin from now on.

        None: the table's (`Client.set_version`) when they are committed. May be set at any time.

        Raises
        ------
        DataError
            If it is none, or the table keeps no versions.
        """
        return self._version

    @version.setter
    def version(self, version: int | None) -> None:
        number = version_of(self._port.table, version)
        with self._lock:
            self._tell(number)
            self._version = number

    def publish(self, timeout: float | None = None) -> None:
        """Make the rows appended so far visible; does nothing with ``publish="end"``."""
        timeout = seconds(timeout)
        with self._lock:
            self._publish(timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Publish what may be published and wait until all commits of the table are done.

        Raises
        ------
        DeadlineExceeded
            Saying how many commits are still queued; they stay so.
        """
        timeout = seconds(timeout)
        deadline = until(timeout)
        self.publish(timeout)
        self._port.flush(left(deadline))

    def close(self, timeout: float | None = 30.0) -> None:
        """End what is unended as truncated, wait for the commits, give leases back. Idempotent.

        Raises
        ------
        GearError
            If steps could not be sent: it says how many were dropped.
        """
        timeout = seconds(timeout)
        deadline = until(timeout)
        with self._lock:
            if not self._finish(timeout):
                return
        self._port.flush(left(deadline))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def abandon(self, why: str) -> None:
        """Refuse further use; whatever was not ended is gone."""
        with self._lock:
            self._refuse(why)

    def forget(self) -> None:
        """Refuse further use, in the child of a fork: the rows and their blocks are the parent's."""
        self._lock = threading.Lock()
        self.abandon("this writer was opened before a fork; open one in the child process")

    @property
    def table(self) -> OpenTable:
        """The table it writes to."""
        return self._port.open

    def tell_loss(self, when: str) -> None:
        """Say in the log what is lost with this writer, which nobody ended or closed."""
        steps = self._unsent()
        if steps and not self.told:
            logger.warning(
                "%s %s: %d unended step%s of table %r lost: end its trajectories, close it, or open it in a `with`",
                type(self).__name__, when, steps, "" if steps == 1 else "s", self._port.name,
            )  # fmt: skip

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # of one that was never made whole
            self.tell_loss("was left to the garbage collector")

    # The lock is held in all of these, but for the first.

    @abstractmethod
    def _unsent(self) -> int:
        """Steps that were appended and not submitted, 0 once further use is refused."""

    @abstractmethod
    def _publish(self, timeout: float | None) -> None:
        """Make rows visible; `timeout` is checked."""

    @abstractmethod
    def _tell(self, version: int | None) -> None:
        """Trajectories that begin from now on are of that version."""

    @abstractmethod
    def _finish(self, timeout: float | None) -> bool:
        """Submit what is left and refuse further use; False if that was done before."""

    @abstractmethod
    def _refuse(self, why: str) -> None:
        """Refuse further use, saying why."""
