"""Tables on several shards as a client sees them, over both data paths: what goes in, what is drawn and how often."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats

import gear
from gear.errors import ConnectionLost, DeadlineExceeded, InsufficientMemory, TableMismatch, TableNotFound
from gear.storage.fields import ID_SHARD_SHIFT
from gear.transport import messages as m

FALSE_ALARM = 1e-6
COLUMNS = [gear.Column("obs", (2,)), gear.Column("k", (), "int64")]


def numbered(number: int, steps: int = 4) -> dict[str, np.ndarray]:
    """A trajectory whose rows all hold `number`."""
    return {"obs": np.full((steps, 2), number, np.float32), "k": np.full(steps, number)}


def declare(name: str, **fields) -> gear.Table:
    fields = {"capacity": gear.Trajectories(1000), "item": gear.Whole(), "mean_length": 6, **fields}
    return gear.Table(name, COLUMNS, **fields)


def shards_of(ids: np.ndarray) -> set[int]:
    return set((ids >> ID_SHARD_SHIFT & 0xFF).tolist())


@pytest.fixture(params=["shm", "tcp"])
def client(shards, request) -> Iterator[gear.Client]:
    with gear.connect(shards.address, path=request.param) as client:
        yield client


@pytest.fixture
def one(shards) -> Iterator[gear.Client]:
    """Over the better path, where the path makes no difference."""
    with gear.connect(shards.address) as client:
        yield client


def test_everything_written_is_stored_once_on_both_shards_and_reads_back(client, name):
    client.create_table(declare(name, item=gear.Window(4), publish="rows"))
    for number in range(10):
        client.insert(numbered(number), name)
    client.insert_many([numbered(number) for number in range(10, 200)], name)
    client.insert_many(
        {
            "obs": np.repeat(np.arange(200, 300, dtype=np.float32), 4)[:, None].repeat(2, 1),
            "k": np.arange(200, 300).repeat(4),
        },
        name,
        offsets=np.arange(0, 404, 4),
    )
    with client.writer(name) as writer:
        for number in range(300, 310):
            for _ in range(4):
                writer.append({"obs": np.full(2, number, np.float32), "k": number})
            writer.end()
    with client.writer(name, num_envs=3, autoreset="disabled") as envs:
        for _ in range(4):
            envs.append({"obs": np.arange(310, 313, dtype=np.float32)[:, None].repeat(2, 1), "k": np.arange(310, 313)})
        envs.end()
    client.flush()
    ids = np.concatenate([page.ids for page in client.scan(name, page=50)])
    assert len(ids) == len(set(ids.tolist())) == 313
    assert shards_of(ids) == {0, 1}
    trajectories = np.concatenate([page.trajectories for page in client.scan(name)])
    assert len(set(trajectories.tolist())) == 313
    seen: set[int] = set()
    while len(seen) < 313:
        batch = client.sample(512, name)
        assert (batch["k"] == batch["k"][:, :1]).all()
        assert (batch["obs"] == batch["k"][..., None]).all()
        assert shards_of(batch.ids) == {0, 1}
        seen |= set(batch["k"][:, 0].tolist())
    assert seen == set(range(313))


def test_columns_and_padding_go_to_their_items_whatever_part_they_come_from(client, name):
    table = gear.Table(
        name,
        [*COLUMNS, gear.Column("label", (), "int32", per="trajectory")],
        gear.Steps(1000),
        item=gear.Window(4, edge="tail"),
        mean_length=6,
    )
    client.create_table(table)
    for number in range(1, 41):
        client.insert({**numbered(number, 1 + number % 6), "label": np.int32(number)}, name)
    batch = client.sample(300, name)
    mask, number = batch.mask, batch["label"]
    assert (batch["k"] == np.where(mask, number[:, None], 0)).all()
    assert (batch["obs"] == batch["k"][..., None]).all()
    assert (mask.sum(1) == batch.lengths).all()
    again = client.sample(300, name, out=batch)
    assert again is batch
    assert (batch["k"] == np.where(batch.mask, batch["label"][:, None], 0)).all()


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_draws_from_shards_of_unequal_mass_match_p_to_the_alpha(one, name, alpha):
    one.create_table(declare(name, sampler=gear.Prioritized(alpha), seed=5))
    for number in range(60):
        one.insert(numbered(number), name)
    ids = np.concatenate([page.ids for page in one.scan(name)])
    heavy = (ids >> ID_SHARD_SHIFT & 0xFF) == 1
    priorities = np.random.default_rng(2).gamma(2.0, 1.0, len(ids)) * np.where(heavy, 7.0, 1.0) + 0.3
    assert one.update_priorities(ids, priorities) == (60, 0)
    expected = dict(zip(ids.tolist(), priorities**alpha / (priorities**alpha).sum(), strict=True))
    one.sample(8, name)  # brings the masses
    counts = dict.fromkeys(expected, 0)
    smallest = min(expected.values())
    for _ in range(80):
        selection = one.select(1000, name)
        one.release(selection)
        for item, times in zip(*np.unique(selection.ids, return_counts=True), strict=True):
            counts[int(item)] += int(times)
        assert np.allclose(selection.probabilities, [expected[item] for item in selection.ids.tolist()], rtol=1e-9)
        assert selection.smallest == pytest.approx(smallest)
    observed = np.array([counts[item] for item in expected])
    assert stats.chisquare(observed, np.array(list(expected.values())) * observed.sum()).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("sampler", "item"),
    [
        (gear.Uniform(), gear.Whole()),
        (gear.Uniform(), gear.Window(4, edge="tail")),
        (gear.Uniform("trajectories"), gear.Window(4, edge="tail")),
    ],
)
def test_uniform_draws_are_uniform_over_shards_of_unequal_size(one, name, sampler, item):
    one.create_table(declare(name, sampler=sampler, item=item, seed=3))
    for number in range(40):  # every other one, so all on one shard, is long
        one.insert(numbered(number, 9 if number % 2 else 2), name)
    one.sample(8, name)
    counts: dict[int, int] = {}
    for _ in range(60):
        selection = one.select(1000, name)
        one.release(selection)
        for item_id, times in zip(*np.unique(selection.ids, return_counts=True), strict=True):
            counts[int(item_id)] = counts.get(int(item_id), 0) + int(times)
    pages = list(one.scan(name))
    ids = np.concatenate([page.ids for page in pages])
    trajectories = np.concatenate([page.trajectories for page in pages])
    expected = np.full(len(ids), 1 / len(ids))
    if sampler.over == "trajectories":
        of, size = np.unique(trajectories, return_inverse=True, return_counts=True)[1:]
        expected = 1 / (size[of] * len(size))
    observed = np.array([counts.get(item_id, 0) for item_id in ids.tolist()])
    assert stats.chisquare(observed, expected * observed.sum()).pvalue > FALSE_ALARM


def test_the_importance_weighted_mean_is_unbiased_while_priorities_change(shards, one, name):
    one.create_table(declare(name, sampler=gear.Prioritized(0.8)))
    count = 50
    for number in range(count):
        one.insert(numbered(number), name)
    ids = np.concatenate([page.ids for page in one.scan(name)])
    stop = threading.Event()

    def disturb() -> int:
        rng, rounds = np.random.default_rng(1), 0
        with gear.connect(shards.address) as other:
            other.info()
            other.sample(1, name)  # knows the table
            while not stop.is_set():
                some = rng.choice(ids, 20, replace=False)
                assert other.update_priorities(some, rng.gamma(1.0, 3.0, 20) + 0.1) == (20, 0)
                rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        try:
            means = []
            for _ in range(400):
                batch = one.sample(200, name)
                means.append(np.mean(batch["k"][:, 0] / (count * batch.probabilities)))
        finally:
            stop.set()
        assert disturbing.result(60) > 20
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - (count - 1) / 2) < 5 * error


def test_a_shard_that_gets_its_first_items_is_drawn_from(client, name):
    client.create_table(declare(name))
    client.insert(numbered(0), name)
    first = shards_of(client.sample(64, name).ids)
    assert len(first) == 1
    client.insert(numbered(1), name)  # goes to the other shard
    client.sample(64, name)  # brings its mass
    assert shards_of(client.sample(64, name).ids) == {0, 1}


def test_who_waits_for_all_shards_is_woken_by_the_first_that_can_serve(shards, one, name):
    one.create_table(declare(name))
    with gear.connect(shards.address) as writer, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one.sample, 16, name, timeout=30.0) for _ in range(2)]
        for asked in waiting:
            with pytest.raises(TimeoutError):
                asked.result(0.2)
        writer.insert(numbered(7), name)
        for asked in waiting:
            assert (asked.result(60)["k"] == 7).all()


def test_a_sample_of_nothing_times_out_and_leaves_one_request_per_shard(one, name):
    one.create_table(declare(name))
    for _ in range(5):
        with pytest.raises(DeadlineExceeded, match="no item that can be drawn on any of its 2 shards"):
            one.sample(4, name, timeout=0.05)
    spread = one._tables.port(name, 1.0).open
    assert len(spread.watches) == 2
    calls = [len(session._talk._calls) for session in one._session.living.values()]
    assert calls == [1, 1]


def test_what_a_part_cannot_give_is_drawn_from_the_others(one, name):
    one.create_table(declare(name, max_times_sampled=1))
    for number in range(8):
        one.insert(numbered(number), name)
    got = one.sample(6, name)["k"][:, 0].tolist()
    got += one.sample(6, name)["k"][:, 0].tolist()  # two are left
    assert sorted(got) == list(range(8))
    one.insert(numbered(8), name)
    assert one.sample(6, name)["k"][:, 0].tolist() == [8]


def test_distinct_batches_hold_no_item_twice_and_wait_for_enough(shards, one, name):
    one.create_table(declare(name, distinct=True, sampler=gear.Prioritized(1.0)))
    for number in range(10):
        one.insert(numbered(number), name, priority=100.0 if number % 2 else 0.01)
    for _ in range(20):
        assert len(set(one.sample(10, name).ids.tolist())) == 10
    with pytest.raises(DeadlineExceeded, match="10 items can be drawn on its 2 shards and a batch of 11"):
        one.sample(11, name, timeout=0.05)
    with gear.connect(shards.address) as writer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.sample, 12, name, timeout=30.0)
        for number in (10, 11):
            writer.insert(numbered(number), name)
        assert sorted(waiting.result(60)["k"][:, 0].tolist()) == list(range(12))


def test_epochs_take_every_item_once_per_epoch_of_its_shard(one, name):
    one.create_table(declare(name, sampler=gear.Epochs()))
    for number in range(20):
        one.insert(numbered(number), name)
    seen = np.concatenate([one.sample(20, name).ids for _ in range(30)])
    for shard in (0, 1):
        mine = seen[(seen >> ID_SHARD_SHIFT & 0xFF) == shard]
        times = np.unique(mine, return_counts=True)[1]
        assert times.max() - times.min() <= 1


def test_a_selection_of_several_shards_travels_and_is_shared_by_parties(shards, client, name):
    client.create_table(declare(name))
    for number in range(20):
        client.insert(numbered(number), name)
    client.sample(1, name)
    selection = client.select(64, name, parties=2)
    assert {part.shard for part in selection.parts} == {0, 1}
    sent = gear.Selection.from_bytes(selection.to_bytes())
    assert sent.parts == selection.parts
    with gear.connect(shards.address) as other:
        theirs, ours = other.collect(sent, columns=["k"]), client.collect(selection, columns=["obs"])
        assert (ours["obs"][..., 0] == theirs["k"]).all()
        assert client.info()["tables"][name]["pins"] == 2
        other.release(sent)
        client.release(selection)
        client.info()
    assert client.info()["tables"][name]["pins"] == 0


def test_a_damaged_selection_is_refused(one, name):
    one.create_table(declare(name))
    for number in range(8):
        one.insert(numbered(number), name)
    selection = one.select(16, name)
    with pytest.raises(gear.errors.DataError, match="parts on shards 0, 1"):
        one.collect(
            gear.Selection(
                name, *(getattr(selection, a) for a in ("ids", "probabilities", "starts", "lengths")), 1.0, 9
            )
        )
    selection.starts[3] = 1 << 40
    with pytest.raises(gear.errors.DataError, match=r"starts\[3\]"):
        one.collect(selection)
    one.release(selection)


def test_updates_go_to_the_shards_of_their_ids(one, name):
    one.create_table(declare(name, capacity=gear.Trajectories(10), sampler=gear.Prioritized(1.0)))
    for number in range(10):
        one.insert(numbered(number), name)
    ids = one.sample(64, name).ids
    for number in range(10, 20):
        one.insert(numbered(number), name)
    fresh = np.concatenate([page.ids for page in one.scan(name)])
    assert one.update_priorities(np.concatenate([ids, fresh]), np.ones(74)) == (10, 64)
    with pytest.raises(gear.errors.DataError, match=r"priorities\[1\]"):
        one.update_priorities(fresh[:2], [1.0, -1.0])


def test_tables_with_an_order_lie_on_one_shard(one, name):
    one.create_table(declare(name, limiter=gear.Queue(10), capacity=gear.Trajectories(20)))
    for number in range(10):
        one.insert(numbered(number), name)
    with pytest.raises(DeadlineExceeded):
        one.insert(numbered(10), name, timeout=0.1)
    assert one.sample(10, name)["k"][:, 0].tolist() == list(range(10))
    assert one.sample.__self__._tables.port(name, 1.0).shard is None


def test_a_queue_over_two_shards_keeps_the_order_of_each_and_holds_as_much(one, name):
    one.create_table(declare(name, limiter=gear.Queue(10), capacity=gear.Trajectories(20), shards=2))
    for number in range(10):
        one.insert(numbered(number), name, timeout=60.0)
    with pytest.raises(DeadlineExceeded):
        one.insert(numbered(10), name, timeout=0.1)
    got: list[tuple[int, int]] = []
    while len(got) < 10:
        batch = one.sample(4, name, timeout=60.0)
        got += zip((batch.ids >> ID_SHARD_SHIFT & 0xFF).tolist(), batch["k"][:, 0].tolist(), strict=True)
    assert sorted(number for _, number in got) == list(range(10))
    for shard in (0, 1):
        mine = [number for of, number in got if of == shard]
        assert mine == sorted(mine)
        assert len(mine) == 5


def test_a_table_is_created_on_all_shards_or_on_none(one, name):
    """60 MiB fit into neither half of 64; of the two parts of a table the larger is refused and the other not kept."""
    before = one.info()["segment_bytes"]
    with pytest.raises(InsufficientMemory, match="on shard"):
        one.create_table(declare(name, capacity=gear.Bytes(100 << 20)))
    session = one._session
    small = declare(name, capacity=gear.Trajectories(10))
    spec = gear.schema.to_bytes(small)
    session.session(1).answer(session.session(1).post(m.CreateTable(spec, True)), "create", 1e12)  # and then it died
    with pytest.raises(TableNotFound):
        one.sample(1, name, timeout=0.1)
    assert name not in one.info()["tables"]
    other = declare(name, capacity=gear.Trajectories(12))
    one.create_table(other)
    one.create_table(other)
    with pytest.raises(TableMismatch, match="capacity"):
        one.create_table(small)
    assert one.info()["tables"][name]["capacity"] == {"trajectories": 12}
    assert one.info()["segment_bytes"] > before


def test_a_creation_that_stopped_half_way_is_completed_by_the_next(one, shards, name):
    table = declare(name)
    spec = gear.schema.to_bytes(table)
    session = one._session
    for shard, hidden in ((0, True), (1, True), (0, False)):
        session.session(shard).answer(session.session(shard).post(m.CreateTable(spec, hidden)), "create", 1e12)
    with gear.connect(shards.address) as other:
        other.insert(numbered(1), name)
        other.insert(numbered(2), name)
        assert shards_of(np.concatenate([page.ids for page in other.scan(name)])) == {0, 1}


def test_figures_are_those_of_all_shards(one, name):
    one.create_table(declare(name))
    for number in range(12):
        one.insert(numbered(number), name)
    info = one.info()
    assert info["tables"][name]["trajectories"] == 12
    assert info["memory_limit"] == 64 << 20
    assert {shard: state["ready"] for shard, state in info["shards"].items()} == {"0": True, "1": True}
    one.reset(name)
    assert one.info()["tables"][name]["trajectories"] == 0


def test_a_loader_and_asyncio_go_over_shards_too(one, name):
    import asyncio

    one.create_table(declare(name))
    one.insert_many([numbered(number) for number in range(20)], name)
    with one.loader(32, name, prefetch=2) as loader:
        for _ in range(5):
            batch = next(loader)
            assert (batch["k"] == batch["k"][:, :1]).all()
    assert len(asyncio.run(one.sample_async(32, name)).ids) == 32


def test_the_child_of_a_fork_starts_afresh_on_every_shard(one, name):
    one.create_table(declare(name))
    for number in range(8):
        one.insert(numbered(number), name)
    one.sample(8, name)
    with pytest.raises(TimeoutError):
        one.select(9, _empty(one, name), timeout=0.05)  # leaves requests behind
    child = os.fork()
    if not child:
        code = 1
        try:
            for number in range(8, 12):
                one.insert(numbered(number), name, timeout=20.0)
            batch = one.sample(64, name, timeout=20.0)
            code = 0 if (batch["k"] == batch["k"][:, :1]).all() and len(shards_of(batch.ids)) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    one.insert(numbered(12), name)
    assert one.info()["tables"][name]["trajectories"] == 13


def test_a_part_that_cannot_be_reached_now_is_not_left_out_for_good(one, shards, name, monkeypatch):
    """Origin: the child of a fork whose greeting a busy shard had not answered within 10 s knew the table by one part,
    for as long as it lived; a reset left the other part as it was, and said nothing."""
    one.create_table(declare(name))
    for number in range(8):
        one.insert(numbered(number), name)

    def refuse(body: m.Message, frames=()) -> None:
        raise ConnectionLost("the shard did not answer within 10 s")

    with gear.connect(shards.address) as other:
        session = other._session
        for action in (lambda: session.open_table(name, 5.0), lambda: other.reset(name)):
            with monkeypatch.context() as patch:
                patch.setattr(session.session(1), "post", refuse)
                with pytest.raises(ConnectionLost, match=f"shard 1, which holds a part of table '{name}', cannot"):
                    action()
            assert session.open_table(name, 5.0).opened.keys() == {0, 1}


def _empty(client: gear.Client, name: str) -> str:
    client.create_table(declare(f"{name}-empty"))
    return f"{name}-empty"
