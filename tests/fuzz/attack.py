"""Sends malformed messages to a real server, over ZeroMQ and over a lane, and holds it to what it owes the others.

What it owes: it stays up, answers who behaves, and says "internal error" to nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter, deque
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import numpy as np
import zmq

import gear
from gear.errors import GearError, ProtocolError
from gear.storage.pins import ABANDONED
from gear.transport import lane as lanes
from gear.transport import messages as m
from gear.transport import reach, wire
from gear.transport.channel import context
from gear.transport.discovery import discover
from gear.transport.door import Door
from tests.fuzz import frames
from tests.fuzz.sound import Known

BURST = 40
"""Messages that are sent before the answers are waited for."""

_RARE = (m.Goodbye, m.Reset, m.Attach)
"""What would undo all that was reached before."""

PATIENCE = 20.0
"""Seconds that the server may take for a burst, or for who behaves."""

FORGOTTEN = 2 * ABANDONED
"""Seconds that the server may take to forget who hung up: some client timeouts, or as long as abandoned pins last."""

LATE = {"logprobs": gear.Column("logprobs", late=True), "reward": gear.Column("reward", per="trajectory", late=True)}
X = gear.Column("x", (2,))
TABLES = (
    gear.Table("t0", [X], gear.Steps(500), item=gear.Window(4), sampler=gear.Prioritized(0.6), mean_length=8),
    gear.Table("t1", [X], gear.Trajectories(50), item=gear.Whole(), limiter=gear.Queue(20), mean_length=8),
    gear.Table("t2", [X, gear.Column("y", (), "int64")], gear.Steps(500), item=gear.Step(1), mean_length=8),
    gear.Table(
        "t3", [X, *LATE.values()], gear.Trajectories(50), item=gear.Whole(), sampler=gear.Fresh(), mean_length=8,
        requirements=[("logprobs", "reward")], max_staleness=2, max_times_sampled=2,
    ),
    gear.Table(
        "t4", [X], gear.Trajectories(50), item=gear.Whole(), sampler=gear.Groups(2, deadline=0.1), mean_length=8,
        consumers=("trainer", "x"),
    ),
)  # fmt: skip
HONEST = gear.Table("honest", [gear.Column("k", (), "int64")], gear.Trajectories(20), item=gear.Whole(), mean_length=8)


class Way(Protocol):
    """A connection on which a client is greeted."""

    def send(self, parts: list[bytes]) -> None:
        """Send a message."""
        ...

    def receive(self, seconds: float) -> list[Any] | None:
        """The next answer, None if none comes in time or no more come."""
        ...

    def close(self) -> None:
        """End it without a word."""
        ...


class Wire:
    """By ZeroMQ, greeted and no more."""

    def __init__(self, endpoint: str) -> None:
        self.identity = secrets.token_bytes(16)
        self._socket = context().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        self.send([wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Hello(self.identity, "", 1)))])
        answer = self.receive(PATIENCE)
        assert answer is not None, "the server welcomes nobody any more"
        self.welcome = wire.decode_answer(answer).body

    def send(self, parts: list[bytes]) -> None:
        self._socket.send_multipart(parts)

    def receive(self, seconds: float) -> list[Any] | None:
        return self._socket.recv_multipart() if self._socket.poll(seconds * 1000) else None

    def close(self) -> None:
        self._socket.close(0)


class Laned:
    """By a lane: a client that maps the tables."""

    def __init__(self, endpoint: str) -> None:
        self._greeted = Wire(endpoint)
        self._door = Door(self._greeted.welcome.directory)
        self._door.enter(self._greeted.identity)
        self._greeted.send([wire.encode(m.Envelope(m.PROTOCOL, 1, 1, [], m.Attach(self._door.nonce)))])
        assert self._greeted.receive(PATIENCE) is not None
        greeting = lanes.GREETING.pack(self._greeted.identity, 1, self._greeted.welcome.key)
        lane = reach.open_lane(str(self._door.directory / lanes.LANE), greeting)
        assert lane is not None
        self.lane = lane

    def send(self, parts: list[bytes]) -> None:
        self.lane.send(parts)

    def receive(self, seconds: float) -> list[Any] | None:
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        while True:
            self.lane.flush()
            poller.register(self.lane.descriptor, zmq.POLLIN | (zmq.POLLOUT if self.lane.unsent else 0))
            parts = self.lane.receive()
            left = deadline - time.monotonic()
            if parts is not None or self.lane.broken or left <= 0:
                return parts
            poller.poll(left * 1000)

    def close(self) -> None:
        self.lane.close()
        self._greeted.close()
        self._door.leave()


class Attack:
    """One server under attack.

    Parameters
    ----------
    address : str
    chance : random.Random

    Attributes
    ----------
    sent : messages so far.
    slowest : seconds that the slowest look of who behaves took.
    recent : the last bursts, each with the way that it took.
    found : messages that were answered with an internal error.
    unheard : bursts whose end was never answered.
    done : how many requests of each kind were done, not refused.
    """

    def __init__(self, address: str, chance: Random) -> None:
        shard = discover(address, "", 10.0).shards[0]
        self._endpoints = {"tcp": f"tcp://127.0.0.1:{shard.port}", "lane": f"ipc://{shard.socket}"}
        self._chance = chance
        self._client = gear.connect(address)
        for table in (*TABLES, HONEST):
            self._client.create_table(table)
        self._checked, self.pid = 0, self._client.info()["pid"]
        self._known = {kind: Known(TABLES) for kind in self._endpoints}
        self._ways: dict[str, Way] = {}
        self._numbers: dict[str, int] = {}
        self.sent, self.slowest, self.unheard = 0, 0.0, 0
        self.done: Counter[type[m.Message]] = Counter()
        self.recent: deque[tuple[str, list[list[bytes]]]] = deque(maxlen=50)
        self.found: list[tuple[str, list[bytes]]] = []

    def run(self, messages: int) -> None:
        """Send so many messages, in bursts, and look after the others in between."""
        end = self.sent + messages
        while self.sent < end:
            for kind in self._endpoints:
                self.burst(kind, lambda number, kind=kind: self._made(number, self._known[kind]))
                if kind == "lane" and self._chance.random() < 0.05:
                    self._tear()
            self.check()

    def replay(self, messages: list[tuple[str, list[bytes]]]) -> None:
        """Send what was found before, by the same ways, numbered anew."""
        for kind in self._endpoints:
            mine = [parts for way, parts in messages if way == kind]
            for first in range(0, len(mine), BURST):
                parts = iter(mine[first : first + BURST])
                self.burst(
                    kind, lambda number, parts=parts: renumbered(next(parts), number), len(mine[first : first + BURST])
                )

    def _made(self, number: int, known: Known) -> list[bytes]:
        """A message of that number, or of a lower one; a higher one, or another greeting, makes deaf."""
        while True:
            kind = self._chance.choice(frames.KINDS)
            if kind in _RARE and self._chance.random() < 0.98:
                continue
            parts = frames.request(self._chance, number, known, kind)
            told = wire.request_number(parts[0])
            if told is None or told == number or (told < number and kind is not m.Hello):
                return parts

    def burst(self, kind: str, make: Any, count: int = BURST) -> None:
        """Send some messages, and wait until the server has taken them in."""
        way = self._way(kind)
        sent: dict[int, list[bytes]] = {}
        for _ in range(count):
            number = self._numbers[kind] = self._numbers[kind] + 1
            sent[number] = make(number)
            way.send(sent[number])
        self.sent += count
        self.recent.append((kind, [*sent.values()]))
        fence = self._numbers[kind] = self._numbers[kind] + 1
        way.send([wire.encode(m.Envelope(m.PROTOCOL, fence, fence, [], m.Releases()))])
        while (parts := way.receive(PATIENCE)) is not None:
            answer = self._heard(kind, parts, sent)
            if answer is not None and answer.request == fence:
                if isinstance(answer.body, m.Failed):  # it said goodbye
                    break
                return
        else:  # the connection broke, and the question with it; `check` tells whether that is all
            self.unheard += not (isinstance(way, Laned) and way.lane.broken)
        self._hang_up(kind)

    def _heard(self, kind: str, parts: list[Any], sent: dict[int, list[bytes]]) -> m.Answer | None:
        try:
            answer = wire.decode_answer(parts)
        except ProtocolError:
            return None
        if isinstance(answer.body, m.Failed):
            if "internal error" in answer.body.message:
                self.found.append((f"{kind}: {answer.body.message}", sent.get(answer.request, [])))
        elif answer.request in sent:
            with contextlib.suppress(ProtocolError):
                asked = wire.decode_request(sent[answer.request]).body
                self.done[type(asked)] += 1
                self._known[kind].heard(asked, answer.body, parts)
        return answer

    def _tear(self) -> None:
        """What is no message of a lane."""
        way = self._way("lane")
        assert isinstance(way, Laned)
        way.lane.send_bytes(frames.framing(self._chance))
        self._hang_up("lane")

    def _way(self, kind: str) -> Way:
        if kind not in self._ways:
            self._ways[kind] = Laned(self._endpoints[kind]) if kind == "lane" else Wire(self._endpoints[kind])
            self._numbers[kind] = 1
            self._known[kind].forget()
        return self._ways[kind]

    def _hang_up(self, kind: str) -> None:
        way = self._ways.pop(kind, None)
        if way is not None:
            way.close()

    def check(self) -> None:
        """Who behaves is served, with what it stored, by the process that served at the beginning."""
        began = time.monotonic()
        self._checked = number = self._checked + 1
        self._feed()
        self._client.insert({"k": np.full(3, number)}, "honest", timeout=PATIENCE)
        batch = self._client.sample(4, "honest", timeout=PATIENCE)
        assert ((batch["k"][:, :1] == batch["k"])[batch.mask] & (batch["k"][batch.mask] > 0)).all()
        self.slowest = max(self.slowest, time.monotonic() - began)
        assert self._client.info()["pid"] == self.pid, "the shard was started again"

    def _feed(self) -> None:
        """Have something in each table."""
        rows = {"x": np.ones((6, 2), np.float32)}
        for table in TABLES:
            more = {"y": np.arange(6)} if table.name == "t2" else {}
            group = {"group": str(self._checked // 2)} if table.name == "t4" else {}
            with contextlib.suppress(gear.DeadlineExceeded):
                self._client.insert(rows | more, table.name, timeout=0.0, **group)

    def rest(self) -> None:
        """Hang up, and wait until the server has forgotten who attacked, and what they drew for others."""
        for kind in list(self._ways):
            self._hang_up(kind)
        deadline = time.monotonic() + FORGOTTEN
        while True:
            info = self._client.info()
            there, pins = info["clients"], sum(table["pins"] for table in info["tables"].values())
            if there == {"connected": 1, "silent": 0} and not pins:
                return
            assert time.monotonic() < deadline, f"what was kept for clients that hung up stays: {there}, {pins} pins"
            time.sleep(0.1)

    def memory(self) -> int:
        """Bytes of the shard's own memory, its segments left out.

        Of use after `rest` only: a client that does not say what it has got may make the shard keep 64 MiB of answers.
        """
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise GearError("the shard is gone")

    def close(self) -> None:
        """Hang up, and let who behaves leave in order."""
        for kind in list(self._ways):
            self._hang_up(kind)
        self._client.close()


def renumbered(parts: list[bytes], number: int) -> list[bytes]:
    """The same message under another number, of today's wire; as it is if it is too garbled to have one.

    One of an older version would be turned away before it is looked at.
    """
    with contextlib.suppress(msgspec.DecodeError, TypeError, IndexError):
        envelope = msgspec.msgpack.decode(parts[0])
        envelope[1] = number
        if type(envelope[0]) is int:
            envelope[0] = m.PROTOCOL
        return [msgspec.msgpack.encode(envelope), *parts[1:]]
    return parts


def packed(messages: list[tuple[str, list[bytes]]]) -> bytes:
    """Messages as a file of the corpus."""
    return msgspec.msgpack.encode(messages)


def unpacked(data: bytes) -> list[tuple[str, list[bytes]]]:
    """Messages of a file of the corpus: which way each takes (``tcp`` or ``lane``), and its parts."""
    return msgspec.msgpack.decode(data, type=list[tuple[str, list[bytes]]])


def save(folder: Path, attack: Attack) -> list[Path]:
    """Keep what was found, and the last bursts, as files; which."""
    os.makedirs(folder, exist_ok=True)
    paths = []
    for number, (what, parts) in enumerate(attack.found[:20]):
        paths.append(folder / f"found-{number}.msgpack")
        paths[-1].write_bytes(packed([(what.partition(":")[0], parts)]))
    recent = [(kind, parts) for kind, burst in attack.recent for parts in burst]
    paths.append(folder / "recent.msgpack")
    paths[-1].write_bytes(packed(recent))
    return paths
