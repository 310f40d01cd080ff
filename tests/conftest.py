"""What every test shares: hypothesis profiles, the check that nothing is left behind, a real server on demand."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

from gear.transport.door import DOOR, is_held

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

SHARED = Path("/dev/shm")
READY = "gear-server ready: "
_MARK = "GEAR_TEST_SESSION"


_before: set[str] = set()
_left: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the faults suite, see `tests/faults`."""
    parser.addoption("--faults-long", action="store_true", help="let the faults last minutes (make test-faults)")
    parser.addoption("--faults-seed", type=int, default=None, help="what the faults are drawn from")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before the clocks of the tests run: most of a minute on a fresh clone, seconds later on."""
    if hasattr(session.config, "workerinput"):  # one of several processes that share the tests: the first has done it
        return
    _before.update(_segments())
    code = "from gear.server.warm import warm; warm()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1200)


def _segments() -> set[str]:
    return {path.name for path in SHARED.glob("gear-*")}


def _processes() -> dict[int, str]:
    """Command lines of the processes of this test session, ourselves left out.

    Ours are our children and whatever inherited this session's mark, which finds a process also after its
    parent died. The resource tracker of `multiprocessing` lives as long as we do by design.
    """
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile, or not ours to read
            continue
        ours = mark in environment or parent == os.getpid()
        if ours and command and int(folder.name) != os.getpid():  # a zombie has no command
            found[int(folder.name)] = command
    return {pid: command for pid, command in found.items() if "multiprocessing.resource_tracker" not in command}


def _lives(name: str) -> bool:
    """Whether a segment is in use: a shard holds the door of the directory, or another process has it mapped."""
    for door in (SHARED / name / DOOR, *(SHARED / name).glob(f"*/{DOOR}")):
        try:
            descriptor = os.open(door, os.O_RDONLY)
        except OSError:
            continue
        try:
            if is_held(descriptor):
                return True
        finally:
            os.close(descriptor)
    place = f"{SHARED}/{name}"
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to read
            if int(maps.parent.name) != os.getpid() and place in maps.read_text(errors="replace"):
                return True
    return False


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No shared-memory segment of ours outlives the tests: all of our processes are dead by now."""
    if hasattr(session.config, "workerinput"):
        return
    deadline = time.monotonic() + 30
    while (left := {name for name in _segments() - _before if not _lives(name)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    if left:  # not by `pytest.exit`: the tests that failed are still to be listed
        _left.update(left)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left behind, under the tests that failed."""
    if _left:
        terminalreporter.write_line(f"FAILED: shared-memory segments were left in {SHARED}: {sorted(_left)}", red=True)


@pytest.fixture(scope="session", autouse=True)
def no_processes_left() -> Iterator[None]:
    """No process of ours outlives the tests; of several that share the tests each looks after its own."""
    os.environ[_MARK] = uuid.uuid4().hex
    yield
    deadline = time.monotonic() + 30
    while (left := _processes()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes were left running: {left}"


@dataclass
class Server:
    """A `gear-server` in a process of its own.

    Attributes
    ----------
    name : the server's unique name.
    address : HOST:PORT that clients connect to.
    fields : what the ready line says besides, such as ``devices`` and ``memory``.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    def wait_ready(self, timeout: float = 150.0) -> None:
        """Read stdout up to the ready line; fail with the log if it does not come."""
        assert self.process.stdout is not None
        deadline, data = time.monotonic() + timeout, b""
        while b"\n" not in data.partition(READY.encode())[2]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                pytest.fail(f"the server was not ready within {timeout} s; its log:\n{self.log.read_text()}")
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                code = self.process.wait(10)
                pytest.fail(f"the server ended with {code} before it was ready; its log:\n{self.log.read_text()}")
            data += chunk
        line = data.decode().partition(READY)[2].splitlines()[0]
        self.fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        self.address = self.fields["address"]

    def stop(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        """Send the signal, wait for the end, return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail(
                f"the server did not end within {timeout} s of signal {number}; its log:\n{self.log.read_text()}"
            )
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts `gear-server` with the given arguments; what still runs is stopped at the end.

    ``start_server("--memory", "256MiB")`` returns once the ready line came. Unless given, the name is unique,
    the port is free, the device is the CPU and kept memory is discarded (``discard=False`` keeps it).
    ``ready=False`` returns at once, for servers that are expected to fail.
    """
    servers: list[Server] = []

    def start(*arguments: str, discard: bool = True, ready: bool = True) -> Server:
        command = shutil.which("gear-server", path=str(Path(sys.executable).parent))
        base = (
            [command]
            if command
            else [sys.executable, "-c", "import sys; from gear.server.cli import server_main; sys.exit(server_main())"]
        )
        given = {a.split("=")[0] for a in arguments}
        name = f"test-{uuid.uuid4().hex[:12]}"
        if "--name" in given:
            name = arguments[arguments.index("--name") + 1]
        else:
            base += ["--name", name]
        base += [] if "--port" in given else ["--port", "0"]
        base += [] if "--devices" in given else ["--devices", "cpu"]
        base += ["--discard"] if discard else []
        log = tmp_path / f"server-{len(servers)}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen([*base, *arguments], stdout=subprocess.PIPE, stderr=stderr)
        servers.append(Server(name, process, log))
        if ready:
            servers[-1].wait_ready()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
