"""One limiter over two shards, with real processes: Reverb's semantics, and nobody is ever stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gear
from gear.errors import ConnectionLost, DeadlineExceeded, ProtocolError
from gear.parts import holders
from gear.transport import messages as m
from tests.transport.helpers import eventually

STEP = {"k": np.zeros(2, np.int64)}
REVERB = gear.SampleToInsertRatio(1.5, 2, (0.0, 5.0))


def declare(name: str, limiter, **fields) -> gear.Table:
    fields = {"capacity": gear.Trajectories(1000), "item": gear.Whole(), "mean_length": 4, **fields}
    return gear.Table(name, [gear.Column("k", (), "int64")], limiter=limiter, **fields)


@pytest.fixture(params=["shm", "tcp"])
def client(shards, request) -> Iterator[gear.Client]:
    with gear.connect(shards.address, path=request.param) as client:
        yield client


@pytest.fixture
def one(shards) -> Iterator[gear.Client]:
    with gear.connect(shards.address) as client:
        yield client


def test_reverbs_case(client, name):
    """Samples per insert 1.5, min size 2, differences in [0, 5]: 3 inserts pass, the 4th waits, 2 samples admit one."""
    client.create_table(declare(name, REVERB))
    for _ in range(3):
        client.insert(STEP, name, timeout=20.0)
    with pytest.raises(DeadlineExceeded, match="3 items inserted on all shards, 0 sampled.*nothing was inserted"):
        client.insert(STEP, name, timeout=0.2)
    client.sample(2, name, timeout=20.0)
    client.insert(STEP, name, timeout=20.0)
    with pytest.raises(DeadlineExceeded, match="4 items inserted on all shards, 2 sampled"):
        client.insert(STEP, name, timeout=0.2)
    client.sample(4, name, timeout=20.0)  # 1.5 * 4 - 6 = 0
    with pytest.raises(DeadlineExceeded, match="waits for inserts .4 items inserted on all shards, 6 sampled"):
        client.sample(1, name, timeout=0.2)
    assert client.info()["tables"][name]["pins"] == 0


def test_a_waiting_insert_on_one_shard_is_admitted_by_samples_of_the_other(shards, one, name):
    one.create_table(declare(name, REVERB))
    for _ in range(3):
        one.insert(STEP, name, timeout=20.0)
    with gear.connect(shards.address) as writer, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(writer.insert, STEP, name, timeout=60.0) for _ in range(2)]  # one on each shard
        eventually(lambda: one.info()["tables"][name]["waiting_writers"] == 2, "both wait")
        one.sample(2, name, timeout=20.0)
        eventually(lambda: any(one_of.done() for one_of in waiting), "one is admitted")
        one.sample(1, name, timeout=20.0)  # 1.5 * 5 - 3 <= 5
        for one_of in waiting:
            one_of.result(60)


def test_a_min_size_counts_all_shards_also_when_items_leave(client, name):
    client.create_table(declare(name, gear.MinSize(2), max_times_sampled=1))
    client.insert(STEP, name)
    with pytest.raises(DeadlineExceeded, match="holds 1 items on all its shards and its limiter wants at least 2"):
        client.sample(1, name, timeout=0.2)
    client.insert(STEP, name)
    client.insert(STEP, name)
    assert len(client.sample(1, name, timeout=20.0).ids) == 1
    assert len(client.sample(1, name, timeout=20.0).ids) == 1  # two are left
    eventually(lambda: client.info()["tables"][name]["items"] == 1, "the second has left")
    with pytest.raises(DeadlineExceeded):
        client.sample(1, name, timeout=0.2)
    client.insert(STEP, name)
    assert len(client.sample(8, name, timeout=20.0).ids) == 2


def test_a_reset_begins_anew_on_all_shards(one, name):
    one.create_table(declare(name, REVERB))
    for _ in range(2):
        for _ in range(3):
            one.insert(STEP, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded):
            one.insert(STEP, name, timeout=0.1)
        one.sample(2, name, timeout=20.0)
        one.reset(name)


def test_what_is_not_delivered_gives_its_credit_back(one, name):
    one.create_table(declare(name, REVERB))
    for _ in range(3):
        one.insert(STEP, name, timeout=20.0)
    one.sample(1, name, timeout=20.0)  # brings the masses
    for _ in range(5):
        selection = one.select(3, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded):
            one.select(1, name, timeout=0.05)
        one.release(selection, delivered=False)
    with one.loader(1, name, prefetch=3):
        pass
    one.sample(3, name, timeout=20.0)


def test_a_batch_beyond_the_limiters_span_gathers_its_credit(shards, one, name):
    one.create_table(declare(name, gear.SampleToInsertRatio(1.0, 1, (0.0, 2.0))))
    one.insert(STEP, name)
    with gear.connect(shards.address) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.sample, 12, name, timeout=60.0)
        for _ in range(11):
            one.insert(STEP, name, timeout=20.0)
        batch = waiting.result(60)
    assert len(batch.ids) == 12  # of one shard or both: its items may have been drawn when there was one


def test_batches_of_many_readers_that_need_all_the_credit_there_is_do_not_lock_each_other(shards, one, name):
    """Each wants what the limiter gives at most: with half of it each of two would wait for ever."""
    one.create_table(declare(name, gear.SampleToInsertRatio(1.0, 1, (0.0, 8.0))))
    for _ in range(8):
        one.insert(STEP, name, timeout=20.0)
    one.sample(1, name)
    one.insert(STEP, name, timeout=20.0)
    readers = [gear.connect(shards.address) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(reader.select, 8, name, timeout=60.0) for reader in readers]
        for _ in range(4):
            eventually(lambda: any(asked.done() for asked in waiting), "one of them is served")
            served = next(asked for asked in waiting if asked.done())
            at = waiting.index(served)
            waiting.pop(at)
            readers.pop(at).close()  # what it holds goes to the next
    assert one.info()["tables"][name]["pins"] == 0


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_writers_and_readers_of_one_ratio_end_together(shards, one, name, path):
    """Four writers and three readers on both shards, a long trajectory's worth of items each: exactly the ratio."""
    one.create_table(declare(name, gear.SampleToInsertRatio(2.0, 2, (0.0, 8.0))))
    inserts, stop = 150, threading.Event()

    def write() -> None:
        with gear.connect(shards.address, path=path) as client:
            for _ in range(inserts):
                client.insert(STEP, name, timeout=60.0)

    def read() -> int:
        sampled = 0
        with gear.connect(shards.address, path=path) as client:
            while not stop.is_set():
                try:
                    sampled += len(client.sample(4, name, timeout=0.5).ids)
                except DeadlineExceeded:
                    pass
        return sampled

    with ThreadPoolExecutor(7) as pool:
        writing = [pool.submit(write) for _ in range(4)]
        reading = [pool.submit(read) for _ in range(3)]
        try:
            for one_of in writing:
                one_of.result(100)
            eventually(lambda: one.info()["tables"][name]["sampled_items"] == 8 * inserts, "all is sampled")
        finally:
            stop.set()
        assert sum(one_of.result(60) for one_of in reading) == 8 * inserts
    figures = one.info()["tables"][name]
    assert figures["inserted_items"] == 4 * inserts
    assert figures["reserved_items"] == figures["pins"] == figures["waiting_writers"] == 0


