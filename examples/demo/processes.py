"""The processes of the demo: the server and the actors, started and, whatever happens, ended.

They run in sessions of their own, so that Ctrl-C reaches only the demo, which then ends them in order.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

READY = "gear-server ready: "
ROOT = Path(__file__).parents[2]
SERVER = [sys.executable, "-c", "import sys; from gear.server.cli import server_main; sys.exit(server_main())"]


def end(process: subprocess.Popen[str], timeout: float) -> None:
    """SIGTERM, and SIGKILL for one that does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def spawn(command: list[str], stderr: int | None = None) -> subprocess.Popen[str]:
    """A process whose stdout can be read by lines."""
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True)


@contextmanager
def server() -> Iterator[str]:
    """A `gear-server` on a free port that keeps nothing afterwards; yields its address."""
    process = spawn(
        [*SERVER, "--devices", "cpu", "--port", "0", "--name", f"demo-{uuid.uuid4().hex[:12]}", "--discard"]
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY):
                fields = dict(part.split("=", 1) for part in line[len(READY) :].split() if "=" in part)
                break
        else:
            raise SystemExit(f"gear-server ended with code {process.wait()} before it was ready")
        yield fields["address"]
    finally:
        end(process, 20.0)
        if process.stdout is not None:
            process.stdout.close()


class Actors:
    """The actor processes, and the returns they report as (seconds since the start, return)."""

    def __init__(self, address: str, weights: Path, epsilons: list[float], seed: int) -> None:
        self.episodes: list[tuple[float, float]] = []
        self.steps = 0
        self._start = time.monotonic()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by close)
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        with ExitStack() as stack:
            stack.callback(self.close)
            for number, epsilon in enumerate(epsilons):
                options = {"address": address, "weights": weights, "epsilon": epsilon, "seed": 1000 * seed + number}
                command = [sys.executable, "-m", "examples.demo.actor"]
                command += [f"--{name}={value}" for name, value in options.items()]
                self._processes.append(spawn(command, self._errors.fileno()))
                self._readers.append(threading.Thread(target=self._read, args=(self._processes[-1],), daemon=True))
                self._readers[-1].start()
            stack.pop_all()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.episodes.append((time.monotonic() - self._start, float(line)))
            self.steps += int(float(line))  # CartPole rewards every step with 1

    def check(self) -> None:
        """Raise if an actor ended by itself, with what it said."""
        for process in self._processes:
            if process.poll() is not None:
                self._errors.seek(0)
                raise RuntimeError(f"an actor ended with code {process.returncode}:\n{self._errors.read()}")

    def close(self) -> None:
        """End all actors, first asking every one, then waiting for each."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            end(process, 5.0)
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.close()
        self._errors.close()
