"""The supervisor: takes the name and the public port, starts the shard, answers discovery, cleans up.

It never touches a table. If it dies, its shard goes on serving the clients it has and keeps the name.
"""

from __future__ import annotations

import hmac
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import msgspec
import zmq

from gear.errors import GearError, ProtocolError, ServerConflict
from gear.server.config import Options, Ready, ShardOptions, memory_token
from gear.server.declared import Creation
from gear.server.metrics import Exporter
from gear.server.runtime import Place, Record
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
        self._shard: subprocess.Popen[bytes] | None = None
        self._place: Place | None = None
        self._ready: Ready | None = None
        self._exporter: Exporter | None = None

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT (0) or until the shard dies (1)."""
        try:
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self.stop())
            port = self._bind()
            if self._options.metrics_port is not None:
                self._exporter = Exporter(self._options, self._shards)
            name = self._options.name or f"gear-{port}"
            self._place = Place(name)
            directory = self._place.claim(self._options.discard)
            self._start(name, str(directory))
            if self._ready is None:
                return 0 if self._stopping else 1
            address = f"{self._options.host}:{port}"
            assert self._shard is not None
            self._place.write(Record(str(directory), os.getpid(), [self._shard.pid], address))
            line = (
                f"gear-server ready: address={address} name={name} devices={self._options.devices} "
                f"memory={memory_token(self._options.memory)}"
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

    def _start(self, name: str, directory: str) -> None:
        """Start the shard and wait until it serves."""
        o = self._options
        told = ShardOptions(name, o.host, 0, directory, o.memory, o.token, o.log_level, o.discard, o.client_timeout)
        assert self._place is not None
        self._shard = subprocess.Popen(
            [sys.executable, "-m", "gear.server.shard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._place.descriptor,),  # the name stays taken as long as the shard lives
        )
        assert self._shard.stdin is not None
        try:
            with self._shard.stdin as stream:
                stream.write(msgspec.json.encode(told) + b"\n")
        except BrokenPipeError:
            pass
        assert self._shard.stdout is not None
        poll, stdout, line = select.poll(), self._shard.stdout.fileno(), b""
        for descriptor in (stdout, self._wake_reader):
            poll.register(descriptor, select.POLLIN)
        while not self._stopping and not line.endswith(b"\n"):
            ready = dict(poll.poll(_START_SECONDS * 1000))
            if not ready:
                logger.error("the shard did not start within %g s", _START_SECONDS)
                return
            if stdout in ready:
                data = os.read(stdout, 4096)
                if not data:
                    logger.error("the shard ended with exit code %s before it served", self._shard.wait(_STOP_SECONDS))
                    return
                line += data
        if not self._stopping:
            self._ready = msgspec.json.decode(line, type=Ready)

    def _serve(self, name: str, creation: Creation, line: str) -> int:
        """Answer discovery until told to stop or the shard is gone; say `line` when the tables are there."""
        assert self._shard is not None
        poll, shard = select.poll(), os.pidfd_open(self._shard.pid)
        for descriptor in (int(self._router.fd), self._wake_reader, shard):
            poll.register(descriptor, select.POLLIN)
        try:
            while not self._stopping:
                if not self._serving and creation.over:
                    self._announce(line)
                    self._serving = True
                self._answer_all(name)
                came = dict(poll.poll(60_000))
                if self._wake_reader in came:
                    os.read(self._wake_reader, 4096)
                if shard in came:
                    code = self._shard.wait()
                    logger.error("the shard died with exit code %d; this release does not start another one", code)
                    return 1
        finally:
            os.close(shard)
        return 0

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
        return m.Discovered(name, self._options.client_timeout, self._shards())

    def _shards(self) -> list[m.Shard]:
        """How to reach the shards that serve."""
        return [] if self._ready is None else [m.Shard(0, self._ready.port, self._ready.socket)]

    def _end(self) -> None:
        """Stop the shard, remove what is not to be kept, let the name go."""
        if self._exporter is not None:
            self._exporter.close()
        shard = self._shard
        if shard is not None:
            if shard.poll() is None:
                shard.terminate()
                try:
                    shard.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    logger.error("the shard did not end within %g s and is killed", _STOP_SECONDS)
                    shard.kill()
                    shard.wait()
            if shard.stdout is not None:
                shard.stdout.close()
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
