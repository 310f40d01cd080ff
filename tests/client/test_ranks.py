"""Data-parallel ranks share a draw: each gets its part once, whoever asks first, dies, or comes too late."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear
from tests.transport.helpers import Python, eventually

from .served import Desk, numbers

ONCE = {"sampler": gear.Fifo(), "max_times_sampled": 1}


def ask(desk, client, rank, size=1, ranks=2, **options):
    return client.sample(size, desk.name, **{"world_size": ranks, "rank": rank, "timeout": 5, **options})


def responses(client, *lengths, name="t"):
    for number, length in enumerate(lengths):
        client.insert({"k": np.full(length, number)}, name)


@pytest.fixture
def tokens():
    """A table of sequences of up to 64 steps, in this process."""
    table = gear.Table("t", [gear.Column("k", (), "int64")], gear.Trajectories(64), item=gear.Whole(), mean_length=8,
                       max_length=64, **ONCE)  # fmt: skip
    with gear.embedded([table]) as client:
        yield client


def test_ranks_get_disjoint_parts_of_the_same_draws_whoever_asks_first(desk):
    client = desk.open(**ONCE)
    clients = [client] if desk.path == "inproc" else [client, desk.another(), desk.another()]
    desk.insert(client, *range(18))
    seen = []
    for draw, order in enumerate([(0, 1, 2), (2, 1, 0), (1, 0, 2)]):
        for rank in order:
            batch = ask(desk, clients[rank % len(clients)], rank, 2, 3)
            assert (batch.draw, len(batch)) == (draw, 2)
            seen += numbers(batch)
    assert sorted(seen) == list(range(18))
    eventually(lambda: desk.figures(client)["pins"] == 0, "nothing is pinned")


def test_a_rank_that_is_ahead_gets_the_draws_the_others_get_later(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(8))
    ahead = [numbers(ask(desk, client, 1, 1)) for _ in range(4)]
    behind = [ask(desk, client, 0, 1) for _ in range(4)]
    assert [batch.draw for batch in behind] == [0, 1, 2, 3]
    assert sorted(sum(ahead + [numbers(batch) for batch in behind], [])) == list(range(8))


_RANK = """
import sys, gear
address, path, table, rank, ranks = sys.argv[1:]
client = gear.connect(address, path=path)
query = gear.Query(2, table=table)
print("here", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "select":
        selection = client.select(query, world_size=int(ranks), rank=int(rank), timeout=20)
        print(selection.draw, *selection.ids, flush=True)
    else:
        batch = client.sample(query, world_size=int(ranks), rank=int(rank), timeout=20)
        print(batch.draw, *batch["k"][:, 0], flush=True)
"""


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_processes_share_draws_and_one_that_is_killed_leaves_its_part_to_the_next(server, path):
    desk, ranks = Desk(path, lambda: server.address), 3
    client = desk.open(**ONCE)
    workers = [Python(_RANK, desk.address, path, desk.name, str(rank), str(ranks)) for rank in range(ranks)]
    try:
        assert {worker.read() for worker in workers} == {"here"}

        def step() -> list[list[int]]:
            for worker in workers:
                worker.say("sample")
            return [[int(word) for word in worker.read().split()] for worker in workers]

        for worker in workers:
            worker.say("sample")  # they wait for one draw before there is anything
        eventually(lambda: desk.figures(client)["waiting_readers"] == ranks, "all wait")
        desk.insert(client, *range(3))  # used up by one batch, which may be short then: one for each
        first = [[int(word) for word in worker.read().split()] for worker in workers]
        assert [line[0] for line in first] == [0, 0, 0]
        desk.insert(client, *range(3, 21))
        workers[1].say("select")
        words = workers[1].read().split()
        assert words[0] == "1"
        workers[1].process.kill()  # in the middle of draw 1
        workers[1].end()
        workers[1] = Python(_RANK, desk.address, path, desk.name, "1", str(ranks))
        assert workers[1].read() == "here"
        steps = [first] + [step() for _ in range(3)]
        assert [[line[0] for line in lines] for lines in steps] == [[draw] * ranks for draw in range(4)]
        assert sorted(number for lines in steps for line in lines for number in line[1:]) == list(range(21))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.end()
        desk.close()


def test_a_part_that_no_rank_comes_for_expires_and_the_late_rank_is_told_once(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(8))
    for draw in range(2):
        selection = client.select(2, desk.name, world_size=2, rank=0, ttl=0.3)
        assert selection.draw == draw
        client.release(selection)
    eventually(lambda: desk.figures(client)["pins"] == 0, "nothing is pinned")
    assert desk.figures(client)["lost_parts"] == 2
    with pytest.raises(gear.PartExpired, match=r"rank 1 of 2 of draw 0 to 1 .*expired.*its next one is of draw 2"):
        ask(desk, client, 1, 2)
    late, other = ask(desk, client, 1, 2), ask(desk, client, 0, 2)
    assert (late.draw, other.draw) == (2, 2)
    assert not set(late.ids) & set(other.ids)
    assert len({*numbers(late), *numbers(other)}) == 4  # what expired was given back and drawn again


def test_a_part_let_go_of_undelivered_comes_again(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(4))
    selection = client.select(1, desk.name, world_size=2, rank=0, ttl=30)
    client.release(selection, delivered=False)
    again = ask(desk, client, 0)
    assert again.draw == 0
    assert again.ids.tolist() == selection.ids.tolist()
    with pytest.raises(gear.PartExpired, match="of draw 0 was delivered"):
        ask(desk, client, 0, draw=0)
    assert ask(desk, client, 1).draw == 0


def test_a_rank_may_name_the_draw_it_wants(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(8))
    for rank in (1, 0):
        assert ask(desk, client, rank, draw=100).draw == 100  # after a restart: the trainer's step
    with pytest.raises(gear.PartExpired, match=r"of draw 99 .*has ended; its next one is of draw 101"):
        ask(desk, client, 0, draw=99)
    assert ask(desk, client, 0).draw == ask(desk, client, 1).draw == 101


def test_ranks_that_ask_for_different_things_are_told_of_both(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(8))
    ask(desk, client, 0, 2)
    with pytest.raises(gear.DataError, match=r"draw 0: rank 1 asks for size=3.*rank 0 for size=2"):
        ask(desk, client, 1, 3)
    with pytest.raises(gear.DataError, match=r"rank 1 of world_size=4 .* draws for world_size=2 \(1 parts"):
        ask(desk, client, 1, 2, ranks=4)
    assert ask(desk, client, 1, 2).draw == 0  # nothing was lost by that
    assert ask(desk, client, 3, 1, ranks=4).draw == 1


def test_an_error_of_a_draw_is_every_ranks(tokens):
    responses(tokens, 5, 21, 5, 5)  # origin: verl#7553
    query = gear.Query(max_steps=20)
    for rank in (1, 0):
        with pytest.raises(gear.DataError, match="an item of 21 steps"):
            tokens.sample(query, world_size=2, rank=rank, timeout=5)
    alone = gear.Query(max_steps=20, overlong="alone")
    parts = [tokens.sample(alone, world_size=2, rank=rank, timeout=60.0).lengths.tolist() for rank in (0, 1)]
    assert sorted(parts) == [[5, 5, 5], [21]]


@pytest.mark.parametrize("ranks", [8, 2])
def test_eight_sequences_of_7_under_a_cap_of_8_are_eight_batches(tokens, ranks):  # origin: verl#7553, OpenRLHF#1280
    responses(tokens, *[7] * 8)
    query = gear.Query(max_steps=8, layout="packed")
    batches = [
        tokens.sample(query, world_size=ranks, rank=rank, timeout=60.0)
        for _ in range(8 // ranks)
        for rank in range(ranks)
    ]
    assert sorted(batch["k"].tolist()[0] for batch in batches) == list(range(8))
    assert all(batch.cu_seqlens.tolist() == [0, 7] for batch in batches)
    with pytest.raises(gear.DeadlineExceeded, match=f"rank 0 of {ranks} timed out"):
        tokens.sample(query, world_size=ranks, rank=0, timeout=0.01)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=4, max_size=30), cap=st.integers(20, 60))
def test_every_rank_gets_as_many_batches_none_empty_none_above_the_cap(lengths, cap):
    table = gear.Table("t", [gear.Column("k", (), "int64")], gear.Trajectories(64), item=gear.Whole(), mean_length=8,
                       max_length=64, **ONCE)  # fmt: skip
    query, got = gear.Query(max_steps=cap), []
    with gear.embedded([table]) as client:
        responses(client, *lengths)
        while len(lengths) - sum(map(len, got)) >= 3:
            draw = [client.sample(query, world_size=3, rank=rank, timeout=60.0) for rank in range(3)]
            loads = [int(batch.lengths.sum()) for batch in draw]
            assert min(loads) > 0
            assert max(loads) <= cap
            got += [batch["k"][:, 0].tolist() for batch in draw]
        seen = sum(got, [])
        assert sorted(seen) == list(range(len(seen)))


@pytest.mark.parametrize("sampler", [gear.Uniform(), gear.Prioritized(), gear.Epochs()])
def test_any_sampler_draws_for_ranks_and_a_short_table_makes_them_wait(sampler):
    table = gear.Table("t", [gear.Column("k", (), "int64")], gear.Steps(64), item=gear.Window(4), sampler=sampler)
    with gear.embedded([table]) as client:
        with pytest.raises(gear.DeadlineExceeded, match="holds 0 items"):
            client.sample(2, world_size=4, rank=3, timeout=0.01)
        client.insert({"k": np.arange(8)})
        parts = [client.sample(2, world_size=4, rank=rank, timeout=60.0) for rank in range(4)]
        assert [(part.draw, part["k"].shape) for part in parts] == [(0, (2, 4))] * 4
        figures = client.info()["tables"]["t"]
        assert (figures["pins"], figures["reserved_items"], figures["sampled_items"]) == (0, 0, 8)


def test_a_consumers_claims_are_the_ranks_that_got_them(desk):
    client = desk.open(consumers=("reward", "trainer"))
    desk.insert(client, *range(8))
    batch = ask(desk, client, 0, 2, consumer="trainer")
    if desk.path != "inproc":
        with desk.another() as other:
            assert numbers(ask(desk, other, 1, 2, consumer="trainer")) == [2, 3]
        eventually(
            lambda: desk.figures(client)["consumers"]["trainer"]["claimed"] == 2, "it left"
        )  # it left without an ack
        assert client.ack(batch.ids).applied == 2
        parts = [numbers(ask(desk, client, rank, 2, consumer="trainer")) for rank in (0, 1)]
        assert parts == [[2, 3], [4, 5]]
    assert [numbers(ask(desk, client, rank, 1, consumer="reward")) for rank in (1, 0)] == [[1], [0]]


def test_a_consumers_part_that_was_not_delivered_waits_for_the_ranks_next_client(desk):
    if desk.path == "inproc":
        pytest.skip("one client")
    client = desk.open(consumers=("trainer",))
    desk.insert(client, *range(8))
    with desk.another() as gone:
        left = gone.select(2, desk.name, world_size=2, rank=0, consumer="trainer", timeout=60.0)
    batch = ask(desk, client, 0, 2, consumer="trainer")
    assert (batch.draw, numbers(batch)) == (0, [0, 1])
    assert batch.ids.tolist() == left.ids.tolist()
    assert client.ack(batch.ids).applied == 2
    assert numbers(ask(desk, client, 1, 2, consumer="trainer")) == [2, 3]


def test_groups_stay_whole_and_fill_a_budget_of_steps(tokens):
    table = gear.Table("g", [gear.Column("k", (), "int64")], gear.Trajectories(64), item=gear.Whole(), mean_length=8,
                       max_length=64, sampler=gear.Groups(2), consumers=("trainer",))  # fmt: skip
    tokens.create_table(table)
    for group, length in enumerate([3, 9, 4, 4, 8, 2]):
        for _ in range(2):
            tokens.insert({"k": np.full(length, group)}, "g", group=str(group))
    query = gear.Query(table="g", max_steps=20)
    draws = [[tokens.sample(query, consumer="trainer", world_size=2, rank=rank, timeout=60.0) for rank in (0, 1)]
             for _ in range(2)]  # fmt: skip
    for draw in draws:
        for batch in draw:
            assert batch.lengths.sum() <= 20
            assert (batch["k"][::2, 0] == batch["k"][1::2, 0]).all()
    assert sorted(batch["k"][::2, 0].tolist() for batch in draws[0]) == [[0, 2], [1]]
    assert tokens.ack(np.concatenate([batch.ids for draw in draws for batch in draw])).applied == 12


def test_a_consumers_batch_is_filled_by_a_budget_without_ranks_too(tokens):
    table = gear.Table("c", [gear.Column("k", (), "int64")], gear.Trajectories(64), item=gear.Whole(), mean_length=8,
                       max_length=64, consumers=("trainer",))  # fmt: skip
    tokens.create_table(table)
    responses(tokens, *[3] * 20, 9, 30, name="c")
    query = gear.Query(table="c", max_steps=20)
    sizes = [len(tokens.sample(query, consumer="trainer", timeout=60.0).ids) for _ in range(4)]
    assert sizes == [6, 6, 6, 3]
    with pytest.raises(gear.DataError, match="an item of 30 steps"):
        tokens.sample(query, consumer="trainer", timeout=5)
    assert tokens.info()["tables"]["c"]["consumers"]["trainer"]["served"] == 21


def test_a_rank_that_does_not_come_bounds_how_far_the_others_go(tokens):
    from gear.storage.ranks import AHEAD

    responses(tokens, *[1] * 64)
    for _ in range(AHEAD):
        tokens.sample(1, world_size=2, rank=0, timeout=60.0)
    with pytest.raises(gear.DeadlineExceeded, match=f"rank 1 has not asked for its parts of {AHEAD} draws"):
        tokens.sample(1, world_size=2, rank=0, timeout=0.01)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(tokens.sample, 1, world_size=2, rank=0, timeout=20)
        eventually(lambda: tokens.info()["tables"]["t"]["waiting_readers"] == 1, "it waits")
        assert tokens.sample(1, world_size=2, rank=1, timeout=60.0).draw == 0
        assert waiting.result().draw == AHEAD


def test_loaders_of_all_ranks_give_every_item_once(desk):
    client = desk.open(**ONCE)
    desk.insert(client, *range(24))
    seen: dict[int, list[tuple[int, int]]] = {}

    def learn(rank: int) -> None:
        with client.loader(2, desk.name, world_size=3, rank=rank, timeout=20) as batches:
            taken = itertools.islice(batches, 3)
            seen[rank] = [(batch.draw, number) for batch in taken for number in numbers(batch)]

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tuple(draw for draw, _ in lines) for lines in seen.values()} == {(0, 0, 1, 1, 2, 2)}
    first = [number for lines in seen.values() for _, number in lines]
    rest = [number for rank in range(3) for number in numbers(ask(desk, client, rank, 2, 3))]
    assert sorted(first + rest) == list(range(24))  # what was prefetched and not taken waited for its rank


def test_arguments_that_cannot_be_are_named(tokens):
    for options, words in [
        ({"rank": 0}, "expected world_size="),
        ({"world_size": 2}, r"rank: expected a number from 0 to 1 \(world_size=2\), got None"),
        ({"world_size": 2, "rank": 2}, "got 2"),
        ({"world_size": 0, "rank": 0}, "world_size must be a whole number >= 1"),
        ({"world_size": 2, "rank": 0, "draw": -1}, "draw: expected a whole number >= 0"),
    ]:
        with pytest.raises(gear.DataError, match=words):
            tokens.sample(1, **options)
    with pytest.raises(gear.DataError, match="may have"):
        tokens.sample(1 << 19, world_size=4, rank=0)


def test_a_queue_that_can_never_give_every_rank_something_says_so(desk):
    client = desk.open(limiter=gear.Queue(3))
    with pytest.raises(gear.DataError, match="holds at most 3 items: never an item for each of 4 ranks"):
        ask(desk, client, 0, 1, 4)


def test_ranks_need_a_table_on_one_shard(shards):
    with gear.connect(shards.address) as client:
        client.create_table(gear.Table("spread", [gear.Column("k", (), "int64")], gear.Steps(64), item=gear.Step()))
        with pytest.raises(gear.SchemaError, match="world_size needs one"):
            client.sample(1, "spread", world_size=2, rank=0, timeout=5)
