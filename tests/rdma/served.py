"""A server in a process of its own, which can be ended and started again under its name and port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PATIENCE = 120.0
"""Seconds for a start or an end: processors may be emulated."""


class Served:
    """It runs from `start` to `stop`.

    Parameters
    ----------
    log : file that its standard error goes to.
    name : of the server.
    more : further arguments.
    writes : what `GEAR_RDMA_WRITES` says to it; None as here.
    silence : seconds of it after which a client counts as gone; clients wait five times as long for the server.
    """

    def __init__(self, log: Path, name: str, *more: str, writes: str | None = None, silence: float = 6) -> None:
        more = (*more, "--client-timeout", str(silence))
        self._log, self._name, self._more, self.port = log, f"{name}-{os.getpid()}", more, "0"
        self._environment = dict(os.environ)
        if writes is not None:
            self._environment["GEAR_RDMA_WRITES"] = writes

    def start(self) -> Served:
        """Start it; it is ready afterwards."""
        command = [sys.executable, "-m", "gear.server", "--port", self.port, "--name", self._name, *self._more]
        command += ["--memory", "64MiB"]
        with self._log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert "ready: " in ready, self._log.read_text()
        self.address = ready.split("address=")[1].split()[0]
        self.port = self.address.rsplit(":", 1)[1]
        return self

    def stop(self) -> None:
        """End it; its tables stay, unless it was started with ``--discard``."""
        self._process.terminate()
        code = self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.copy(self._log, Path(os.environ.get("VM_OUT", self._log.parent)) / f"{self._name}.log")
        assert code == 0, self._log.read_text()
