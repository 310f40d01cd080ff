"""The limits of data paths: another process that answers each request with so many bytes, and does nothing else.

    python -m benchmarks.plain shm|tcp|zmq

Each time it is another range of its memory, one that its caches do not hold. `zmq`: bare pyzmq, no end copies. `tcp`: a
bare socket, received into a buffer that is reused. `shm`: it copies the range into memory that both share, the receiver
copies it out into a buffer that is reused; a byte over a pipe says when. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import zmq

MOST = 1 << 28
"""Bytes per answer at most."""


class Fetch:
    """Has the process send that many bytes, one request outstanding; how many came."""

    def __init__(self, process: int, fetch: Callable[[int], int]) -> None:
        self.process = process
        self._fetch = fetch

    def __call__(self, nbytes: int) -> int:
        return self._fetch(nbytes)


@contextlib.contextmanager
def sender(way: str = "zmq") -> Iterator[Fetch]:
    """A process that sends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain", way], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        place = process.stdout.readline().decode().strip()
        with {"shm": _shared, "tcp": _tcp, "zmq": _zmq}[way](place, process) as fetch:
            yield Fetch(process.pid, fetch)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@contextlib.contextmanager
def _zmq(port: str, process: subprocess.Popen) -> Iterator[Callable[[int], int]]:
    context = zmq.Context()
    try:
        channel = context.socket(zmq.REQ)
        channel.linger = 0
        channel.connect(f"tcp://127.0.0.1:{port}")

        def fetch(nbytes: int) -> int:
            channel.send(str(nbytes).encode())
            return len(channel.recv(copy=False))

        yield fetch
    finally:
        context.destroy(0)


@contextlib.contextmanager
def _tcp(port: str, process: subprocess.Popen) -> Iterator[Callable[[int], int]]:
    buffer = memoryview(bytearray(MOST))
    with socket.create_connection(("127.0.0.1", int(port))) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def fetch(nbytes: int) -> int:
            stream.sendall(nbytes.to_bytes(8, "little"))
            come = 0
            while come < nbytes:
                come += stream.recv_into(buffer[come:nbytes])
            return come

        yield fetch


@contextlib.contextmanager
def _shared(path: str, process: subprocess.Popen) -> Iterator[Callable[[int], int]]:
    with open(path, "r+b") as file:
        shared = np.frombuffer(mmap.mmap(file.fileno(), MOST), np.uint8)
    out = np.zeros(MOST, np.uint8)
    asked, told = process.stdin.fileno(), process.stdout.fileno()  # type: ignore[union-attr]

    def fetch(nbytes: int) -> int:
        os.write(asked, nbytes.to_bytes(8, "little"))
        os.read(told, 1)
        out[:nbytes] = shared[:nbytes]
        return nbytes

    yield fetch


def main(way: str) -> None:
    """Serve."""
    memory, chance = np.ones(MOST, np.uint8), random.Random(0)

    def part(nbytes: int) -> np.ndarray:
        start = chance.randrange(MOST - nbytes + 1)
        return memory[start : start + nbytes]

    {"shm": _serve_shared, "tcp": _serve_tcp, "zmq": _serve_zmq}[way](part)


def _serve_zmq(part: Callable[[int], np.ndarray]) -> None:
    context = zmq.Context()
    channel = context.socket(zmq.REP)
    print(channel.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    poller = zmq.Poller()
    poller.register(channel, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if channel not in ready:  # the other end is gone
            return
        channel.send(part(int(channel.recv())).data, copy=False)


def _serve_tcp(part: Callable[[int], np.ndarray]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        stream, _ = server.accept()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while request := stream.recv(8, socket.MSG_WAITALL):
        stream.sendall(part(int.from_bytes(request, "little")))


def _serve_shared(part: Callable[[int], np.ndarray]) -> None:
    path = f"/dev/shm/gear-bench-plain-{os.getpid()}"
    with open(path, "w+b") as file:
        try:
            file.truncate(MOST)
            shared = np.frombuffer(mmap.mmap(file.fileno(), MOST), np.uint8)
            shared[:] = 0
            print(path, flush=True)
            while request := os.read(0, 8):
                nbytes = int.from_bytes(request, "little")
                shared[:nbytes] = part(nbytes)
                os.write(1, b".")
        finally:
            os.unlink(path)


if __name__ == "__main__":
    main(sys.argv[1])
