"""A shard as its supervisor sees it: a child process that is told what to do, says when it serves, and ends.

What a shard is told goes through a pipe, the token included. It inherits the lock of the server's name, which
stays taken as long as any shard lives.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from gear.server.config import Ready, ShardOptions
from gear.transport.messages import Shard


class ShardProcess:
    """A shard that was started.

    Parameters
    ----------
    told : ShardOptions
    lock : int
        Descriptor that it inherits.

    Attributes
    ----------
    ready : what it said when it began to serve, None before.
    stdout : descriptor on which it says so.
    """

    def __init__(self, told: ShardOptions, lock: int) -> None:
        self.index = told.index
        self.ready: Ready | None = None
        self._said = b""
        self._watched = -1
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gear.server.shard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock,),
        )
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

    def address(self) -> Shard:
        """How to reach it."""
        assert self.ready is not None
        return Shard(self.index, self.ready.port, self.ready.socket)

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
