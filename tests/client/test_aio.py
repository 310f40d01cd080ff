"""Verbs awaited from event loops: the loop goes on, nothing cancelled is lost, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref

import numpy as np
import pytest

import gear

from .conftest import columns, rows
from .stored import stored


def figures(client, name="t"):
    return client.info()["tables"][name]


def once(embed, **fields):
    """A client whose items are delivered once each, in order."""
    return embed(item=gear.Whole(), sampler=gear.Fifo(), max_times_sampled=1, **fields)


@pytest.fixture(params=["inproc", "shm"])
def client(request, embed):
    """A client over one table ``t`` of single-use items, in process and over a server."""
    if request.param == "inproc":
        yield once(embed)
        return
    with gear.connect(request.getfixturevalue("server").address) as made:
        fields = {"capacity": gear.Steps(1000), "item": gear.Whole(), "sampler": gear.Fifo(), "max_times_sampled": 1}
        made.create_table(gear.Table("t", columns(), **fields))
        made.reset("t")
        yield made


class Held:
    """A function that, once done, keeps its thread until it is told to go on."""

    def __init__(self, function):
        self.function, self.done, self.go = function, threading.Event(), threading.Event()

    def __call__(self, *arguments, **options):
        result = self.function(*arguments, **options)
        self.done.set()
        assert self.go.wait(60)
        return result


async def parked(client, count=1):
    """Let the tasks' verbs get to where they wait: as many threads as verbs, each at work."""
    while sum(not call.future.done() for call in set(client._threads._running)) < count:
        await asyncio.sleep(0)


async def waits(client, whose):
    """Let a task's verb get to where it waits: before, it would be stopped before it began."""
    while figures(client)[f"waiting_{whose}"] < 1:
        await asyncio.sleep(0)


def test_every_verb_does_what_the_plain_one_does(client):
    async def main():
        for k in range(3):
            await client.insert_async(rows(4, 10 * k), "t", terminated=True)
        await client.insert_async(rows(2, 30), "t", wait=False)
        await client.flush_async()
        batch = await client.sample_async(2, "t")
        assert batch["step"][:, 0].tolist() == [0, 10]
        selection = await client.select_async(2, "t")
        columns_ = await client.collect_async(selection, columns=["step"])
        assert set(columns_) == {"step"}
        assert columns_["step"][:, 0].tolist() == [20, 30]
        client.release(selection)
        with pytest.raises(gear.DataError, match="has 'x'"):
            await client.insert_async({**rows(2), "x": 1}, "t")
        with pytest.raises(gear.DeadlineExceeded, match="sample of 5 timed out"):
            await client.sample_async(5, "t", timeout=0.1)
        await client.insert_many_async(rows(6, 40), "t", offsets=[0, 2, 6])
        assert await client.update_priorities_async([], []) == gear.Update(0, 0)

    asyncio.run(main())
    assert figures(client)["sampled_items"] == 4
    assert client.sample(2, "t")["step"][:, 0].tolist() == [40, 42]


def test_priorities_are_updated(embed):
    client = embed(item=gear.Whole(), sampler=gear.Prioritized(alpha=1.0))

    async def main():
        await client.insert_many_async([rows(2, k) for k in (0, 10)])
        batch = await client.sample_async(64, beta=0.5)
        ids = np.unique(batch.ids)
        assert len(batch.weights) == 64
        assert await client.update_priorities_async(ids, np.zeros(len(ids))) == gear.Update(len(ids), 0)

    asyncio.run(main())
    with pytest.raises(gear.DeadlineExceeded):  # nothing has a mass any more
        client.sample(1, timeout=0.0)


def test_a_sample_that_waits_leaves_the_loop_to_the_task_it_waits_for(client):
    async def main():
        async def feed():
            for _ in range(100):  # turns of the loop that it would not have if the sample held it
                await asyncio.sleep(0)
            assert not sample.done()
            await client.insert_async(rows(2, 10), "t")

        sample = asyncio.create_task(client.sample_async(1, "t"))
        await parked(client)
        await feed()
        assert (await sample)["step"][:, 0].tolist() == [10]

    asyncio.run(main())


def test_any_number_of_waiting_verbs_does_not_keep_away_what_they_wait_for(embed):
    """Samples wait for inserts and inserts for samples: no pool is too small for them."""
    client = once(embed, limiter=gear.SampleToInsertRatio(1.0, 1, 3.0))

    async def main():
        samples = [asyncio.create_task(client.sample_async(1)) for _ in range(100)]
        await parked(client, 100)
        inserts = [asyncio.create_task(client.insert_async(rows(1, k))) for k in range(100)]
        seen = [int((await sample)["step"][0, 0]) for sample in samples]
        await asyncio.gather(*inserts)
        assert sorted(seen) == list(range(100))

    asyncio.run(main())


def test_a_cancelled_sample_stops_waiting_and_takes_nothing(client):
    async def main():
        sample = asyncio.create_task(client.sample_async(2, "t"))
        await waits(client, "readers")
        sample.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await sample
        assert "sample of 2 timed out" in caught.value.outcome
        await client.insert_async(rows(2), "t")
        await client.insert_async(rows(2, 10), "t")
        assert (await client.sample_async(2, "t", timeout=60.0))["step"][:, 0].tolist() == [0, 10]

    asyncio.run(main())
    assert figures(client)["sampled_items"] == 2
    assert figures(client)["reserved_items"] == 0


