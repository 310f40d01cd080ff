"""Who waits for whom on a GPU, over made-up streams: what the simulator has nothing to show of."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numba.cuda
import pytest
import torch

from gear.devices import streams


@pytest.fixture
def said(monkeypatch):
    """What torch and Numba are asked, in order."""
    log: list[tuple[Any, ...]] = []

    class Fake:
        cuda_stream = 77

        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, method: str) -> Any:
            return lambda *given: log.append((self.name, method, *(getattr(g, "name", g) for g in given)))

    class Always:
        """A context that may be entered many times."""

        def __init__(self, made: Any) -> None:
            self.made, self.now = made, []

        def __enter__(self) -> None:
            self.now.append(self.made())
            self.now[-1].__enter__()

        def __exit__(self, *error: Any) -> None:
            self.now.pop().__exit__(*error)

    def entered(what: str) -> Any:
        @contextlib.contextmanager
        def manager(*_: Any) -> Any:
            log.append(("enter", what))
            yield

        return manager

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Fake("own"))
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: Fake("event"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Fake("current"))
    monkeypatch.setattr(torch.cuda, "stream", entered("stream"))
    monkeypatch.setattr(numba.cuda, "external_stream", lambda pointer: ("numba's", pointer), raising=False)
    monkeypatch.setattr(numba.cuda, "gpus", {3: Always(entered("gpu 3"))}, raising=False)
    return log, Fake


def test_a_batch_is_handed_over_by_events_and_torch_knows_who_uses_it(said):
    log, fake = said
    stream = streams.Stream(3)
    assert stream.numba == ("numba's", 77)
    assert log.pop() == ("enter", "gpu 3")  # a stream of Numba's is of the device in use
    event, tensor = fake("event"), fake("tensor")
    with stream.here():
        stream.record(event)
    stream.hand_over(event, tensor)
    stream.mark_consumer(event)
    stream.follow(event)
    assert log == [
        ("enter", "gpu 3"), ("enter", "stream"),
        ("event", "record", "own"),
        ("current", "wait_event", "event"), ("tensor", "record_stream", "current"),
        ("event", "record", "current"),
        ("own", "wait_event", "event"),
    ]  # fmt: skip


def test_what_follows_kernels_that_failed_is_done_all_the_same(said):
    """Origin: pins stayed, and whoever waited for the rest, as a client that closes, waited for ever."""
    _, fake = said
    stream, done = streams.Stream(3), threading.Event()

    class Failed(fake):
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    stream.event = lambda: Failed("event")
    stream.after(done.set)
    assert done.wait(10)


def test_what_follows_kernels_is_done_in_their_order_by_a_thread_that_waits(said, monkeypatch):
    log, _ = said
    stream, done = streams.Stream(3), []
    gate = threading.Event()
    stream.after(lambda: (gate.wait(10), done.append(threading.current_thread().name)))
    stream.after(lambda: 1 / 0)
    stream.after(lambda: done.append("last"))
    assert done == []
    gate.set()
    stream.drain()
    assert done == ["gear-stream", "last"]
    words = [entry[:2] for entry in log]
    assert words.count(("event", "record")) == words.count(("event", "synchronize")) == 4


def test_while_a_device_gets_its_stream_no_other_thread_makes_one(monkeypatch):
    """Origin: two threads that asked at once got one each, of which `drain_all` waited for the last."""
    others_may = []
    monkeypatch.setattr(streams, "Stream", lambda number: others_may.append(streams._making.acquire(blocking=False)))
    monkeypatch.setattr(streams, "_streams", {})
    for _ in range(2):
        streams.stream_of(3)
    assert others_may == [False]
