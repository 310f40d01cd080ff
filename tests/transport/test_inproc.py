"""The in-process session: waiting threads are woken, refusals reach the waiter, expired pins end."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import gear
from gear.errors import Closed, DeadlineExceeded


def rows(steps: int = 4) -> dict[str, np.ndarray]:
    return {"x": np.arange(steps, dtype=np.float32)}


def table(**fields: object) -> gear.Table:
    declared = {"capacity": gear.Trajectories(8), "item": gear.Whole(), "mean_length": 4, "max_length": 16, **fields}
    return gear.Table("t", [gear.Column("x")], **declared)


def test_an_insert_held_back_by_the_limiter_times_out_without_side_effects():
    """Origin: prime-rl#2796: blocks or times out without side effects, and what is freed is usable at once."""
    with gear.embedded([table(limiter=gear.SampleToInsertRatio(1.0, 1, 2.0))]) as client:
        for _ in range(3):  # 1 + 1 + 1 inserts - 0 samples reach the upper bound
            client.insert(rows(), timeout=60.0)
        with pytest.raises(DeadlineExceeded, match="waits for samples .* nothing was inserted"):
            client.insert(rows(), timeout=0.05)
        before = client.info()["tables"]["t"]
        assert before["leased_blocks"] + before["used_blocks"] + before["free_blocks"] == (
            before["data_blocks"] + before["reserve_blocks"]
        )
        client.sample(2, timeout=60.0)
        client.insert(rows(), timeout=60.0)
        assert client.info()["tables"]["t"]["inserted_trajectories"] == before["inserted_trajectories"] + 1


def test_a_thread_that_waits_for_items_is_woken_by_an_insert_and_one_that_waits_for_credit_by_a_sample():
    with gear.embedded([table(limiter=gear.SampleToInsertRatio(1.0, 1, 2.0))]) as client:
        done: list[str] = []

        def learner() -> None:
            for _ in range(20):
                client.sample(1)
            done.append("learner")

        def actor() -> None:
            for _ in range(20):
                client.insert(rows())
            done.append("actor")

        threads = [threading.Thread(target=f) for f in (learner, actor)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(done) == ["actor", "learner"]


def test_closing_wakes_a_waiting_thread():
    client = gear.embedded([table()])
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.sample(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not client.info()["tables"]["t"]["waiting_readers"]:
        assert thread.is_alive()
    client.close()
    thread.join(60)
    assert isinstance(errors[0], Closed)


def test_an_expired_selection_returns_its_credit_and_its_rows_while_others_sample():
    with gear.embedded([table()]) as client:
        client.insert(rows())
        selection = client.select(2, ttl=0.01)
        deadline = time.monotonic() + 60
        while client.info()["tables"]["t"]["pins"]:
            client.sample(1)
            assert time.monotonic() < deadline
        assert client.info()["tables"]["t"]["reserved_items"] == 0
        with pytest.raises(gear.PinLost):
            client.collect(selection)


def test_threads_that_write_and_read_at_once_never_see_a_mixed_row():
    """Origin: pytorch/rl#3463, lerobot#2309."""
    columns = [gear.Column("a", (8,), "int64"), gear.Column("b", (), "int64")]
    replay = gear.Table("t", columns, gear.Steps(400), item=gear.Window(3, edge="tail"), mean_length=5)
    with gear.embedded([replay]) as client:
        stop = threading.Event()

        def write() -> None:
            k = 0
            while not stop.is_set():
                k += 1
                client.insert({"a": np.full((5, 8), k), "b": np.full(5, k)})

        writers = [threading.Thread(target=write) for _ in range(2)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(2000):
                batch = client.sample(50, timeout=20.0)
                a, b, mask = batch["a"], batch["b"], batch.mask
                assert ((a == b[:, :1, None]) | ~mask[..., None]).all()
        finally:
            stop.set()
            for writer in writers:
                writer.join(60)


def test_priorities_of_an_insert_that_waits_are_those_given():
    limiter = gear.SampleToInsertRatio(1.0, 1, 2.0)
    declared = table(capacity=gear.Trajectories(200), sampler=gear.Prioritized(1.0), limiter=limiter)
    with gear.embedded([declared]) as client:
        given = np.array([1.0])
        for _ in range(5):  # the fourth and fifth wait for samples
            client.insert(rows(), priority=given, wait=False)
        given[:] = -1.0  # reused by the actor
        for _ in range(4):
            client.sample(1, timeout=60.0)
        client.flush(5.0)
        assert client.info()["tables"]["t"]["inserted_trajectories"] == 5


def test_an_interrupted_wait_leaves_nothing_parked(monkeypatch):
    with gear.embedded([table(limiter=gear.SampleToInsertRatio(1.0, 2, 4.0))]) as client:
        client.insert(rows())
        session = client._session

        def interrupt(seconds: float, bell: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(session, "_sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.sample(1)
        monkeypatch.undo()
        client.insert(rows())
        figures = client.info()["tables"]["t"]
        assert (figures["reserved_items"], figures["pins"]) == (0, 0)
        assert session._tables["t"].queue.idle


def test_an_interrupted_insert_is_taken_back(monkeypatch):
    with gear.embedded([table(limiter=gear.SampleToInsertRatio(1.0, 1, 2.0))]) as client:
        for _ in range(3):
            client.insert(rows())
        session = client._session

        def interrupt(seconds: float, bell: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(session, "_sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.insert(rows())
        monkeypatch.undo()
        client.sample(3)
        assert client.info()["tables"]["t"]["inserted_trajectories"] == 3
        assert session._tables["t"].queue.idle


def test_selections_that_nobody_releases_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr("gear.client.reader.MOST_HELD", 8)
    with gear.embedded([table()]) as client:
        client.insert(rows())
        kept = client.select(1)
        for _ in range(50):
            client.select(1, ttl=1e-6)
        reader = client._tables.reader("t", None, None)
        assert len(reader._held) <= 9
        assert client.collect(kept)["x"].shape == (1, 4)
        client.release(kept)
