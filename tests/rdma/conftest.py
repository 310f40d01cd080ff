"""Skipped where there is no device; in the virtual machine that is made for these tests a missing one is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import gear
from gear.errors import DeviceError
from gear.transport.rdma_verbs import check, verbs

HERE = Path(__file__).parent
INSIDE = bool(os.environ.get("RDMA_VM"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    try:
        check()
        verbs()
    except DeviceError as error:
        if INSIDE:
            raise pytest.UsageError(f"this machine was made for RDMA and has none: {error}") from None
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=f"no RDMA here ({str(error)[:60]}...); make test-rdma has it"))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of one shard that is not started again."""
    command = [sys.executable, "-m", "gear.server", "--port", "0", "--name", f"rdma-{os.getpid()}", "--discard"]
    command += ["--client-timeout", "6", "--memory", "64MiB", "--max-restarts", "0"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert "ready: " in ready, log.read_text()
        yield ready.split("address=")[1].split()[0]
    finally:
        process.terminate()
        code = process.wait(120)
        process.stdout.close()
        shutil.copy(log, os.environ.get("VM_OUT", log.parent))
    assert code == 0, log.read_text()


@pytest.fixture
def connected(address: str) -> Iterator[Callable[[str], gear.Client]]:
    """A function that connects to the server over a path."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(gear.connect(address, path=path, timeout=120.0))
