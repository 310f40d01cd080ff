"""The supervisor: takes the name and the public port, starts the shards, answers discovery, cleans up.

It never touches a table. If it dies, its shards go on serving the clients they have, and the next supervisor of that
name takes them over. A shard that dies is started again; the others go on meanwhile.
"""

from __future__ import annotations

import hmac
import logging
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from gear.errors import ConnectionLost, GearError, ProtocolError, ServerConflict
from gear.server.adoption import check_shards
from gear.server.clients import limits
from gear.server.config import Options, memory_token, shard_count
from gear.server.declared import Creation
from gear.server.keys import Gate, ServerKeys
from gear.server.metrics import Exporter
from gear.server.process import Adopted, ShardProcess
from gear.server.restart import Shards
from gear.server.restored import begin_with
from gear.server.runtime import Claim, Place, Record, last_token
from gear.server.schedule import Checkpoints
from gear.server.strangers import Strangers
from gear.storage.memory import size_text
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import readable

logger = logging.getLogger(__name__)

_STOP_SECONDS, _SAVE_SECONDS = 10.0, 3600.0


class Supervisor:
    """A server from its start to its end.

    Parameters
    ----------
    options : Options
    announce : str -> None
        Called once with the ready line.

    Raises
    ------
    ServerConflict
        If name or port are in use, or memory of an earlier server cannot be taken up.
    """

    def __init__(self, options: Options, announce: Callable[[str], None]) -> None:
        self._options, self._announce = options, announce
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._strangers = Strangers(limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])[1])
        self._keys = ServerKeys(options.curve_keys) if options.curve_keys else None
        self._stopping = self._serving = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._shards: Shards | None = None
        self._place: Place | None = None
        self._claim: Claim | None = None
        self._port = 0
        self._exporter: Exporter | None = None
        self._checkpoints: Checkpoints | None = None
        self._restore = ""

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, or until the last shard is dead; 0 if none died."""
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self._asked_to_stop())
            port = self._bind()
            if self._options.metrics_port is not None:
                self._exporter = Exporter(self._options, self._living, shard_count(self._options.devices))
            name = self._options.name or f"gear-{port}"
            self._port = port
            self._place = Place(name)
            count = shard_count(self._options.devices)
            if self._options.checkpoint:
                self._checkpoints = Checkpoints(self._options.checkpoint, self._options.keep, name)
            key = "" if self._keys is None else self._keys.public
            self._claim = self._place.claim(
                self._options.discard, count, lambda claim: check_shards(claim, self._options, count, key)
            )
            if self._checkpoints is not None and not self._claim.living:  # those that live may be saving there
                self._checkpoints.tidy()
            self._restore = begin_with(self._options, self._claim, count)
            self._shards = Shards(
                self._options, name, self._claim, self._restore, None if self._keys is None else self._keys.pair
            )
            self._write(name)  # whoever comes after a crash from here on finds them
            if not self._shards.start(self._wake_reader, lambda: self._stopping):
                return 0 if self._stopping else 1
            self._restore = ""  # all is there: what is kept from here on is newer than the checkpoint
            self._write(name)
            address = f"{self._options.host}:{port}"
            if self._shards.found:
                logger.warning("took up %s of %s", self._shards.found, self._claim.directory)
            memory = memory_token(self._options.memory // count)
            line = (
                f"gear-server ready: address={address} name={name} devices={self._options.devices} "
                f"memory={memory if count == 1 else f'{count}x{memory}'}"
            )
            if self._exporter is not None:
                line += f" metrics={self._options.host}:{self._exporter.port}"
            own = None if self._keys is None else self._keys.own
            creation = Creation(self._options.tables, self._own_address, self._options.token, self._wake, own)
            return self._serve(name, creation, line)
        finally:
            self._end()

    @property
    def _own_address(self) -> str:
        """Where this process reaches its own server."""
        host = "127.0.0.1" if self._options.host == "0.0.0.0" else self._options.host
        return f"{host}:{self._port}"

    def _asked_to_stop(self) -> None:
        """The first signal ends the server in order, the second one at once: what is kept is kept as after a crash."""
        if self._stopping and self._shards is not None:
            for shard in self._shards.all:
                shard.kill()
        self.stop()

    def stop(self) -> None:
        """End `run` soon; from a signal handler or another thread."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            pass

    def _bind(self) -> int:
        router, host, port = self._router, self._options.host, self._options.port
        router.linger = 0
        router.setsockopt(zmq.MAXMSGSIZE, 1 << 16)
        router.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        if self._keys is not None:
            Gate(self._context, self._keys)
            self._keys.guard(router)
        try:
            if not port:
                return int(router.bind_to_random_port(f"tcp://{host}"))
            router.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            why = error.strerror.lower().partition(" (")[0]  # pyzmq adds the address
            raise ServerConflict(
                f"cannot listen on {host}:{port}: {why}; another server may run there: stop it or choose another --port"
            ) from None
        return port

    def _serve(self, name: str, creation: Creation, line: str) -> int:
        """Answer discovery until told to stop or no shard is left; say `line` when the tables are there."""
        shards = self._shards
        assert shards is not None
        poll = select.poll()
        watched: dict[int, ShardProcess | Adopted] = {shard.watch(): shard for shard in shards.all}
        starting: dict[int, tuple[ShardProcess, float]] = {}
        for descriptor in (int(self._router.fd), int(self._monitor.fd), self._wake_reader, *watched):
            poll.register(descriptor, select.POLLIN)
        while not self._stopping and watched:
            if not self._serving and creation.over:
                self._announce(line)
                self._serving = True
                if self._checkpoints is not None and self._options.checkpoint_every:
                    every, token = self._options.checkpoint_every, self._options.token
                    own = None if self._keys is None else self._keys.own
                    self._checkpoints.start(every, self._own_address, token, own)
            self._hear_connections()
            self._answer_all(name)
            came = dict(poll.poll(1 + shards.tend(starting.values()) * 1000))
            if self._wake_reader in came:
                os.read(self._wake_reader, 4096)
            for descriptor in came.keys() & starting.keys():
                if shards.says(*starting[descriptor]):
                    poll.unregister(descriptor)
                    del starting[descriptor]
            for descriptor in came.keys() & watched.keys():
                shard = watched.pop(descriptor)
                poll.unregister(descriptor)
                if starting.pop(shard.stdout, None) is not None:
                    poll.unregister(shard.stdout)
                successor = shards.died(shard)
                shard.end(0.0)
                if successor is not None:
                    watched[successor.watch()] = successor
                    starting[successor.stdout] = successor, time.monotonic()
                    poll.register(successor.watch(), select.POLLIN)
                    poll.register(successor.stdout, select.POLLIN)
                    try:
                        self._write(name)
                    except OSError:  # its directory is full, say: what was noted before is enough to find the shards
                        logger.exception("which processes serve cannot be noted down")
        return 0 if shards.complete else 1

    def _write(self, name: str) -> None:
        """Note down which processes serve, for the supervisor that comes after this one."""
        assert self._place is not None
        assert self._shards is not None
        shards = self._shards.all
        ports = [shard.address().port if shard.listed else shard.told.port for shard in shards]
        address = f"{self._options.host}:{self._port}"
        pids, restoring = [s.pid for s in shards], bool(self._restore) and not all(s.serves for s in shards)
        restoring &= self._claim is not None and not self._claim.kept  # what is kept is never removed for more
        self._place.write(Record(str(self._place.directory), os.getpid(), pids, address, ports, restoring))

    def _hear_connections(self) -> None:
        """Whoever asks is answered at once: of connections that stay, the oldest give way."""
        while readable(self._monitor):
            event = recv_monitor_message(self._monitor)
            heed = self._strangers.came if event["event"] == zmq.EVENT_ACCEPTED else self._strangers.left
            heed(event["value"])

    def _answer_all(self, name: str) -> None:
        router = self._router
        while readable(router):
            try:
                route, *parts = router.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            body: m.Message | None
            number: int | None = 0
            try:
                body = self._answer(name, wire.decode_request(parts))
            except GearError as error:
                number = wire.request_number(parts[0]) if parts else None
                body = m.Failed(type(error).__name__, str(error))
                logger.info("refused a message: %s", error)
            if number is not None:
                try:
                    router.send_multipart([route, wire.encode(m.Answer(m.PROTOCOL, number, body))], zmq.NOBLOCK)  # type: ignore[arg-type]
                except zmq.ZMQError:
                    pass

    def _answer(self, name: str, envelope: m.Envelope) -> m.Discovered:
        body = envelope.body
        if not isinstance(body, m.Discover):
            raise ProtocolError(f"{type(body).__name__} is for a shard; ask Discover here")
        if not hmac.compare_digest(body.token.encode(), self._options.token.encode()):
            raise wire.wrong_token(body.token, self._options.token)
        shards = self._living()
        if not shards:
            raise ConnectionLost("every shard of the server is gone; start it again")
        return m.Discovered(name, self._options.client_timeout, shards, shard_count(self._options.devices))

    def _living(self) -> list[m.Shard]:
        """How to reach the shards that serve, or soon will again."""
        return [] if self._shards is None else [shard.address() for shard in self._shards.all if shard.listed]

    def _end(self) -> None:
        """Stop the shards, remove what is not to be kept, let the name go."""
        if self._exporter is not None:
            self._exporter.close()
        if self._checkpoints is not None:
            self._checkpoints.stop()
        shards = [] if self._shards is None else [shard for shard in self._shards.all if not shard.ended]
        if self._shards is not None:
            self._shards.dismiss()
        for shard in shards:
            shard.terminate()
        seconds = _STOP_SECONDS if self._checkpoints is None else _SAVE_SECONDS
        deadline = time.monotonic() + seconds
        for shard in shards:
            if not shard.end(max(0.0, deadline - time.monotonic())) and self._shards is not None:
                name = self._shards.name_of(shard.index)
                logger.error("%s did not end within %g s and is killed", name, seconds)
        if self._checkpoints is not None:
            if self._serving and self._claim is not None:
                self._checkpoints.complete(last_token(self._claim.directory), shard_count(self._options.devices))
                self._checkpoints.tidy()  # of a save that was under way
            self._checkpoints.close()
        if self._place is not None:
            # What a server holds that never said it serves is nothing anybody wants back.
            found = self._claim is not None and self._claim.kept
            kept = self._place.leave(self._options.discard or not (self._serving or found))
            if kept:
                logger.warning(
                    "%s of tables are kept in %s; the next start of that name takes them up (--discard: removes them)",
                    size_text(kept), self._place.directory,
                )  # fmt: skip
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(0)
        self._context.term()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
