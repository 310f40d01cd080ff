"""The supervisor: takes the name and the public port, starts the shards, answers discovery, cleans up.

It never touches a table. If it dies, its shards go on serving the clients they have and keep the name. If one of
several shards dies, it goes on with the others.
"""

from __future__ import annotations

import hmac
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from gear.errors import GearError, ProtocolError, ServerConflict
from gear.server.config import Options, ShardOptions, memory_token, shard_count
from gear.server.declared import Creation
from gear.server.metrics import Exporter
from gear.server.process import ShardProcess
from gear.server.runtime import Place, Record, shard_directory
from gear.storage.memory import size_text
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import readable

logger = logging.getLogger(__name__)

_START_SECONDS = 300.0  # kernels may have to be compiled
_STOP_SECONDS = 10.0


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
        If name or port are in use, or memory of an earlier server is kept.
    """

    def __init__(self, options: Options, announce: Callable[[str], None]) -> None:
        self._options, self._announce = options, announce
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._stopping = self._serving = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._shards: list[ShardProcess] = []
        self._place: Place | None = None
        self._exporter: Exporter | None = None

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, or until the last shard is dead; 0 if none died."""
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self.stop())
            port = self._bind()
            if self._options.metrics_port is not None:
                self._exporter = Exporter(self._options, self._living, shard_count(self._options.devices))
            name = self._options.name or f"gear-{port}"
            self._place = Place(name)
            directory = self._place.claim(self._options.discard)
            if not self._start(name, directory):
                return 0 if self._stopping else 1
            address = f"{self._options.host}:{port}"
            self._place.write(Record(str(directory), os.getpid(), [s.pid for s in self._shards], address))
            count = len(self._shards)
            memory = memory_token(self._options.memory // count)
            line = (
                f"gear-server ready: address={address} name={name} devices={self._options.devices} "
                f"memory={memory if count == 1 else f'{count}x{memory}'}"
            )
            if self._exporter is not None:
                line += f" metrics={self._options.host}:{self._exporter.port}"
            host = "127.0.0.1" if self._options.host == "0.0.0.0" else self._options.host
            creation = Creation(self._options.tables, f"{host}:{port}", self._options.token, self._wake)
            return self._serve(name, creation, line)
        finally:
            self._end()

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
        try:
            if not port:
                return int(router.bind_to_random_port(f"tcp://{host}"))
            router.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            raise ServerConflict(
                f"cannot listen on {host}:{port}: {error.strerror.lower()}; another server may run there: stop it or "
                "choose another --port"
            ) from None
        return port

    def _start(self, name: str, directory: Path) -> bool:
        """Start the shards and wait until all serve; whether they do."""
        o, count = self._options, shard_count(self._options.devices)
        assert self._place is not None
        for index in range(count):
            told = ShardOptions(
                name, o.host, index, count, str(shard_directory(directory, index, count)), o.memory // count, o.token,
                o.log_level, o.discard, o.client_timeout,
            )  # fmt: skip
            self._shards.append(ShardProcess(told, self._place.descriptor))
        deadline = time.monotonic() + _START_SECONDS
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        for shard in self._shards:
            poll.register(shard.stdout, select.POLLIN)
        while not self._stopping and any(shard.ready is None for shard in self._shards):
            came = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not came:
                logger.error("%s did not start within %g s", self._name_of(self._starting()), _START_SECONDS)
                return False
            for shard in self._shards:
                if shard.stdout not in came:
                    continue
                if not shard.hear():
                    code = shard.wait(_STOP_SECONDS)
                    logger.error("%s ended with exit code %s before it served", self._name_of(shard), code)
                    return False
                if shard.ready is not None:
                    poll.unregister(shard.stdout)
        return not self._stopping

    def _starting(self) -> ShardProcess:
        return next(shard for shard in self._shards if shard.ready is None)

    def _name_of(self, shard: ShardProcess) -> str:
        return "the shard" if len(self._shards) == 1 else f"shard {shard.index}"

    def _serve(self, name: str, creation: Creation, line: str) -> int:
        """Answer discovery until told to stop or no shard is left; say `line` when the tables are there."""
        poll, shards = select.poll(), {shard.watch(): shard for shard in self._shards}
        for descriptor in (int(self._router.fd), self._wake_reader, *shards):
            poll.register(descriptor, select.POLLIN)
        while not self._stopping and shards:
            if not self._serving and creation.over:
                self._announce(line)
                self._serving = True
            self._answer_all(name)
            came = dict(poll.poll(60_000))
            if self._wake_reader in came:
                os.read(self._wake_reader, 4096)
            for descriptor in came.keys() & shards.keys():
                shard = shards.pop(descriptor)
                poll.unregister(descriptor)
                code = shard.wait()
                rest = f"; {len(shards)} of {len(self._shards)} shards go on serving" if shards else ""
                logger.error(
                    "%s died with exit code %d; this release does not start another one%s",
                    self._name_of(shard), code, rest,
                )  # fmt: skip
        return 0 if len(shards) == len(self._shards) else 1

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
            raise wire.wrong_token(body.token)
        return m.Discovered(name, self._options.client_timeout, self._living(), len(self._shards))

    def _living(self) -> list[m.Shard]:
        """How to reach the shards that serve."""
        return [s.address() for s in self._shards if s.serves]

    def _end(self) -> None:
        """Stop the shards, remove what is not to be kept, let the name go."""
        if self._exporter is not None:
            self._exporter.close()
        for shard in self._shards:
            shard.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for shard in self._shards:
            if not shard.end(max(0.0, deadline - time.monotonic())):
                logger.error("%s did not end within %g s and is killed", self._name_of(shard), _STOP_SECONDS)
        if self._place is not None:
            # What a server holds that never said it serves is nothing anybody wants back.
            kept = self._place.leave(self._options.discard or not self._serving)
            if kept:
                logger.warning(
                    "%s of tables are kept in %s; start with --discard to remove them",
                    size_text(kept), self._place.directory,
                )  # fmt: skip
        self._router.close(0)
        self._context.term()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
