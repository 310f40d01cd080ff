"""What a reader makes of a server's answer to a push, without a device."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from gear.errors import DataError, DeadlineExceeded, DeviceError, InsufficientMemory, PinLost, SchemaError
from gear.transport import rdma_pushed
from gear.transport.pieces import Piece
from gear.transport.rdma_pool import Pool
from gear.transport.rdma_pushed import PushedSession


class Played(PushedSession):
    """A session with a server that answers every push with one error."""

    def __init__(self, error: Exception) -> None:
        self._error, self.closed = error, 0
        self.broke: list[str] = []
        back = SimpleNamespace(close=lambda: setattr(self, "closed", self.closed + 1))
        self._way = SimpleNamespace(
            ready=lambda talk: "pair", back=back, broke=lambda pair, why: self.broke.append(why)
        )  # type: ignore[assignment]
        self._pushed_to = Pool(lambda memory: SimpleNamespace(rkey=1, close=lambda: None))

    @contextlib.contextmanager
    def _talking(self):
        yield SimpleNamespace(ask=self._ask)

    def _ask(self, body, deadline, frames):
        raise self._error

    def _plan(self, table, plan, lengths):
        return plan

    def _part(self, table, lengths, whole, items):
        return Piece(SimpleNamespace(nbytes=100), items, 0, 0)

    def pushed(self) -> bool:
        table = SimpleNamespace(layout=SimpleNamespace(index=0))
        selection = SimpleNamespace(lengths=np.ones(2, np.int32), starts=np.zeros(2, np.int64), pin=1)
        return self._have_pushed(table, selection, None, np.zeros(100, np.uint8), 0, 0)


@pytest.fixture(autouse=True)
def one_piece(monkeypatch):
    monkeypatch.setattr(rdma_pushed, "cut", lambda plan, lengths, nbytes: [slice(0, 2)])
    monkeypatch.setattr(rdma_pushed, "shape_of", lambda plan: rdma_pushed.m.Shape((), 1))


@pytest.mark.parametrize("error", [PinLost("p"), DataError("a late column is not there"), SchemaError("s")])
def test_what_is_wrong_with_a_request_costs_no_queue_pair(error):
    session = Played(error)
    with pytest.raises(type(error)):
        session.pushed()
    assert not session.broke
    assert not session.closed
    assert session._pushed_to.idle


@pytest.mark.parametrize("error", [DeviceError("gone"), DeadlineExceeded("late")])
def test_after_a_push_that_may_still_come_its_buffer_is_used_again_only_without_the_pair(error):
    session = Played(error)
    assert not session.pushed()
    assert session.broke == [str(error)]
    assert session.closed
    assert session._pushed_to.idle


def test_a_batch_for_which_there_is_no_memory_is_asked_for_over_tcp(monkeypatch):
    session = Played(DataError("never asked"))

    def no(nbytes: int) -> None:
        raise InsufficientMemory("no")

    monkeypatch.setattr(session._pushed_to, "take", no)
    assert not session.pushed()
    assert not session.broke
