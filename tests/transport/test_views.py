"""Views over a server: over shared memory and over TCP the same bytes as in process, seams and packing included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

import gear
from gear.transport import pieces

SILENCE = "10"
"""Of the `server`: nothing here is about silence."""

COLUMNS = [
    gear.Column("k", (), "int64"),
    gear.Column("frame", (4, 3), "uint8"),
    gear.Column("reward"),
    gear.Column("goal", (2,), per="trajectory"),
]
VIEWS = [
    "k",
    "goal",
    gear.View("frame", name="next", shift=1, dtype="float32", scale=1 / 255),
    gear.View("frame", name="stack", stack=3, offset=-1, value=9),
    gear.View("k", name="around", offset=-2, length=6, pad="head", value=-1),
    gear.n_step("reward", 3, 0.9),
    gear.return_to_go("reward"),
    gear.timestep(),
]
PACKED = [v for v in VIEWS if not isinstance(v, gear.View) or not v.length]
ITEMS = [gear.Whole(), gear.Step(0), gear.Window(6), gear.Window(6, edge="head")]


@pytest.fixture
def connected(server) -> Iterator[Callable[[str], gear.Client]]:
    """A function that connects to the module's server over a path."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(gear.connect(server.address, path=path))


def trajectory(rng: np.random.Generator, number: int, steps: int) -> dict[str, np.ndarray]:
    return {
        "k": number * 1000 + np.arange(steps),
        "frame": rng.integers(0, 256, (steps, 4, 3)).astype(np.uint8),
        "reward": rng.random(steps, np.float32),
        "goal": np.full(2, number, np.float32),
    }


def by_item(batch: gear.Batch) -> dict[tuple[int, int], list[bytes]]:
    """The bytes of every array and mask of each item, by the item's last k and how many it shows."""
    found = {}
    bounds = batch.cu_seqlens.tolist() if batch.plan.packed else None
    for i in range(len(batch.ids)):
        parts = []
        for name, field in batch.plan.by_name.items():
            for array in (batch[name], batch.mask_of(name)):
                packed = bounds is not None and field.timed
                parts.append(array[bounds[i] : bounds[i + 1]].tobytes() if packed else array[i : i + 1].tobytes())
        shown = np.atleast_1d(batch["k"][bounds[i] : bounds[i + 1]] if bounds else batch["k"][i])
        found[int(shown.max()), len(shown)] = parts
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_every_path_gives_the_same_bytes(connected, name, item, packed, monkeypatch):
    monkeypatch.setattr(pieces, "most", lambda laned: 3000)  # several pieces over tcp
    table = gear.Table(name, COLUMNS, gear.Steps(600), item=item, mean_length=20, max_length=7, block_steps=4)
    over_tcp, over_shm = connected("tcp"), connected("shm")
    over_tcp.create_table(table)
    views, layout = (PACKED, "packed") if packed else (VIEWS, "padded")
    with gear.embedded([table]) as inproc:
        for client, writer in ((inproc, inproc), (over_tcp, over_tcp)):
            rng = np.random.default_rng(4)
            for number in range(12):
                one = trajectory(rng, number, 1 + 3 * number)
                last = {"frame": one["frame"][0]} if number % 2 else None
                if number % 3:
                    writer.insert(one, name, final=last, terminated=number % 4 == 1)
                    continue
                with client.writer(name) as steps:
                    steps.set({"goal": one.pop("goal")})
                    steps.extend(one)
                    steps.end(final=last)
            client.flush()
        query = gear.Query(400, name, views, layout=layout)
        expected = by_item(inproc.sample(query))
        selection = over_tcp.select(query, parties=2)
        for client in (over_tcp, over_shm):
            for got in (by_item(client.collect(selection, query.views, layout=layout)), by_item(client.sample(query))):
                assert len(got.keys() & expected.keys()) > 10
                for key in got.keys() & expected.keys():
                    assert got[key] == expected[key]
            client.release(selection)


@pytest.mark.parametrize("path", ["tcp", "shm"])
def test_pieces_that_a_view_reaches_stay_while_they_are_evicted(connected, name, path):
    client = connected(path)
    client.create_table(gear.Table(name, COLUMNS[:1], gear.Steps(40), item=gear.Whole(), mean_length=4, max_length=4))
    client.insert({"k": np.arange(10)}, name)
    query = gear.Query(64, name, ["k", gear.View("k", name="all", offset=-9, length=19, value=-1)])
    selection = client.select(query)
    for _ in range(8):
        client.insert({"k": np.full(10, 77)}, name)
    batch = client.collect(selection, query.views)
    for first, row in zip(batch["k"][:, 0].tolist(), batch["all"].tolist(), strict=True):
        assert row == [p if 0 <= p < 10 else -1 for p in range(first - 9, first + 10)]
    client.release(selection)
    client.flush()
    later = client.sample(query)
    assert set(later["k"].ravel().tolist()) <= {77, 0}


def test_a_view_that_shows_more_than_anybody_needs_is_refused_over_tcp(connected, name):
    client = connected("tcp")
    client.create_table(gear.Table(name, COLUMNS[:1], gear.Steps(40)))
    client.insert({"k": np.arange(10)}, name)
    selection = client.select(1, name)
    with pytest.raises((gear.ProtocolError, gear.InsufficientMemory)):
        client.collect(selection, [gear.View("k", length=2**31 - 1)])
    client.release(selection)
    assert client.sample(gear.Query(3, name, [gear.View("k", length=5)]))["k"].shape == (3, 5)
