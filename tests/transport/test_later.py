"""What comes after an insert over a connection that keeps breaking, and what a bad client may say about it."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from gear.errors import DataError, ProtocolError
from gear.schema import Column, Trajectories, Whole
from gear.schema import Table as Declared
from gear.transport.base import Wanted
from gear.transport.shm import ShmSession
from gear.transport.tcp import TcpSession
from tests.transport.helpers import eventually, figures, insert, table


def late_table(name: str) -> Declared:
    columns = (Column("k", (), "int64"), Column("a", (), "int64", late=True))
    given = {"mean_length": 10, "max_length": 400, "block_steps": 10, "requirements": (("a",),), "include_open": True}
    return Declared(name, columns, Trajectories(400), item=Whole(), **given)


@pytest.mark.parametrize("kind", [ShmSession, TcpSession])
def test_appends_and_fills_happen_exactly_once_over_a_connection_that_keeps_breaking(proxy, session, name, kind):
    """Origin: xtuner#2003: a retried append must not double the tokens."""
    broken = proxy.session(kind)
    opened = broken.create_table(late_table(name), 60.0)
    chance, length = random.Random(7), 0
    one = broken.begin(opened, b"", None, 20.0)
    for number in range(60):
        if number % 4 == 1:
            proxy.cut_after(chance.randrange(1, 600))
        rows = np.arange(length, length + 1 + number % 5)
        length = broken.append(opened, one, length, len(rows), {"k": rows.tobytes()}, 20.0)
    proxy.cut_after(50)
    assert broken.seal(opened, one, True, {}, b"", np.empty(0), 20.0) == length == 180
    proxy.cut_after(80)
    late = {"a": memoryview((np.arange(length) * 2).tobytes())}
    assert tuple(broken.fill(opened, np.array([one]), np.array([length]), late, 20.0)) == (1, 0)
    after = figures(session, name)
    assert proxy.cuts > 8
    assert (after["trajectories"], after["steps"], after["filled_trajectories"]) == (1, 180, 1)
    assert after["open_trajectories"] == after["open_steps"] == 0
    broken.close()


def test_a_reader_that_waits_for_a_column_holds_up_no_other_and_is_woken_by_it(open_session, name):
    """Origin: TransferQueue, observed: a reader that waits never blocks a writer."""
    reader, other = open_session(), open_session()
    opened = other.create_table(late_table(name), 60.0)
    mine, got = reader.open_table(name, 60.0), []
    waiting = threading.Thread(target=lambda: got.append(reader.select(mine, Wanted(2, which=1), 30.0)))
    waiting.start()
    eventually(lambda: figures(other, name)["waiting_readers"] == 1, "the reader waits")
    for number in range(20):
        insert(other, opened, number)
    selection = other.select(opened, Wanted(4), 60.0)
    other.release(opened, selection, True)
    assert not got
    assert figures(other, name)["waiting_readers"] == 1
    late = {"a": memoryview(np.zeros(3, np.int64).tobytes())}
    other.fill(opened, selection.ids[:1], np.array([3]), late, 60.0)
    waiting.join(60)
    assert got[0].ids.tolist() == [selection.ids[0]] * 2


def test_what_does_not_fit_is_refused_and_changes_nothing(open_session, name):
    session = open_session()
    opened = session.create_table(late_table(name), 60.0)
    insert(session, opened, 1)
    plain = session.create_table(table(f"{name}-plain"), 60.0)
    ids, three = session.select(opened, Wanted(1), 60.0).ids, np.array([3])
    eight = memoryview(bytes(8))
    for columns, lengths, error in (
        ({"a": eight}, three, ProtocolError),
        ({"k": eight}, np.array([1]), DataError),
        ({"a": eight}, np.array([-1]), ProtocolError),
        ({"a": eight}, np.array([1, 0]), ProtocolError),
        ({"a": eight}, np.array([1]), DataError),
    ):
        with pytest.raises(error):
            session.fill(opened, ids, lengths, columns, 5.0)
    with pytest.raises(ProtocolError, match="no set of items number 1"):
        session.select(plain, Wanted(1, which=1), 5.0)
    with pytest.raises(ProtocolError, match="expected 0 bytes of per-trajectory columns"):
        session.begin(opened, b"12", None, 5.0)
    one = session.begin(opened, b"", None, 60.0)
    for rows, columns in ((1, {}), (0, {"k": b""}), (2, {"k": bytes(8)}), (1, {"a": bytes(8)})):
        with pytest.raises(ProtocolError):
            session.append(opened, one, 0, rows, columns, 5.0)
    with pytest.raises(DataError, match="is not there"):
        session.append(opened, 1 << 60, 0, 1, {"k": bytes(8)}, 5.0)
    assert (figures(session, name)["filled_trajectories"], session.length(opened, one, 60.0)) == (0, 0)
