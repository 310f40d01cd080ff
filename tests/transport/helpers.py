"""Helpers of the transport and server tests: numbered trajectories over a session, a proxy that cuts, processes."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gear.schema import Column, Fifo, Steps, Table, Whole
from gear.storage.fields import BEGIN, END, TERMINATED
from gear.transport import reach
from gear.transport.base import OpenTable, Session
from gear.transport.discovery import discover
from gear.transport.session import RemoteSession
from gear.transport.shm import ShmSession

WHOLE = BEGIN | END | TERMINATED


def table(name: str = "table", **fields: Any) -> Table:
    fields = {
        "capacity": Steps(4000),
        "item": Whole(),
        "mean_length": 10,
        "max_length": 10,
        "block_steps": 10,
        **fields,
    }
    return Table(name, (Column("k", (), "int64"),), **fields)


def rows(opened: OpenTable, block: int) -> np.ndarray:
    """Column k of a block, int64[block_steps], in the segment itself."""
    place, layout = opened.layout.placements["k"], opened.layout
    start = layout.regions["arena"].offset + block * layout.block_bytes + place.offset
    return np.ndarray((layout.block_steps,), np.int64, opened.segment, start, (place.stride,))


def put(session: Session, opened: OpenTable, number: int, length: int = 3, timeout: float | None = 60.0) -> int:
    """Write one trajectory whose rows all equal `number` and submit it; its sequence number."""
    grant = session.lease(opened, 1, 1, timeout)
    if not len(grant.blocks) or not len(grant.slots):
        session.give_back(opened, grant)
        grant = session.allocate(opened, 1, 1, timeout)
    rows(opened, grant.blocks[0])[:length] = number
    return session.submit(opened, int(grant.slots[0]), [int(grant.blocks[0])], length, WHOLE, None, timeout)


def insert(session: Session, opened: OpenTable, number: int, length: int = 3) -> None:
    session.wait(opened, put(session, opened, number, length), 60.0)


def figures(session: Session, name: str = "table") -> dict[str, Any]:
    return session.info(60.0)["tables"][name]


def eventually(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Wait for something that is told to nobody."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout} s: {what}"
        time.sleep(0.005)


class Proxy:
    """A TCP proxy before a shard whose connections can be cut, those of lanes too."""

    def __init__(self, address: str) -> None:
        found = discover(address, "", 60.0)
        self.heartbeat = found.heartbeat
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._ports = dict(zip(self._listeners, (found.shards[0].port, 0), strict=True))
        self.port, self.lane_port = (one.getsockname()[1] for one in self._listeners)
        self._paused = threading.Event()
        self._paused.set()
        self._address_of = reach.lane_address
        reach.lane_address = self._lane
        self.budget: int | None = None
        self._deaf = False
        self.cuts = self.connections = 0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._far: set[socket.socket] = set()
        self._wake, self._woken = socket.socketpair()
        self._command = b""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _lane(self, endpoint: str, welcome: Any) -> Any:
        """Where the client that came through here finds its lane."""
        address = self._address_of(endpoint, welcome)
        if endpoint != f"tcp://127.0.0.1:{self.port}":
            return address
        self._ports[self._listeners[1]] = welcome.port
        return address[0], self.lane_port

    def session(self, kind: type[RemoteSession] = ShmSession) -> RemoteSession:
        return kind(f"tcp://127.0.0.1:{self.port}", "", self.heartbeat, 60.0)

    def cut(self) -> None:
        """Cut every connection."""
        before = self.cuts
        self._wake.send(b"c")
        eventually(lambda: self.cuts > before, "the proxy cut its connections")

    def cut_after(self, nbytes: int) -> None:
        """Cut once that many more bytes have passed, wherever in a message that is."""
        self.budget = nbytes

    def pause(self) -> None:
        """Pass nothing on from now on; what comes is kept by the kernel."""
        self._paused.clear()

    def go_on(self) -> None:
        self._paused.set()

    def lose_answers(self) -> None:
        """Pass on what clients say, and nothing of what the shard says."""
        self._deaf = True

    def tell_again(self) -> None:
        """Pass everything on again, over new connections."""
        self._deaf = False
        self.cut()

    def close(self) -> None:
        self.go_on()
        self._wake.send(b"q")
        self._thread.join(60)
        reach.lane_address = self._address_of
        for one in (*self._listeners, self._wake, self._woken):
            one.close()

    def _drop(self) -> None:
        self.cuts += 1
        self.budget = None
        for one in self._pairs:
            one.close()
        self._pairs.clear()
        self._far.clear()

    def _run(self) -> None:
        while self._paused.wait():
            ready = select.select([*self._listeners, self._woken, *self._pairs], [], [])[0]
            for one in ready:
                if one is self._woken:
                    command = one.recv(1)
                    self._drop()
                    if command == b"q":
                        return
                elif one in self._listeners:
                    near = one.accept()[0]
                    try:
                        far = socket.create_connection(("127.0.0.1", self._ports[one]))
                    except ConnectionRefusedError:  # the shard is being started again
                        near.close()
                        continue
                    self._far.add(far)
                    self._pairs[near], self._pairs[far] = far, near
                    self.connections += 1
                elif one in self._pairs:
                    self._forward(one)

    def _forward(self, one: socket.socket) -> None:
        try:
            data = one.recv(65536)
            if self.budget is not None:
                data, self.budget = data[: self.budget], self.budget - len(data)
            if not (self._deaf and one in self._far):
                self._pairs[one].sendall(data)
        except OSError:
            data = b""
        if not data or (self.budget is not None and self.budget <= 0):
            self._drop()


class Python:
    """A Python process that runs `source` and talks over its standard streams."""

    def __init__(self, source: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 120)[0], "the process said nothing"
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()  # type: ignore[union-attr]


def fifo(**fields: Any) -> Table:
    return table(sampler=Fifo(), **fields)
