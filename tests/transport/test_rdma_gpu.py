"""Which way an adapter reaches a GPU's memory, with made-up ones: a trial decides, and says why not by a better one."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest

from gear.errors import DeviceError
from gear.transport import rdma_gpu
from gear.transport.rdma_gpu import TRIAL, Door, register, trial


class Refused(Exception):
    """What stands for pyverbs' errors."""


class Driver:
    """A driver that exports memory or does not, and whose memory is lent and given back."""

    def __init__(self, exports: bool) -> None:
        self.exports, self.lent, self.given = exports, 0, -1

    def at(self, number: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def allocate(self, nbytes: int, owner: str) -> int:
        self.lent += 1
        return 1 << 40

    def free(self, address: int) -> None:
        self.lent -= 1

    def dmabuf(self, address: int, nbytes: int) -> int:
        if not self.exports:
            raise DeviceError("NOT_SUPPORTED")
        self.given = os.open(os.devnull, os.O_RDONLY)
        return self.given


@pytest.fixture
def opens(monkeypatch):
    """A function that says which doors the adapter opens; the registrations made through them."""
    made: list[tuple] = []

    def choose(*doors: Door) -> list[tuple]:
        def region(door: Door, *seen: int) -> SimpleNamespace:
            if door not in doors:
                raise Refused(f"no {door.value}")
            made.append((door, *seen))
            return SimpleNamespace(close=lambda: made.append((door, "closed")))

        verbs = SimpleNamespace(
            PyverbsError=Refused,
            enums=SimpleNamespace(IBV_ACCESS_LOCAL_WRITE=1),
            DmaBufMR=lambda domain, nbytes, access, dmabuf, offset: region(Door.DMABUF, nbytes, offset),
            MR=lambda domain, nbytes, access, address: region(Door.PEER, nbytes, address),
        )
        monkeypatch.setattr(rdma_gpu, "verbs", lambda: verbs)
        return made

    monkeypatch.setattr(rdma_gpu, "device", lambda: SimpleNamespace(domain=None))
    for name in ("check", "enter", "leave"):
        monkeypatch.setattr(rdma_gpu, name, lambda: None)
    return choose


def test_memory_that_the_driver_exports_is_registered_by_its_descriptor(opens):
    made, driver = opens(Door.DMABUF, Door.PEER), Driver(exports=True)
    assert trial(driver, 0) == (Door.DMABUF, "")
    assert made == [(Door.DMABUF, TRIAL, 0), (Door.DMABUF, "closed")]
    assert driver.lent == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(driver.given)
    assert register(driver, 1 << 40, TRIAL, 1).base == 0


@pytest.mark.parametrize("exports", [True, False])
def test_else_by_its_address_if_the_module_lets_it(opens, exports):
    made, driver = opens(Door.PEER), Driver(exports)
    assert trial(driver, 0) == (Door.PEER, "")
    assert made == [(Door.PEER, TRIAL, 1 << 40), (Door.PEER, "closed")]
    assert register(driver, 1 << 40, TRIAL, 1).base == 1 << 40


def test_else_it_goes_through_memory_of_the_host_and_both_reasons_are_told(opens):
    opens()
    driver = Driver(exports=False)
    door, why = trial(driver, 0)
    assert door is Door.STAGING
    assert "dma-buf: NOT_SUPPORTED" in why
    assert "nvidia-peermem: no nvidia-peermem" in why
    assert driver.lent == 0