@pytest.mark.parametrize("late", [False, True])
def test_a_batch_that_came_for_a_cancelled_sample_is_given_back(client, monkeypatch, late):
    """Cancelled while the rows are gathered, or when the batch is there and the task has not gone on yet."""
    client.insert(rows(2), "t")
    reader = client._tables.reader("t", None, None)
    held = Held(reader.fetch)
    monkeypatch.setattr(reader, "fetch", held)

    async def main():
        sample = asyncio.create_task(client.sample_async(1, "t"))
        while not held.done.is_set():
            await asyncio.sleep(0)
        if late:  # the loop sees nothing of it: it is not let go on
            held.go.set()
            call = next(iter(client._threads._running), None)
            if call is not None:
                call.future.result(60)
        sample.cancel()
        held.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await sample
        assert caught.value.outcome == "what had been drawn was given back"

    asyncio.run(main())
    monkeypatch.undo()
    assert client.sample(1, "t", timeout=60.0)["step"][0, 0] == 0
    assert figures(client)["sampled_items"] == 1


def test_a_cancelled_selection_is_released(client, monkeypatch):
    client.insert(rows(2), "t")
    reader = client._tables.reader("t", None, None)
    held = Held(reader.select)
    monkeypatch.setattr(reader, "select", held)

    async def main():
        select = asyncio.create_task(client.select_async(1, "t"))
        while not held.done.is_set():
            await asyncio.sleep(0)
        select.cancel()
        held.go.set()
        with pytest.raises(asyncio.CancelledError):
            await select

    asyncio.run(main())
    monkeypatch.undo()
    assert client.sample(1, "t", timeout=60.0)["step"][0, 0] == 0


def test_a_cancelled_insert_is_taken_back(embed):
    client = once(embed, limiter=gear.SampleToInsertRatio(1.0, 1, 2.0))

    async def main():
        for k in (0, 10, 20):
            await client.insert_async(rows(1, k))
        insert = asyncio.create_task(client.insert_async(rows(1, 99)))
        await waits(client, "writers")
        insert.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await insert
        assert "nothing was inserted" in caught.value.outcome
        many = asyncio.create_task(client.insert_many_async([rows(1, k) for k in (30, 40, 50)]))
        first = await client.sample_async(1)  # admits one more
        await parked(client)
        while figures(client)["inserted_trajectories"] < 4:
            await asyncio.sleep(0)
        many.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await many
        assert caught.value.committed == 1
        return first

    assert asyncio.run(main())["step"][0, 0] == 0
    assert client.sample(3, timeout=60.0)["step"][:, 0].tolist() == [10, 20, 30]
    assert figures(client)["inserted_trajectories"] == 4


def test_an_insert_that_was_done_before_its_cancellation_says_so(client, monkeypatch):
    port = client._tables.port("t", None)
    held = Held(port.settle)
    monkeypatch.setattr(port, "settle", held)

    async def main():
        insert = asyncio.create_task(client.insert_async(rows(2), "t"))
        while not held.done.is_set():
            await asyncio.sleep(0)
        insert.cancel()
        await asyncio.sleep(0)
        insert.cancel()  # again, while it is being ended
        held.go.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await insert
        assert caught.value.outcome == "it was done before it could be stopped"

    asyncio.run(main())
    assert figures(client)["trajectories"] == 1


def test_a_timeout_of_asyncio_ends_the_verb_too(embed):
    client = embed()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.sample_async(1), 0.05)
        assert all(call.future.done() for call in set(client._threads._running))

    asyncio.run(main())


def test_several_event_loops_use_one_client(client):
    """Each loop hands on what it drew, so none can do without the others."""

    async def relay(start, turns):
        for _ in range(turns):
            batch = await client.sample_async(1, "t")
            start = int(batch["step"][0, 0]) + 1
            await client.insert_async(rows(1, start), "t")
        return start

    last = []
    threads = [threading.Thread(target=lambda: last.append(asyncio.run(relay(0, 5)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(client.insert_async(rows(1, 0), "t"))
    for thread in threads:
        thread.join(60)
    assert max(last) == 15
    assert [one.steps["step"].tolist() for one in stored(client)] == [[15]]


def test_closing_the_client_ends_what_is_awaited_and_its_threads(client):
    async def main():
        waiting = [asyncio.create_task(client.sample_async(1, "t")) for _ in range(3)]
        await parked(client, 3)
        threads = list(client._threads._threads)
        assert len(threads) == 3
        client.close()
        for task in waiting:
            with pytest.raises(gear.Closed, match="the client was closed while the call waited"):
                await task
        assert not any(thread.is_alive() for thread in threads)
        with pytest.raises(gear.Closed):
            await client.sample_async(1, "t")

    asyncio.run(main())


def test_a_loop_that_ends_without_its_tasks_leaves_nothing_drawn(embed, monkeypatch):
    client = once(embed)
    client.insert(rows(2))
    reader = client._tables.reader("t", None, None)
    held = Held(reader.fetch)
    monkeypatch.setattr(reader, "fetch", held)
    loop = asyncio.new_event_loop()
    coroutine = client.sample_async(1)
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert held.done.wait(60)
    coroutine.close()  # as the collector does
    held.go.set()
    loop.close()
    task._log_destroy_pending = False
    del task
    gc.collect()
    monkeypatch.undo()
    assert client.sample(1, timeout=60.0)["step"][0, 0] == 0


def test_a_client_nobody_holds_is_collected_though_its_threads_idle(embed):
    async def main(client):
        client.create_table(gear.Table("t", columns(), gear.Steps(100)))
        await client.insert_async(rows(1))
        return list(client._threads._threads)

    client = gear.embedded()
    threads = asyncio.run(main(client))
    assert threads
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_threads_of_its_own(server):
    with gear.connect(server.address) as client:
        client.create_table(gear.Table("fork", columns(), gear.Steps(100), item=gear.Whole()))
        asyncio.run(client.insert_async(rows(2), "fork"))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                asyncio.run(client.insert_async(rows(3), "fork"))
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert figures(client, "fork")["inserted_trajectories"] == 2
