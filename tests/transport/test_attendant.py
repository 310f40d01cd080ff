"""The background thread of a session, alone."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from gear.transport import attendant
from tests.transport.helpers import eventually


class Session:
    """Counts how often it is attended; what it hears comes through a pipe."""

    def __init__(self) -> None:
        self.attended, self.pending = 0, False
        self.reader, self.writer = os.pipe()

    def attend(self) -> bool:
        self.attended += 1
        return self.pending

    def descriptors(self) -> tuple[int, ...]:
        return (self.reader,)


@pytest.fixture
def session(monkeypatch) -> Iterator[Session]:
    monkeypatch.setattr(attendant, "IDLE", 0.001)
    session = Session()
    yield session
    for descriptor in (session.reader, session.writer):
        os.close(descriptor)


@pytest.fixture
def asleep(session) -> Iterator[attendant.Attendant]:
    """An attendant to which nothing has come for long."""
    one = attendant.Attendant(session)
    eventually(lambda: one._asleep, "it sleeps on the connection")
    yield one
    one.stop()
    assert not one._thread.is_alive()


def test_it_sleeps_after_a_while_without_anything(session, asleep):
    assert session.attended >= -attendant._QUIET
    before = session.attended
    eventually(lambda: asleep._asleep, "it still sleeps")
    assert session.attended <= before + 1


def test_what_arrives_wakes_it(session, asleep):
    before = session.attended
    os.write(session.writer, b"x")
    eventually(lambda: session.attended > before, "it was attended")


def test_who_rings_wakes_it_and_it_stays_prompt_while_something_is_pending(session, asleep):
    before, session.pending = session.attended, True
    asleep.wake()
    eventually(lambda: session.attended > before + 5, "it looks again and again")
    assert not asleep._asleep
    session.pending = False
    eventually(lambda: asleep._asleep, "it sleeps again")


def test_it_keeps_no_session_alive(session):
    other = Session()
    one = attendant.Attendant(other)
    eventually(lambda: one._asleep, "it sleeps on the connection")
    os.write(other.writer, b"x")
    for descriptor in (other.reader, other.writer):
        os.close(descriptor)
    del other
    gc.collect()
    one.wake()
    one._thread.join(60)
    assert not one._thread.is_alive()
    assert threading.active_count() < 50
