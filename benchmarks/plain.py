"""The limit of the `tcp` path: another process that answers each request with so many bytes, by bare pyzmq.

    python -m benchmarks.plain

It prints its port and serves until its standard input closes. Neither end copies: a range of the sender's memory, each
time another one that its caches do not hold, goes to the socket as it is; the receiver looks at what ZeroMQ received.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import zmq

MOST = 1 << 28
"""Bytes per answer at most."""


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], int]]:
    """A function that has the process send that many bytes, one request outstanding; how many came."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    context = zmq.Context()
    try:
        socket = context.socket(zmq.REQ)
        socket.linger = 0
        assert process.stdout is not None
        socket.connect(f"tcp://127.0.0.1:{int(process.stdout.readline())}")

        def fetch(nbytes: int) -> int:
            socket.send(str(nbytes).encode())
            return len(socket.recv(copy=False))

        yield fetch
    finally:
        context.destroy(0)
        process.communicate(timeout=10)  # closes its standard input


def main() -> None:
    """Serve."""
    context = zmq.Context()
    socket = context.socket(zmq.REP)
    print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    memory, chance = np.ones(MOST, np.uint8).data, random.Random(0)
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if socket in ready:
            nbytes = int(socket.recv())
            start = chance.randrange(MOST - nbytes + 1)
            socket.send(memory[start : start + nbytes], copy=False)
        else:  # the other end is gone
            return


if __name__ == "__main__":
    main()
