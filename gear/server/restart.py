"""The shards of a server over time: started, taken over from a supervisor that died, started again when they die.

A shard that dies is started again where it was: same directory, same port, so that clients find it. A spare process
with all kernels loaded waits for that, so that it takes a fraction of a second. One that keeps dying is given up: its
door is removed, and clients know that it does not come back.
"""

from __future__ import annotations

import logging
import select
import subprocess
import time
from typing import TYPE_CHECKING

from msgspec import structs

from gear.errors import ServerConflict
from gear.server.config import Options, Ready, ShardOptions, shard_count
from gear.server.process import Adopted, ShardProcess, launch
from gear.server.runtime import Claim, door_of, last_token, shard_directory
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

MINUTE = 60.0
SPARE_SECONDS = 20.0
"""After a start, or a death, until the next spare process is launched: short-lived servers have none."""

_START_SECONDS = 300.0  # kernels may have to be compiled
_STOP_SECONDS = 10.0


class Shards:
    """The shards of one server.

    Parameters
    ----------
    options : Options
    name : str
        Of the server.
    claim : Claim
        Where they lie.
    restore : str
        The checkpoint that they begin with, if any.
    pair : (str, str), optional
        Of keys, see `ShardOptions`.

    Attributes
    ----------
    all : by their numbers; of one that is started again the new process.
    restarts : how often each was started again.
    """

    def __init__(
        self,
        options: Options,
        name: str,
        claim: Claim,
        restore: str = "",
        pair: tuple[str, str] | None = None,
    ) -> None:
        self._options, self._claim = options, claim
        count = shard_count(options.devices)
        self.all: list[ShardProcess | Adopted] = []
        self.restarts = [0] * count
        self._deaths: list[list[float]] = [[] for _ in range(count)]
        self._spare: subprocess.Popen[bytes] | None = None
        self._spare_at = time.monotonic() + SPARE_SECONDS
        for index in range(count):
            port = claim.ports[index] if index < len(claim.ports) else 0
            directory = str(shard_directory(claim.directory, index, count))
            told = ShardOptions(
                name, options.host, index, count, directory, options.memory // count, options.token,
                options.log_level, options.discard, options.client_timeout, port, options.curve_keys,
                options.checkpoint, options.keep, last_token(claim.directory) if options.checkpoint else "", restore,
                pair, gpu=options.gpus[index] if options.gpus else "", device_memory=options.device_memory,
                to_host=options.to_host, beside=claim.kept,
            )  # fmt: skip
            pid = claim.living.get(index)
            self.all.append(self._adopted(told, pid, port) or ShardProcess(told))

    def _adopted(self, told: ShardOptions, pid: int | None, port: int) -> Adopted | None:
        """The shard that lives already, None if there is none, or none any more."""
        if pid is None:
            return None
        try:
            adopted = Adopted(told, pid, port)
        except ProcessLookupError:
            return None
        logger.warning("%s (process %d) outlived its supervisor and is taken over", self.name_of(told.index), pid)
        return adopted

    def name_of(self, index: int) -> str:
        """A shard for people."""
        return "the shard" if len(self.all) == 1 and len(self.restarts) == 1 else f"shard {index}"

    @property
    def serving(self) -> int:
        """How many live."""
        return sum(shard.serves for shard in self.all)

    @property
    def complete(self) -> bool:
        """Whether none was given up."""
        return not any(shard.ended for shard in self.all)

    def start(self, wake: int, stopping: Callable[[], bool]) -> bool:
        """Wait until all serve; False if one does not, or if asked to stop (`wake` is readable then).

        Raises
        ------
        ServerConflict
            If one cannot take up what is kept.
        """
        deadline = time.monotonic() + _START_SECONDS
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for shard in self.all:
            if shard.ready is None:
                poll.register(shard.stdout, select.POLLIN)
        while not stopping() and any(shard.ready is None for shard in self.all):
            came = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not came:
                late = next(shard.index for shard in self.all if shard.ready is None)
                logger.error("%s did not start within %g s", self.name_of(late), _START_SECONDS)
                return False
            for shard in self.all:
                if shard.stdout not in came:
                    continue
                if not shard.hear():
                    code = shard.wait(_STOP_SECONDS)
                    logger.error("%s ended with exit code %s before it served", self.name_of(shard.index), code)
                    return False
                if shard.ready is not None:
                    poll.unregister(shard.stdout)
                    if shard.ready.refused:
                        raise ServerConflict(f"{self.name_of(shard.index)}: {shard.ready.refused}")
        return not stopping()

    @property
    def found(self) -> str:
        """What was taken up, in words; empty if nothing was."""
        ready = [shard.ready for shard in self.all if shard.ready is not None]
        tables = max((one.tables for one in ready), default=0)
        if not tables:
            return ""
        damaged = sum(one.damaged for one in ready)
        return (
            f"{tables} {'table' if tables == 1 else 'tables'}, {sum(one.trajectories for one in ready)} trajectories, "
            f"{size_text(sum(one.nbytes for one in ready))}" + (f", {damaged} damaged entries left out" * bool(damaged))
        )

    def tend(self, starting: Iterable[tuple[ShardProcess, float]] = ()) -> float:
        """Do what it is time for; seconds until there is more.

        That is to have a spare process ready, and to give up shards that are `starting` again, each since a time by
        `time.monotonic()`, and do not come so far.
        """
        if self._options.max_restarts <= 0:
            return MINUTE
        now = time.monotonic()
        if now >= self._spare_at and (self._spare is None or self._spare.poll() is not None):
            try:
                self._spare = launch(self._options.log_level)
            except OSError:
                logger.exception("a spare process cannot be started")
                self._spare_at = now + SPARE_SECONDS
        due = [self._spare_at]
        for shard, since in starting:
            due.append(since + _START_SECONDS)
            if now >= due[-1] and shard.ready is None:
                shard.ready = Ready(refused=f"it did not start within {_START_SECONDS:g} s")
                shard.kill()  # `died` is told
        return min((at - now for at in due if at > now), default=MINUTE)

    def _take_spare(self) -> subprocess.Popen[bytes] | None:
        spare, self._spare, self._spare_at = self._spare, None, time.monotonic() + SPARE_SECONDS
        return spare if spare is not None and spare.poll() is None else None

    def dismiss(self) -> None:
        """End the spare process."""
        if self._spare is not None:
            self._spare.kill()
            self._spare.communicate()
            self._spare = None

    def died(self, shard: ShardProcess | Adopted) -> ShardProcess | None:
        """A shard has died: the process that takes its place, None if it is given up."""
        code, now = shard.wait(), time.monotonic()
        deaths = self._deaths[shard.index] = [t for t in self._deaths[shard.index] if now - t < MINUTE] + [now]
        what = f"{self.name_of(shard.index)} died" + (
            f" with exit code {code}" if isinstance(shard, ShardProcess) else ""
        )
        others = self.serving
        meanwhile = f"; {others} of {len(self.all)} shards go on serving" if others else ""
        why = "" if shard.ready is None else shard.ready.refused
        if not why and len(deaths) > self._options.max_restarts:
            why = f"it died {len(deaths)} times within a minute" if self._options.max_restarts else "as told"
        successor = None
        if not why:
            ready = shard.ready or shard.expected
            told = shard.told if ready is None else structs.replace(shard.told, port=ready.port, restore="")
            try:
                successor = ShardProcess(told, ready, self._take_spare())
                successor.watch()
            except OSError as error:  # the others go on
                logger.exception("a process cannot be started")
                why = f"it cannot be: {error}"
                if successor is not None:
                    successor.end(0.0)
        if why or successor is None:
            shard.ended = True
            door_of(self._claim.directory, shard.index, len(self.all)).unlink(missing_ok=True)
            logger.error("%s and is not started again (%s)%s", what, why, meanwhile)
            return None
        self.restarts[shard.index] += 1
        logger.error("%s and is started again%s", what, meanwhile)
        self.all[shard.index] = successor
        return successor

    def says(self, shard: ShardProcess, since: float) -> bool:
        """Take in what a shard that was started again says; whether it has nothing more to say."""
        if not shard.hear():
            return True
        if shard.ready is None:
            return False
        if not shard.ready.refused:
            logger.warning(
                "%s serves again after %.2f s: %d tables, %d trajectories%s",
                self.name_of(shard.index), time.monotonic() - since, shard.ready.tables, shard.ready.trajectories,
                f", {shard.ready.damaged} damaged entries left out" if shard.ready.damaged else "",
            )  # fmt: skip
        return True
