"""A shard: the process that owns the tables of one device, one thread around one poll.

`python -m gear.server.shard` reads its options as one line of JSON, says on one line that it serves, and
serves until SIGTERM. It outlives its supervisor. No message, whatever is in it, may end it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import hmac
import logging
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

import gear
from gear.errors import GearError, ProtocolError
from gear.server import runtime
from gear.server.bulk import Rows
from gear.server.clients import Client, Clients, limits
from gear.server.config import Ready, ShardOptions
from gear.server.device import take_device
from gear.server.flows import Flow
from gear.server.keys import ServerKeys
from gear.server.lanes import Lanes
from gear.server.lost import drop_lost, ended
from gear.server.restored import restore
from gear.server.router import Router
from gear.server.saves import Shelf
from gear.server.service import Service
from gear.server.strangers import Strangers
from gear.server.tables import Place
from gear.server.takeup import take_up
from gear.server.warm import warm
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import Buffer, receive_parts
from gear.transport.door import CLIENTS, DOOR, take_door
from gear.transport.lane import LANE

logger = logging.getLogger(__name__)

_ROUND = 256
"""Messages handled before timers are looked at."""

_PUSH = 0
_LINGER = 300
"""Milliseconds that the last answers have to leave, at an end in order."""

_AGAIN = (m.Collect, m.Fetch, m.Read)


class Shard:
    """The sockets of a shard and its loop."""

    def __init__(self, options: ShardOptions) -> None:
        self._options = options
        self._directory = Path(options.directory)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        (self._directory / CLIENTS).mkdir(mode=0o700, exist_ok=True)
        self._door, nonce, self._era = take_door(self._directory / DOOR)
        self._identity = hashlib.sha256(nonce).digest()[:16]
        path = str(self._directory / runtime.SOCKET)
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.epoll()
        clients, strangers = limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._clients = Clients(self._directory, nonce, m.FORGET * options.client_timeout, self._era, clients)
        self._strangers = Strangers(strangers)
        place = Place(
            self._directory, options.index, options.shards, options.memory, self._era, options.gpu,
            options.device_memory,
        )  # fmt: skip
        shelf = Shelf(options.checkpoint, options.keep, options.name)
        self._service = Service(
            place, self._clients, self._send, self.wake, self._about, options.token, options.client_timeout, shelf
        )
        tables = self._service.tables
        tables.lost = drop_lost(self._directory)
        arenas = {}
        if options.restore:
            beside = tables if options.beside else None
            arenas = restore(
                Path(options.restore), place, self._service.weights, options.checkpoint, options.to_host, beside
            )
        found = take_up(place, tables, self._clients, arenas)
        self._keys = keys = ServerKeys(options.curve_keys, options.curve_pair) if options.encrypted else None
        self._service.peers.encrypted = options.encrypted
        self._router = Router(path, options.host, options.client_timeout, options.port, keys)
        self.ready = Ready(self._router.port, path, found.tables, found.trajectories, found.nbytes, found.damaged)
        for descriptor in (self._router.descriptor, self._router.monitor_descriptor, self._wake_reader):
            self._poll.register(descriptor, select.EPOLLIN)
        self._lanes = Lanes(
            self._directory / LANE,
            None if options.encrypted else options.host,
            self._clients,
            self._welcome,
            self._hear,
            self._poll,
            self.wake,
        )
        self._clients.hang_up = self._lanes.leave
        self._live: set[int] = set()
        self._heard: set[tuple[int, int, int]] = set()
        self._stopping = False
        self._started = time.time()
        self._received = self._refused = self._dropped = 0

    def wake(self) -> None:
        """End the poll; from any thread or signal handler."""
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            pass

    def wake_on_signals(self) -> None:
        """Let a signal end the poll, also one that comes just before it: its handler runs between two calls only."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def stop(self) -> None:
        """End `serve` soon."""
        self._stopping = True
        self.wake()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    # The loop

    def serve(self) -> None:
        """Serve until `stop`."""
        self._hear_connections()  # a socket's descriptor signals only what comes after somebody found nothing
        lanes, router, timers, more = self._lanes, self._router, self._service.timers, True
        while not self._stopping:
            if self._service.lending.active:
                self._listen_to_shards()
            now = time.monotonic()
            if lanes.busy:
                lanes.resume()
            spoken = []
            for descriptor, events in self._poll.poll(0.0 if more or lanes.busy else self._patience(now)):
                if descriptor == router.monitor_descriptor:  # before messages, as descriptors are reused
                    self._hear_connections()
                elif descriptor == router.descriptor:
                    router.used = True
                elif descriptor == self._wake_reader:
                    os.read(self._wake_reader, 4096)
                    self._lanes.finish()
                    self._service.finish()
                else:
                    spoken.append((descriptor, events))
            # What was sent by the router may have taken the signal of a message that has come meanwhile.
            more = router.used and self._hear_messages()
            for descriptor, events in spoken:
                lanes.hear(descriptor, events)
            now = time.monotonic()
            timers.tick(now)
            if self._clients.silent:
                self._bury(now)
            more = more or router.used

    def _bury(self, now: float) -> None:
        """Free what clients held that are found dead."""
        for client in self._clients.dead(now):
            logger.info("client %s is dead, what it held is free", client.identity.hex()[:8])
            self._service.fence(client)

    def _listen_to_shards(self) -> None:
        """Have answers of other shards end the poll."""
        wanted = self._service.lending.descriptors()
        if wanted != self._heard:  # what is not wanted any more is closed, and so waited for no more
            for _, _, descriptor in wanted - self._heard:
                with contextlib.suppress(FileExistsError):
                    self._poll.register(descriptor, select.EPOLLIN)
            self._heard = wanted

    def _patience(self, now: float) -> float:
        """Seconds until something is due, -1 if nothing is."""
        due = self._service.timers.due
        if self._clients.silent and (check := self._clients.next_check()) is not None:
            due = min(due, check)
        if due <= now:
            return 0.0
        return -1.0 if due == float("inf") else min(due - now, 3600.0) + 0.001

    def _hear_connections(self) -> None:
        """Take in who connected and whose connection broke: always before messages, as descriptors are reused."""
        for accepted, descriptor in self._router.events():
            if accepted:
                self._live.add(descriptor)
                self._strangers.came(descriptor)
            else:
                self._live.discard(descriptor)
                self._strangers.left(descriptor)
                client = self._clients.lost(descriptor)
                if client is not None:
                    logger.info("client %s fell silent", client.identity.hex()[:8])
                    self._service.suspend(client)

    def _hear_messages(self) -> bool:
        """Handle what has arrived; whether more may be there."""
        router, socket = self._router, self._router.socket
        for _ in range(_ROUND):
            if not router.arrived():
                return False
            try:
                route = socket.recv(zmq.NOBLOCK, copy=False)
                client = self._clients.find(route.bytes)
                parts = receive_parts(socket, client is None or client.lock is None) if route.more else []
            except zmq.ZMQError:
                return False
            if client is not None:
                self._hear(client, parts, route)
            else:
                self._hear_stranger(route, parts)
        return True

    def _hear(self, client: Client, parts: list[Buffer], route: zmq.Frame | None = None) -> None:
        """Handle a message of a client, whichever way it came; nothing in it may end this process."""
        self._received += 1
        try:
            envelope = wire.decode_request(parts)
            if envelope.request > client.last:
                client.last = envelope.request
                if client.answers:
                    client.forget_answered(envelope.answered)
                self._service.handle(client, envelope, parts)
            elif route is not None and isinstance(envelope.body, m.Hello):
                self._hello(route, envelope.body)
            elif envelope.request in client.answers:  # asked again because the connection broke
                self._transmit(client, client.answers[envelope.request])
            elif isinstance(envelope.body, _AGAIN):  # it changes nothing, and its answer was not kept
                self._service.handle(client, envelope, parts)
        except ProtocolError as error:
            self._refuse(client.route, wire.request_number(parts[0]) if parts else None, error)
        except Exception:
            logger.exception("a message of %d parts could not be handled", len(parts))
            self._dropped += 1

    def _hear_stranger(self, route: zmq.Frame, parts: list[Buffer]) -> None:
        """Handle a message on a connection that nobody has greeted on."""
        self._received += 1
        try:
            envelope = wire.decode_request(parts)
            if isinstance(envelope.body, m.Hello):
                self._hello(route, envelope.body)
            else:
                self._refuse(route.bytes, envelope.request, ProtocolError("expected Hello first on a connection"))
        except ProtocolError as error:
            self._refuse(route.bytes, wire.request_number(parts[0]) if parts else None, error)
        except Exception:
            logger.exception("a message of %d parts could not be handled", len(parts))
            self._dropped += 1

    def _hello(self, route: zmq.Frame, hello: m.Hello) -> None:
        sender = route.bytes
        if not hmac.compare_digest(hello.token.encode(), self._options.token.encode()):
            self._refuse(sender, 0, wire.wrong_token(hello.token, self._options.token))
            return
        self._hear_connections()
        descriptor = int(route.get(zmq.SRCFD))  # type: ignore[arg-type]
        if descriptor not in self._live:  # it broke before its first message was read
            return
        try:
            greeted = self._clients.hello(hello, sender, descriptor)
        except GearError as error:
            self._refuse(sender, 0, error)
            return
        if greeted is None:
            return
        client, gone, resumed = greeted
        self._strangers.left(descriptor)
        if gone is not None:
            self._service.suspend(gone)
        if resumed:
            logger.info("client %s is back", client.identity.hex()[:8])
        self._welcome(client, resumed)
        self._service.resume(client)

    def _welcome(self, client: Client, resumed: bool = True) -> None:
        """Answer the greeting; on the lane once that is there."""
        port, key = (0, b"") if client.lane is not None else (self._lanes.port, client.key)
        self._send(client, _PUSH, m.Welcome(self._identity, str(self._directory), resumed, self._era, port, key), [])

    # Sending

    def _send(
        self,
        client: Client,
        request: int,
        body: m.Message,
        frames: list[bytes],
        rows: Sequence[Rows] | Flow = (),
        kept: bool = True,
    ) -> None:
        parts = [wire.encode(m.Answer(m.PROTOCOL, request, body)), *frames]  # type: ignore[arg-type]
        if request != _PUSH and kept:
            client.remember(request, parts)
        lane = client.lane
        if isinstance(rows, Flow):
            if lane is not None:
                self._lanes.send(client, lane, parts, rows)
        elif rows and isinstance(rows[0], zmq.Frame):  # ZeroMQ's thread sends them from where they are, lane or not
            if not (client.silent or client.cut_off):
                self._route(client.route, [*parts, *rows])
        else:
            self._transmit(client, [*parts, *rows])  # type: ignore[list-item]

    def _refuse(self, route: bytes, request: int | None, error: GearError) -> None:
        self._refused += 1
        logger.info("refused a message: %s", error)
        if request is None:
            self._dropped += 1
        else:
            answer = m.Answer(m.PROTOCOL, request, m.Failed(type(error).__name__, str(error)))
            self._route(route, [wire.encode(answer)])

    def _transmit(self, client: Client, parts: Sequence[Buffer]) -> None:
        lane = client.lane
        if lane is not None:
            self._lanes.send(client, lane, parts)
        elif not (client.silent or client.cut_off):
            self._route(client.route, parts)

    def _route(self, route: bytes, parts: Sequence[Buffer | Rows]) -> None:
        if not self._router.send(route, parts):  # a resumed client asks again
            self._dropped += 1

    def _about(self) -> dict[str, Any]:
        return {
            "name": self._options.name,
            "version": getattr(gear, "__version__", ""),
            "protocol": m.PROTOCOL,
            "devices": self._options.gpu or "cpu",
            "host": self._options.host,
            "port": self._router.port,
            "curve_key": "" if self._keys is None else self._keys.public,
            "shard": self._options.index,
            "memory_limit": self._options.memory,
            "lost_with_device": self._service.tables.lost.info(),
            "uptime": time.time() - self._started,
            "restarts": self._era,
            "messages": {"received": self._received, "refused": self._refused, "dropped": self._dropped},
        }

    def save(self) -> None:
        """Nobody is served any more, which clients are told: save what there is, if there is where to."""
        kept = not self._options.discard and len(self._service.tables) > 0
        for client in self._clients:
            self._send(client, _PUSH, m.Ending(kept), [])
        if self._options.last:
            self._service.saves.last(self._options.last)

    def close(self) -> None:
        """Stop answering and remove what is not to be kept."""
        os.close(self._door)  # first: clients whose connection breaks now know that this process is gone
        self._lanes.close()
        self._router.close(_LINGER if self._stopping else 0)
        self._service.close()
        self._router.end()
        signal.set_wakeup_fd(-1)
        self._clients.close()
        for hosted in self._service.tables:
            if hosted.stored.arena is not None and not self._options.discard:
                ended(self._directory, hosted.stored)
            if hosted.stored.on_device is not None:
                hosted.stored.close(keep=hosted.stored.arena is None)  # rows there end with this process
        runtime.clear(self._directory, self._options.discard)
        if self._options.shards > 1:
            with contextlib.suppress(OSError):  # others are still there, or what is to be kept
                self._directory.parent.rmdir()


