"""A server per test module, and sessions that are closed again."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gear.transport.negotiation import connect
from gear.transport.session import RemoteSession
from tests.conftest import Server
from tests.transport.helpers import Proxy

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes its clients for silent after 0.5 s, or as many as the module's SILENCE says.

    It gives those up that it cannot see after five of them; a busy machine may stand still for longer.
    """
    yield from _serve(tmp_path_factory, "cpu", getattr(request.module, "SILENCE", "0.5"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two shards."""
    yield from _serve(tmp_path_factory, "cpu:2", "2")


def _serve(tmp_path_factory: pytest.TempPathFactory, devices: str, silence: str, *more: str) -> Iterator[Server]:
    name = f"test-{uuid.uuid4().hex[:12]}"
    log = tmp_path_factory.mktemp("server") / "log"
    command = shutil.which("gear-server", path=str(Path(sys.executable).parent))
    base = [command] if command else [sys.executable, "-m", "gear.server"]
    arguments = ["--port", "0", "--name", name, "--discard", "--client-timeout", silence, "--memory", "64MiB"]
    arguments += ["--devices", devices, *more]
    with log.open("wb") as stderr:
        process = subprocess.Popen([*base, *arguments], stdout=subprocess.PIPE, stderr=stderr)
    server = Server(name, process, log)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture
def path() -> str:
    """The data path of `open_session`; modules may have another."""
    return "shm"


@pytest.fixture
def open_session(server: Server, path: str) -> Iterator[Callable[[], RemoteSession]]:
    """A function that opens a session with the module's server over `path`."""
    sessions: list[RemoteSession] = []

    def open_one() -> RemoteSession:
        sessions.append(connect(server.address, timeout=60.0, path=path))
        return sessions[-1]

    yield open_one
    for session in sessions:
        session.close()


@pytest.fixture
def session(open_session: Callable[[], RemoteSession]) -> RemoteSession:
    return open_session()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.address)
    yield proxy
    proxy.close()


@pytest.fixture
def name() -> str:
    """A table name of this test's own."""
    return f"table-{next(_numbers)}"
