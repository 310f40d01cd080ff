"""Batches kept ready by a thread: order of memory, errors, the end, and the limiter's credit."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import gear

from .conftest import rows


def figures(client):
    return client.info()["tables"]["t"]


def eventually(condition, seconds=60.0):
    """Poll a condition that no event announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def threads():
    return [t for t in threading.enumerate() if t.name == "gear-loader"]


def test_batches_come_and_their_memory_is_used_again(embed):
    client = embed()
    client.insert(rows(50))
    seen = set()
    with client.loader(8, prefetch=2) as loader:
        for _, batch in zip(range(20), loader, strict=False):
            assert (batch["obs"][..., 0] == batch["step"]).all()
            assert batch.keep() is not batch
            seen.add(id(batch.buffer))
    assert len(seen) == 3
    assert threads() == []


def test_copies_are_never_overwritten(embed):
    client = embed()
    client.insert(rows(50))
    with client.loader(8, copy=True) as loader:
        kept = [next(loader) for _ in range(6)]
    assert len({id(b.buffer) for b in kept}) == 6
    assert kept[0].keep() is kept[0]


def test_only_delivered_batches_count_as_sampled(embed):  # origin: acme#233, reverb#27
    client = embed()
    client.insert(rows(50))
    with client.loader(8, prefetch=3) as loader:
        next(loader)
        next(loader)
        eventually(lambda: figures(client)["reserved_items"] == 24)
        assert figures(client)["sampled_items"] == 16
    assert figures(client)["sampled_items"] == 16
    assert figures(client)["reserved_items"] == 0
    assert figures(client)["pins"] == 0


def test_prefetching_does_not_deadlock_a_ratio_limiter(embed):  # origin: acme#233, reverb#27
    client = embed(item=gear.Whole(), limiter=gear.SampleToInsertRatio(2.0, 1, (-16.0, 16.0)))

    def write():
        for k in range(60):
            client.insert(rows(3, start=10 * k))

    thread = threading.Thread(target=write)
    thread.start()
    with client.loader(4, prefetch=4, timeout=20) as loader:
        for _ in range(30):  # the writer needs 104 items to be sampled, and lets 136 be
            next(loader)
    thread.join()
    assert figures(client)["inserted_trajectories"] == 60


def test_a_step_of_the_iteration_may_time_out_and_the_loader_goes_on(embed):
    client = embed()
    with client.loader(8, timeout=0.3) as loader:
        with pytest.raises(gear.DeadlineExceeded, match=r"no batch within 0.3 s: .*holds 0 items"):
            next(loader)
        client.insert(rows(50))
        eventually(lambda: shown(loader) == (8, 4))


def shown(loader):
    """The shape of the next batch, None if it is not ready in time."""
    try:
        return next(loader)["step"].shape
    except gear.DeadlineExceeded:
        return None


def test_closing_while_waiting_ends_the_iteration(embed):
    client = embed()
    loader = client.loader(8)
    ended = threading.Event()

    def read():
        for _ in loader:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    loader.close()
    thread.join(60)
    assert ended.is_set()
    loader.close()
    assert threads() == []


def test_an_error_in_the_thread_is_raised_to_the_reader(embed):
    client = embed()
    client.insert(rows(50))
    loader = client.loader(gear.Query(8, views=["nothing"]))
    with pytest.raises(gear.SchemaError, match="no column 'nothing'"):
        next(loader)
    loader.close()


def test_closing_the_client_stops_its_loaders(embed):
    client = embed()
    client.insert(rows(50))
    loader = client.loader(8)
    next(loader)
    client.close()
    assert list(loader) == []
    assert threads() == []


def test_a_forgotten_loader_stops_and_gives_back(embed):
    client = embed()
    client.insert(rows(50))
    for _ in client.loader(8):
        break
    gc.collect()
    eventually(lambda: threads() == [])
    assert figures(client)["reserved_items"] == 0


def test_weights_follow_the_beta_of_the_loader(embed):
    client = embed(sampler=gear.Prioritized())
    client.insert(rows(50))
    with client.loader(8, beta=0.4) as loader:
        assert next(loader).weights.tolist() == [1.0] * 8


def test_prefetch_must_be_a_whole_number(embed):
    with pytest.raises(gear.DataError, match="prefetch must be a whole number >= 1, got 0"):
        embed().loader(8, prefetch=0)


def test_whole_trajectories_that_grow_longer_get_larger_buffers(embed):
    client = embed(item=gear.Whole(), capacity=gear.Trajectories(1), max_length=200)
    with client.loader(4, prefetch=1) as loader:
        for length in (3, 20, 150, 5):
            client.insert(rows(length))
            deadline = time.monotonic() + 60
            while next(loader)["step"].shape[1] != length:  # what was ready before still comes
                assert time.monotonic() < deadline
