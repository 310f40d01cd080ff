"""A shard as its supervisor sees it: a child process that is told what to do, says when it serves, and ends.

What a shard is told goes through a pipe, the token included. A shard whose supervisor has died is known by its process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from gear.server.config import Ready, ShardOptions
from gear.server.runtime import SOCKET
from gear.transport.messages import Shard


def launch(log_level: str) -> subprocess.Popen[bytes]:
    """A process that will be a shard once it is told of what; it ends when its standard input does."""
    command = [sys.executable, "-m", "gear.server.shard", log_level]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class ShardProcess:
    """A shard that was started.

    Parameters
    ----------
    told : ShardOptions
    expected : Ready, optional
        What the one said whose place it takes.
    process : Popen, optional
        One that was launched and told nothing yet.

    Attributes
    ----------
    told : what it was told.
    ready : what it said when it began to serve, None before.
    ended : it will not be started again.
    stdout : descriptor on which it says so.
    """

    def __init__(
        self, told: ShardOptions, expected: Ready | None = None, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.told, self.index, self.expected, self.ended = told, told.index, expected, False
        self.ready: Ready | None = None
        self._said = b""
        self._watched = -1
        self._process = launch(told.log_level) if process is None else process
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdout: int = self._process.stdout.fileno()
        try:
            with self._process.stdin as stream:
                stream.write(msgspec.json.encode(told) + b"\n")
        except BrokenPipeError:
            pass

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def serves(self) -> bool:
        """Whether it has begun to serve and lives."""
        return self.ready is not None and self._process.returncode is None

    @property
    def listed(self) -> bool:
        """Whether clients are to know of it: it serves, or soon will again."""
        return not self.ended and (self.serves or self.expected is not None)

    def address(self) -> Shard:
        """How to reach it."""
        ready = self.ready or self.expected
        assert ready is not None
        return Shard(self.index, ready.port, ready.socket)

    def hear(self) -> bool:
        """Take in what it said; False if it ended without a word."""
        data = os.read(self.stdout, 4096)
        self._said += data
        if self._said.endswith(b"\n"):
            self.ready = msgspec.json.decode(self._said, type=Ready)
        return bool(data)

    def watch(self) -> int:
        """A descriptor that is readable once the process has ended."""
        if self._watched < 0:
            self._watched = os.pidfd_open(self._process.pid)
        return self._watched

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def end(self, seconds: float) -> bool:
        """Wait for its end; False if it had to be killed."""
        kindly = True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            kindly = False
            self._process.kill()
            self._process.wait()
        if self._watched >= 0:
            os.close(self._watched)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return kindly


class Adopted:
    """A shard that outlived the supervisor that started it; what a `ShardProcess` is for one that was started here.

    Parameters
    ----------
    told : ShardOptions
        What another one in its place will be told.
    pid, port : int
    """

    stdout = -1

    def __init__(self, told: ShardOptions, pid: int, port: int) -> None:
        self.told, self.index, self.pid, self.ended = told, told.index, pid, False
        self.ready: Ready | None = Ready(port, str(Path(told.directory, SOCKET)))
        self.expected: Ready | None = None
        self._descriptor = os.pidfd_open(pid)
        self._over = False

    @property
    def serves(self) -> bool:
        """Whether it lives."""
        return not self._over

    @property
    def listed(self) -> bool:
        """Whether clients are to know of it."""
        return self.serves

    def address(self) -> Shard:
        """How to reach it."""
        assert self.ready is not None
        return Shard(self.index, self.ready.port, self.ready.socket)

    def hear(self) -> bool:
        """It says nothing."""
        return False

    def watch(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return self._descriptor

    def wait(self, timeout: float | None = None) -> int:
        """Its end; nobody but its parent would learn its exit code."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("shard", timeout or 0.0)
        self._over = True
        return -1

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def end(self, seconds: float) -> bool:
        """Wait for its end; False if it had to be killed."""
        kindly = True
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            kindly = False
            self.kill()
            self.wait()
        os.close(self._descriptor)
        return kindly
