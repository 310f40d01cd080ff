"""Writing the trajectories of vectorised environments: one call appends a step of all of them.

A step is one assignment per column into a staging area that lies in private memory for all environments. Once a
block's worth of steps is there, and where an episode ends, the rows of each environment move to its `Track`,
which does everything else as for a single writer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gear.client.deadline import left, until
from gear.client.ends import End, endings, mask
from gear.client.stage import Stage
from gear.client.track import CLOSED, Track
from gear.client.writing import Writing
from gear.errors import DataError, GearError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gear.client.autoreset import Autoreset
    from gear.client.port import Port
    from gear.client.spread import Spread


class VectorWriter(Writing):
    """Appends steps of N environments, each with trajectories of its own; made by ``Client.writer(num_envs=N)``.

    What `Writer` promises of one trajectory holds for each. With ``publish="rows"`` rows become visible every
    `block_steps` steps, at `flush`, at an end, and before the same client samples. Leaving the context ends
    all unended trajectories as truncated.
    """

    def __init__(
        self, port: Port | Spread, publish: Literal["end", "rows"], num_envs: int, autoreset: Autoreset | None
    ) -> None:
        super().__init__(port, publish)
        self._n, self._autoreset = num_envs, autoreset
        self._tracks = [Track(port, self._by_rows) for _ in range(num_envs)]
        self._stage = Stage(port.codec, num_envs, port.layout.block_steps)
        self._at = 0  # steps staged
        self._first = [0] * num_envs  # of each environment: its first staged row not handed on
        self._resets = np.zeros(num_envs, np.bool_)  # whose next step is the reset of next-step autoreset
        self._any_resets = False
        self._finals: dict[int, Any] = {}
        self._owed: deque[End] = deque()

    def append(
        self,
        step: Mapping[str, Any],
        terminated: Any = None,
        truncated: Any = None,
        *,
        final: Mapping[str, Any] | None = None,
        priority: Any = None,
        trajectory: Mapping[str, Any] | None = None,
    ) -> None:
        """Append one step of all environments and end the trajectories of those whose episode it ended.

        Parameters
        ----------
        step : dict
            Every per-step column as [N, *shape].
        terminated, truncated : bool[N], optional
            Whether the step ended the episode.
        final : dict, optional
            Any of the per-step columns after the step, [N, *shape], such as
            ``{"obs": gear.final_observation(next_obs, infos)}``. Rows of episodes that ended are stored as
            their last values, the others are not looked at.
        priority : float[N], optional
            Of all items of each trajectory that ended. Default: the largest raw priority so far.
        trajectory : dict, optional
            The per-trajectory columns as [N, *shape], of which again only those that ended count.

        Raises
        ------
        DataError
            If something does not fit the table. Nothing is appended then, unless the message says so.
        """
        with self._lock:
            self._tracks[0].check_open()
            self._catch_up(None)
            at = self._at
            if at == self._stage.depth:
                at = self._hand_on()
            ends = self._ends(terminated, truncated, final, priority, trajectory)
            self._stage.put(step, at)
            if self._any_resets:
                self._pass_over(at)
            self._at = at = at + 1
            if ends:
                self._owe(ends)
                self._catch_up(None)
            if at == self._stage.depth and self._by_rows:
                self._hand_on()

    def set(self, values: Mapping[str, Any], envs: Any = None) -> None:
        """Give the per-trajectory columns, [N, *shape], of the present trajectories of all or some environments.

        Parameters
        ----------
        envs : bool[N], optional
            Which environments; default all.
        """
        with self._lock:
            self._tracks[0].check_open()
            self._catch_up(None)
            rows = self._port.codec.values_of(values, self._n)
            chosen = self._chosen(envs)
            begun = [i for i in chosen if self._tracks[i].begun]
            if begun:
                raise DataError(
                    f"set: rows of the trajectories of environments {begun[:5]} are published; give the "
                    "per-trajectory columns before"
                )
            for i in chosen:
                self._tracks[i].describe([row[i].copy() for row in rows])

    def end(
        self,
        terminated: bool = False,
        final: Mapping[str, Any] | None = None,
        *,
        envs: Any = None,
        trajectory: Mapping[str, Any] | None = None,
    ) -> None:
        """End the unended trajectories of all or some environments, as before ``envs.reset()``.

        Parameters
        ----------
        terminated : bool
            As for `Writer.end`.
        final, trajectory : dict, optional
            As for `append`.
        envs : bool[N], optional
            Which environments; default all. Those without a step since their last end are passed over.
        """
        with self._lock:
            self._tracks[0].check_open()
            self._catch_up(None)
            chosen = self._chosen(envs)
            ended = np.zeros(self._n, np.bool_)
            ended[[i for i in chosen if self._first[i] < self._at or self._tracks[i].open]] = True
            flags = np.full(self._n, bool(terminated))
            self._owed.extend(endings(self._port, self._tracks, self._by_rows, ended, flags, final, None, trajectory))
            self._resets[chosen] = False
            self._any_resets = bool(self._resets.any())
            self._catch_up(None)

    def _tell(self, version: int | None) -> None:
        self._tracks[0].check_open()
        self._catch_up(None)
        self._hand_on()  # what is staged has begun before
        for track in self._tracks:
            track.version = version

    def _unsent(self) -> int:
        if self._tracks[0].closed:
            return 0
        return sum(track.unpublished + self._at - first for track, first in zip(self._tracks, self._first, strict=True))

    def _publish(self, timeout: float | None) -> None:
        if self._tracks[0].closed:
            return
        deadline = until(timeout)
        self._catch_up(timeout)
        if self._by_rows:
            self._hand_on()
            for track in self._tracks:
                track.publish(left(deadline), wait=True)

    def _finish(self, timeout: float | None) -> bool:
        if self._tracks[0].closed:
            return False
        deadline = until(timeout)
        errors: list[GearError] = []
        dropped = 0
        try:
            self._catch_up(left(deadline))
        except GearError as error:
            errors.append(error)
        owed = {end.env for end in self._owed}  # what cannot be ended as it should be is not ended otherwise
        for i, track in enumerate(self._tracks):
            try:
                self._take(i)
                if i not in owed:
                    track.finish(left(deadline))
                    continue
            except GearError as error:
                errors.append(error)
            dropped += track.unpublished + self._at - self._first[i]
            track.drop(CLOSED)
        if errors:
            raise type(errors[0])(
                f"writer closed: {dropped} steps of unended trajectories were dropped: {errors[0]}"
            ) from errors[0]
        return True

    def _refuse(self, why: str) -> None:
        for track in self._tracks:
            track.refuse(why)

    def _ends(self, terminated: Any, truncated: Any, final: Any, priority: Any, trajectory: Any) -> list[End]:
        """The trajectories that end with the step, checked."""
        stopped, cut = mask("terminated", terminated, self._n), mask("truncated", truncated, self._n)
        ended = stopped | cut
        if not ended.any():
            return []
        if self._any_resets and (ended & self._resets).any():
            raise DataError(
                f"environment {int(np.argmax(ended & self._resets))} ended twice in a row, but the step after an end "
                "is a reset of next-step autoreset; open the writer with autoreset='same_step' or 'disabled'"
            )
        if final is None and self._autoreset is None:
            raise DataError(
                "an episode ended, and whether the next step resets the environment is unknown: open the writer "
                "with autoreset= (envs.metadata['autoreset_mode']), or give final="
            )
        return endings(self._port, self._tracks, self._by_rows, ended, stopped, final, priority, trajectory)

    def _pass_over(self, at: int) -> None:
        """Leave out row `at` of the environments that only were reset in it."""
        resets = self._resets
        if self._autoreset is None:  # nobody said that they are: a reset starts from the final observation
            for i in np.flatnonzero(resets).tolist():
                for rows, final in zip(self._stage.of_env[i], self._finals[i], strict=True):
                    if final is not None and rows[at].tobytes() != final.tobytes():
                        raise DataError(
                            f"environment {i}: the step after an end does not start from the final observation, as it "
                            "does with next-step autoreset; open the writer with autoreset= as the environments are "
                            "(envs.metadata['autoreset_mode'])"
                        )
        for i in np.flatnonzero(resets).tolist():
            self._first[i] = at + 1
        self._resets[:] = self._any_resets = False

    def _owe(self, ends: list[End]) -> None:
        self._owed.extend(ends)
        if self._autoreset in ("next_step", None):
            self._resets[[end.env for end in ends]] = self._any_resets = True
        if self._autoreset is None:
            self._finals = {end.env: end.final for end in ends}

    def _catch_up(self, timeout: float | None) -> None:
        """Submit the trajectories that have ended; one that cannot be stays owed."""
        refused: DataError | None = None
        while self._owed:
            end = self._owed[0]
            self._take(end.env)
            try:
                self._tracks[end.env].end(end.terminated, end.final, end.priority, end.values, timeout)
            except DataError as error:
                if end.priority is None:
                    raise
                self._owed[0] = end._replace(priority=None)
                refused = DataError(
                    f"environment {end.env}: {error}; the step was appended and the trajectory ended with the default "
                    "priority"
                )
            else:
                self._owed.popleft()
        if refused is not None:
            raise refused

    def _hand_on(self) -> int:
        """Move all staged rows to their tracks; returns the next row of the staging area."""
        for i in range(self._n):
            self._take(i)
        self._first = [0] * self._n
        self._at = 0
        return 0

    def _take(self, i: int) -> None:
        """Move the staged rows of environment `i` to its track."""
        at, track, rows = self._at, self._tracks[i], self._stage.of_env[i]
        while self._first[i] < at:
            self._first[i] += track.fill(rows, self._first[i], at)
            track.filled()

    def _chosen(self, envs: Any) -> list[int]:
        return list(range(self._n)) if envs is None else np.flatnonzero(mask("envs", envs, self._n)).tolist()
