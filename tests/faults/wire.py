"""A network of two: this process's network namespace and another one, joined by a wire that can be made bad.

Packets go through this process (two TUN devices), which loses, delays and withholds them by a seeded choice. That needs
no `tc netem`, which many kernels lack, and a run can be repeated with its seed.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import secrets
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

_SET_DEVICE, _TUN, _NO_INFO = 0x400454CA, 0x0001, 0x1000


class NotPermitted(Exception):
    """Why there can be no namespace here."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise NotPermitted(f"`{' '.join(command)}`: {done.stderr.strip()}")


def _device(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _SET_DEVICE, struct.pack("16sH", name.encode(), _TUN | _NO_INFO))
    return descriptor


class Wire:
    """The wire, and the namespace at its far end.

    Attributes
    ----------
    here, there : addresses of the two ends.
    prefix : what a command begins with that is to run at the far end.
    loss : the part of packets that is lost.
    delay : least and most seconds that a packet is under way.
    cut : whether nothing goes through.
    passed, lost : packets so far.

    Raises
    ------
    NotPermitted
    """

    def __init__(self, seed: int) -> None:
        token = secrets.token_hex(3)
        self.namespace, names = f"gear-{token}", (f"gn{token}", f"gf{token}")
        net = f"10.231.{secrets.randbelow(250)}.{4 * secrets.randbelow(60)}".rpartition(".")
        self.here, self.there = (f"{net[0]}.{int(net[2]) + host}" for host in (1, 2))
        self.prefix = ["ip", "netns", "exec", self.namespace]
        self.loss, self.delay, self.cut = 0.0, (0.0, 0.0), False
        self.passed = self.lost = 0
        self._random, self._order = random.Random(seed), itertools.count()
        self._ends: list[int] = []
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC)[::-1]
        self._thread = threading.Thread(target=self._forward, daemon=True)
        try:
            _run("ip", "netns", "add", self.namespace)
            self._ends = [_device(name) for name in names]
            _run("ip", "link", "set", names[1], "netns", self.namespace)
            for prefix, name, address in (([], names[0], self.here), (self.prefix, names[1], self.there)):
                _run(*prefix, "ip", "address", "add", f"{address}/30", "dev", name)
                _run(*prefix, "ip", "link", "set", name, "up")
            _run(*self.prefix, "ip", "link", "set", "lo", "up")
        except (OSError, NotPermitted) as error:
            self.close()
            raise NotPermitted(f"no network namespace can be made here (root, ip, /dev/net/tun): {error}") from None
        self._thread.start()

    def close(self) -> None:
        """Take everything down; what runs at the far end must have ended."""
        os.write(self._wake, b"q")
        if self._thread.ident is not None:
            self._thread.join(10)
        for descriptor in (*self._ends, self._wake, self._woken):
            os.close(descriptor)
        with contextlib.suppress(NotPermitted, OSError):
            _run("ip", "netns", "delete", self.namespace)

    def _forward(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        near, far = self._ends
        while True:
            left = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
            ready = select.select([near, far, self._woken], [], [], left)[0]
            if self._woken in ready:
                return
            now = time.monotonic()
            for one in ready:
                for packet in _packets(one):
                    if self.cut or self._random.random() < self.loss:
                        self.lost += 1
                        continue
                    due = now + self._random.uniform(*self.delay)
                    heapq.heappush(under_way, (due, next(self._order), far if one == near else near, packet))
            while under_way and under_way[0][0] <= now:
                _, _, to, packet = heapq.heappop(under_way)
                with contextlib.suppress(OSError):  # its queue is full: lost, as anywhere
                    os.write(to, packet)
                    self.passed += 1


def _packets(descriptor: int) -> Iterator[bytes]:
    """What can be read now, some of it."""
    for _ in range(64):
        try:
            yield os.read(descriptor, 65536)
        except BlockingIOError:
            return
