"""Writing a trajectory as it happens, step by step or in chunks, straight into leased blocks.

A writer holds one unended trajectory, its `Track`, and the lock around it. Rows that were appended are never
dropped in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gear.client.arguments import seconds
from gear.client.track import Track
from gear.client.writing import Writing
from gear.errors import GearError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gear.client.port import Port, Priority
    from gear.client.spread import Spread
    from gear.grouping import Key


class Writer(Writing):
    """Appends the steps of one trajectory after the other to a table; made by `Client.writer`.

    With ``publish="rows"`` rows become visible when a block is full, at `flush`, at `end`, and before the
    same client samples; with ``publish="end"`` at `end`. A trajectory longer than the table's `max_length`
    is stored in pieces. Use it as a context manager: leaving it ends an unended trajectory as truncated.
    """

    def __init__(self, port: Port | Spread, publish: Literal["end", "rows"]) -> None:
        super().__init__(port, publish)
        self._track = Track(port, self._by_rows)

    def _tell(self, version: int | None) -> None:
        self._track.version = version

    def append(self, step: Mapping[str, Any]) -> None:
        """Append one step: every per-step column, without a time axis.

        Raises
        ------
        DataError
            If the step does not fit the table; it is not appended then.
        """
        with self._lock:
            self._track.append(step)

    def extend(self, chunk: Mapping[str, Any]) -> None:
        """Append consecutive steps: every per-step column with a leading time axis.

        Raises
        ------
        DataError
            If the chunk does not fit the table; nothing of it is appended then.
        """
        with self._lock:
            count, arrays = self._port.codec.chunk(chunk)
            self._track.extend(arrays, 0, count)

    def set(self, values: Mapping[str, Any]) -> None:
        """Give the per-trajectory columns of the trajectory before its end.

        Without them a table that has such columns publishes nothing of the trajectory before `end`.
        """
        with self._lock:
            self._track.describe(self._port.codec.trajectory_rows(values))

    def end(
        self,
        terminated: bool = False,
        final: Mapping[str, Any] | None = None,
        priority: Priority = None,
        *,
        trajectory: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        group: Key | None = None,
    ) -> None:
        """End the trajectory and submit its commit; `flush` waits for it.

        Parameters
        ----------
        terminated : bool
            True if the environment reached a terminal state, False if the trajectory was cut off.
        final : dict, optional
            Last values of any of the per-step columns, such as the observation after the last step.
        priority : float or array of one per item, optional
            Default: the largest raw priority so far. Refused when rows are already published.
        trajectory : dict, optional
            The per-trajectory columns, unless `set` gave them.
        timeout : float, optional
            Seconds to wait for memory or for a full window of commits.
        group : int, str or bytes, optional
            As for `Client.insert`; the per-trajectory columns are given with it, here.

        Raises
        ------
        DataError
            If something does not fit, or no step was appended.
        DeadlineExceeded
            The trajectory is still there; `end` may be called again.
        """
        timeout = seconds(timeout)
        with self._lock:
            self._track.check_open()
            codec = self._port.codec
            values = None if trajectory is None else codec.trajectory_rows(trajectory)
            if group is not None or self._port.table.group_size:
                values = [*codec.trajectory_rows(trajectory or {}), self._port.group_key(group)]
            last = None if final is None else codec.final(final)
            self._track.end(terminated, last, priority, values, timeout)

    def _unsent(self) -> int:
        return 0 if self._track.closed else self._track.unpublished

    def _publish(self, timeout: float | None) -> None:
        if self._by_rows and not self._track.closed:
            self._track.publish(timeout, wait=True)

    def _finish(self, timeout: float | None) -> bool:
        if self._track.closed:
            return False
        try:
            self._track.finish(timeout)
        except GearError as error:
            raise type(error)(
                f"writer closed: {self._track.unpublished} steps of an unended trajectory were dropped: {error}"
            ) from error
        return True

    def _refuse(self, why: str) -> None:
        self._track.refuse(why)