def _heard() -> bool:
    """Whether the supervisor is there that is to be told; another one may have come meanwhile and act in its place."""
    poll = select.poll()
    poll.register(1, 0)  # errors are always said
    return not poll.poll(0)


def _say(ready: Ready) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb") as out:  # it is found by its door
        out.write(msgspec.json.encode(ready) + b"\n")


def _end(shard: Shard) -> None:
    """SIGTERM ends the shard when it has done what it is at, a second one at once: its memory is as after a crash."""
    if shard.stopping:
        os._exit(128 + signal.SIGTERM)
    shard.stop()


def main() -> int:
    """Serve as the supervisor says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the supervisor too, which ends its shards
    log = "%(asctime)s shard{} %(levelname)s %(name)s: %(message)s"
    level = max(logging.INFO, logging.getLevelName(sys.argv[1].upper()))  # Numba says everything at a lower one
    logging.basicConfig(level=level, format=log.format(""))
    warm()  # before there is anything to do: a spare one is ready at once
    line = sys.stdin.buffer.readline()
    if not line:  # it was never needed
        return 0
    options = msgspec.json.decode(line, type=ShardOptions)
    logging.basicConfig(level=options.log_level.upper(), format=log.format(f" {options.index}"), force=True)
    if not _heard():
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    try:
        if options.gpu:
            take_device(options.gpu)
        shard = Shard(options)
    except GearError as error:
        _say(Ready(refused=str(error)))
        return 1
    signal.signal(signal.SIGTERM, lambda *_: _end(shard))
    gc.collect()
    gc.freeze()  # Numba stays: to look through it takes the loop 45 ms, and put off what large answers left in cycles
    shard.wake_on_signals()
    _say(shard.ready)
    # The supervisor closes its end when it dies; nothing is ever said there again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        shard.serve()
        shard.save()
    finally:
        shard.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
