"""Skipped where there is no device; in the virtual machine that is made for these tests a missing one is a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import gear
from gear.errors import DeviceError
from gear.transport.rdma_verbs import check, verbs
from tests.rdma.served import Served

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


@pytest.fixture(scope="session")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server whose clients write to their leases, whether or not the device confines them there."""
    yield from _serve(tmp_path_factory, "trusting", "trusted")


@pytest.fixture(scope="session")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of one whose clients write to inboxes."""
    yield from _serve(tmp_path_factory, "careful", "inbox")


def _serve(factory: pytest.TempPathFactory, name: str, writes: str) -> Iterator[str]:
    log = factory.mktemp(name) / "log"
    server = Served(log, name, "--discard", "--max-restarts", "0", writes=writes).start()
    try:
        yield server.address
    finally:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., gear.Client]]:
    """A function that connects to an address over a path; what it made is closed at the end."""
    with ExitStack() as stack:
        yield lambda address, path="rdma": stack.enter_context(gear.connect(address, path=path, timeout=120.0))