def test_a_client_that_goes_leaves_no_credit_behind(shards, one, name):
    one.create_table(declare(name, REVERB))
    for _ in range(3):
        one.insert(STEP, name, timeout=20.0)
    one.sample(1, name)
    with gear.connect(shards.address) as other:
        other.select(3, name, timeout=20.0)
        with pytest.raises(DeadlineExceeded):
            one.sample(1, name, timeout=0.1)
    assert len(one.sample(3, name, timeout=20.0).ids) == 3


def test_accounts_of_strangers_are_refused(one, name):
    one.create_table(declare(name, REVERB))
    one.create_table(declare(f"{name}-free", gear.MinSize(1)))
    home = holders(declare(name, REVERB), 2)[0]
    for table, shard in ((name, 7), (name, home), (f"{name}-free", 1 - home), ("nothing", 1 - home)):
        session = one._session.session(home)
        with pytest.raises(ProtocolError, match="has nothing to report"):
            session.answer(session.post(m.Account(table, shard, 1, 0, 0, 0, 0)), "account", time.monotonic() + 10)


def test_the_token_is_wanted_between_shards_too(start_server, tmp_path, name):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a-long-secret")
    server = start_server("--devices", "cpu:2", "--token-file", str(token))
    with gear.connect(server.address, token="a-long-secret") as client:
        client.create_table(declare(name, REVERB))
        for _ in range(3):
            client.insert(STEP, name, timeout=20.0)
        client.sample(2, name, timeout=20.0)
    with pytest.raises((ConnectionLost, gear.errors.AuthenticationError)):
        gear.connect(server.address, timeout=5.0)
