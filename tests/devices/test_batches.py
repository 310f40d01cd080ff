"""Batches gathered by kernels on the learner's GPU: equal to those of the host, and who waits for whom."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numba.cuda
import numpy as np
import pytest
from msgspec.structs import replace

import gear
from gear.client.device_batch import DeviceBatch
from gear.devices import collecting, reading, streams
from gear.devices.arena import DeviceValue
from gear.plan import make_plan
from gear.storage.layout import Layout
from gear.transport.inproc import InprocSession
from tests.devices.test_arena import Exports, OnCard

COLUMNS = [("obs", (3,), "float32"), ("frame", (17,), "uint8"), ("reward", (), "float32"), ("token", (), "int64")]


def table(item: Any, on_device: tuple[str, ...] = (), **fields: Any) -> gear.Table:
    columns = [gear.Column(*c, placement="device" if c[0] in on_device else "host") for c in COLUMNS]
    columns.append(gear.Column("goal", (), "int64", per="trajectory"))
    given = {"capacity": gear.Steps(200), "mean_length": 12, "seed": 5, **fields}
    given.setdefault("block_steps", 4)
    return gear.Table("t", columns, item=item, **given)


def trajectory(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    made = {name: rng.integers(0, 200, (steps, *shape)).astype(dtype) for name, shape, dtype in COLUMNS}
    return made | {"goal": np.int64(steps)}


def fill(client: gear.Client) -> None:
    """Trajectories of 1 to 23 steps, by every way in, the last ones with a final row."""
    rng = np.random.default_rng(0)
    for steps in (9, 1, 23):
        client.insert(trajectory(rng, steps), final={"obs": np.full(3, steps, np.float32)}, terminated=steps == 9)
    client.insert_many([trajectory(rng, steps) for steps in (5, 11)])
    with client.writer() as writer:
        for _ in range(7):
            writer.append({name: rng.integers(0, 9, shape).astype(dtype) for name, shape, dtype in COLUMNS})
        writer.end(trajectory={"goal": np.int64(7)}, final={"frame": np.full(17, 3, np.uint8)})


VIEWS = (
    gear.n_step("reward", 3, 0.9), gear.return_to_go("reward"), gear.View("obs", shift=1, name="next"), "goal",
    gear.View("frame", stack=2, dtype="float32"), gear.View("token", offset=-1, length=5, name="around"),
)  # fmt: skip


def queries(item: Any) -> Iterator[tuple[str, gear.Query]]:
    yield "columns", gear.Query(6)
    yield "views", gear.Query(5, views=VIEWS)
    if not isinstance(item, gear.Step):
        yield "packed", gear.Query(5, layout="packed")
        yield "packed views", gear.Query(5, views=("obs", VIEWS[2]), layout="packed")


def same(one: gear.Batch, other: gear.Batch) -> None:
    assert list(one) == list(other)
    np.testing.assert_array_equal(one.ids, other.ids)
    for name in one:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), name)
        np.testing.assert_array_equal(np.asarray(one.mask_of(name)), np.asarray(other.mask_of(name)), name)


@pytest.mark.parametrize("on_device", [(), ("frame", "reward"), tuple(c[0] for c in COLUMNS)])
@pytest.mark.parametrize(
    "item", [gear.Step(), gear.Window(6, edge="head"), gear.Whole()], ids=["step", "window", "whole"]
)
def test_batches_are_those_of_the_host_bit_by_bit(item, on_device):
    """Of columns on the host, on the device or both: columns, views, packed ones; into new memory and into used one."""
    with gear.embedded([table(item)]) as host, gear.embedded([table(item, on_device)], device="cuda:0") as device:
        for client in (host, device):
            fill(client)
        for what, query in queries(item):
            kept = None
            for _ in range(2):
                expected, got = host.sample(query), device.sample(query, out=kept)
                assert isinstance(got, DeviceBatch), what
                same(expected, got)
                kept = None if query.layout == "packed" else got


def test_a_learner_of_the_host_gets_columns_of_a_device_by_its_kernels():
    mixed = table(gear.Window(6), ("obs",))
    with gear.embedded([table(gear.Window(6))]) as host, gear.embedded([mixed], device="cuda:0") as device:
        for client in (host, device):
            fill(client)
        same(host.sample(5), device.sample(5, device="cpu"))
        same(host.sample(5), device.collect(device.select(5), device="cpu"))


def grow(client: gear.Client) -> list[gear.Batch]:
    """Trajectories that are inserted and filled, and one that is opened, appended to, sealed and filled."""
    made = [{"x": np.arange(n, dtype=np.float32)} for n in (3, 11)]
    ids = client.insert_many(made, final={"x": np.array([7, 8], np.float32)}).tolist()
    name = client.open()
    assert client.append(name, {"x": OnCard(np.arange(6, dtype=np.float32))}, at=0) == 6
    assert client.append(name, {"x": np.arange(6, 9, dtype=np.float32)}, at=6) == 9
    client.seal(name, final={"x": np.float32(5)})
    rows = [np.arange(2 * n, dtype=np.int16).reshape(n, 2) + n for n in (11, 9)]
    client.fill([ids[1], name], {"y": [rows[0], OnCard(rows[1])]})
    client.fill([ids[1]], {"y": [rows[0] + 1]})
    views = ("x", "y", gear.View("x", shift=1, name="next"))
    return [client.sample(4), client.sample(gear.Query(6, views=views, require="y"))]


@pytest.mark.parametrize("on_device", [("x",), ("y",), ("x", "y")])
@pytest.mark.parametrize("item", [gear.Whole(), gear.Step(0)], ids=["whole", "step"])
def test_late_columns_and_appends_of_a_device_are_those_of_the_host(item, on_device):
    def declared(places: tuple[str, ...]) -> gear.Table:
        columns = [gear.Column("x"), gear.Column("y", (2,), "int16", late=True)]
        columns = [replace(c, placement="device" if c.name in places else "host") for c in columns]
        fields: Any = {"item": item, "requirements": [["y"]], "block_steps": 4, "mean_length": 10, "seed": 3}
        return gear.Table("t", columns, gear.Steps(80), **fields)

    with gear.embedded([declared(())]) as host, gear.embedded([declared(on_device)], device="cuda:0") as device:
        for one, other in zip(grow(host), grow(device), strict=True):
            same(one, other)


def test_a_column_on_a_device_needs_one_and_the_learner_to_be_there():
    with pytest.raises(gear.DeviceError, match="placed on a device, but this embedded table lives in host memory"):
        gear.embedded([table(gear.Step(), ("obs",))])
    with gear.embedded([table(gear.Step(), ("obs",))], device="cuda:0") as client:
        client.insert(trajectory(np.random.default_rng(0), 5))
        with pytest.raises(gear.DeviceError, match=r"columns on GPU .* a batch was asked for on cuda:1"):
            client.sample(2, device="cuda:1")
    with pytest.raises(gear.SchemaError, match="placement='device' is for columns per step"):
        gear.Column("x", placement="device", per="trajectory")


def test_tensors_of_a_device_go_into_a_column_there_without_the_host(monkeypatch):
    given = trajectory(np.random.default_rng(3), 9)
    with gear.embedded([table(gear.Whole(), ("obs",))], device="cuda:0") as client:
        client.insert({**given, "obs": OnCard(given["obs"]), "token": Exports(given["token"])})
        batch = client.sample(1)
        for name in ("obs", "token"):
            np.testing.assert_array_equal(np.asarray(batch[name])[0], given[name])
        monkeypatch.setattr(DeviceValue, "copy", lambda self: pytest.fail("it came to the host"))
        client.insert_many([{**given, "obs": kind(given["obs"] + k)} for k, kind in ((1, OnCard), (2, Exports))])
        packed = {name: value[None] if name == "goal" else value for name, value in given.items()}
        client.insert_many({**packed, "obs": OnCard(given["obs"] + 3)}, offsets=[0, 9])
        batch = client.sample(50)
        found = {tuple(np.asarray(one).ravel().tolist()) for one in batch["obs"]}
        assert found == {tuple((given["obs"] + k).ravel().tolist()) for k in range(4)}
        with pytest.raises(gear.DataError, match=r"column 'obs': expected float32\[T, 3\], got float64\[9, 3\]"):
            client.insert({**given, "obs": OnCard(given["obs"].astype(np.float64))})


# Streams, pins, memory


class Kernels:
    """Kernels that are through when told: what waits for events waits for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.through = threading.Event()
        self.waits = threading.Event()
        monkeypatch.setattr(streams._Done, "synchronize", lambda event: (self.waits.set(), self.through.wait()))


def pins_of(client: gear.Client) -> int:
    return int(client.info()["tables"]["t"]["pins"])


def test_a_pin_is_let_go_of_only_when_its_kernels_are_through(monkeypatch):
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        kernels = Kernels(monkeypatch)
        client.sample(3)
        opened = client._tables.reader("t", None, None).open
        assert kernels.waits.wait(10)
        assert pins_of(client) == 1
        assert len(opened.reading) == 1
        kernels.through.set()
        streams.drain_all()
        assert pins_of(client) == 0
        assert not opened.reading


def test_a_pin_that_two_read_counts_as_being_read_until_both_are_through(monkeypatch):
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        kernels = Kernels(monkeypatch)
        selection = client.select(3)
        client.collect(selection)
        opened = client._tables.reader("t", None, None).open
        assert kernels.waits.wait(10)
        client.collect(selection, device="cpu")  # by the host, which is through first
        assert opened.reading == [selection.pin]
        kernels.through.set()
        streams.drain_all()
        assert opened.reading == []


def test_where_rows_travel_a_batch_is_copied_to_the_gpu_and_no_kernel_looks_for_them():
    from gear.client.kinds import batches
    from gear.transport.rdma import RdmaSession
    from gear.transport.shm import ShmSession
    from gear.transport.tcp import TcpSession

    kinds = [batches("cuda:0", one.maps) for one in (ShmSession, TcpSession, RdmaSession)]
    assert [getattr(kind, "on_device", False) for kind in kinds] == [True, False, False]


def test_gathers_on_two_streams_share_no_scratch(monkeypatch):
    used = []

    class Gather:
        def __init__(self, *given: Any) -> None:
            self.scratch = object()

        def __call__(self, *given: Any) -> None:
            used.append(self.scratch)

    monkeypatch.setattr(collecting, "Gather", Gather)
    layout = Layout(table(gear.Window(4)))
    collector = collecting.Collector(layout, SimpleNamespace(span=b""), None, 0)
    plan = make_plan(layout, (), 3, 4)
    for stream in (0, "another", 0):
        collector(plan, 3, -1, b"", b"", b"", b"", stream)
    assert used[0] is used[2]
    assert used[0] is not used[1]


def test_a_plan_that_found_no_memory_is_made_anew(monkeypatch):
    """Origin: what had been made of it was kept, and the next batch of that plan was not gathered, without a word."""
    gathered = []

    class Gather:
        full = True

        def __init__(self, *given: Any) -> None:
            if Gather.full:
                raise MemoryError

        def __call__(self, *given: Any) -> None:
            gathered.append(given)

    monkeypatch.setattr(collecting, "Gather", Gather)
    layout = Layout(table(gear.Window(4)))
    collector = collecting.Collector(layout, SimpleNamespace(span=b""), None, 0)
    plan = make_plan(layout, (), 3, 4)
    with pytest.raises(MemoryError):
        collector(plan, 3, -1, b"", b"", b"", b"", 0)
    Gather.full = False
    collector(plan, 3, -1, b"", b"", b"", b"", 0)
    assert len(gathered) == 1


def test_a_selection_is_released_behind_what_is_being_collected_of_it(monkeypatch):
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        selection = client.select(3)
        kernels = Kernels(monkeypatch)
        client.collect(selection, ["obs"])
        client.release(selection)
        assert kernels.waits.wait(10)
        assert pins_of(client) == 1
        kernels.through.set()
        streams.drain_all()
        assert pins_of(client) == 0


def test_a_selection_keeps_no_batch_and_is_released_behind_every_gpu_that_reads_it(monkeypatch):
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        selection = client.select(3)
        kernels = Kernels(monkeypatch)
        batches = [client.collect(selection, device=device) for device in ("cuda:0", "cuda:1")]
        memory = [weakref.ref(batch.buffer) for batch in batches]
        del batches
        client.release(selection)
        assert [one() for one in memory] == [None, None]
        assert kernels.waits.wait(10)
        kernels.through.set()
        streams.stream_of(1).drain()
        streams.drain_all()
        assert pins_of(client) == 0


def test_a_revoked_pin_stays_while_kernels_read_its_rows(monkeypatch):
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        kernels = Kernels(monkeypatch)
        client.sample(3)
        local = client._session._tables["t"]
        with client._session._lock:
            client._session._tell(local, local.stored.pins.revoke_beyond(-1000))
        assert pins_of(client) == 1
        kernels.through.set()
        streams.drain_all()
        assert pins_of(client) == 0


def test_memory_is_written_again_behind_its_consumer_and_given_behind_the_kernels(monkeypatch):
    """With out=: the consumer's stream, then the gathering, then the consumer's stream again."""
    said: list[str] = []
    for name in ("mark_consumer", "follow", "record", "hand_over"):
        monkeypatch.setattr(streams.Stream, name, lambda self, *_, name=name: said.append(name))
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        batch = client.sample(3)
        streams.drain_all()
        assert said[:1] == ["record"]
        assert "follow" not in said
        assert "hand_over" in said
        said.clear()
        client.sample(3, out=batch)
        wanted = [word for word in said if word != "record"]
        assert wanted == ["mark_consumer", "mark_consumer", "follow", "hand_over"]
        assert said.index("follow") < said.index("record") < said.index("hand_over")


def test_the_ring_of_a_loader_marks_its_consumer_when_a_batch_is_done_with(monkeypatch):
    marks: list[str] = []

    def mark(self, event):
        marks.append(threading.current_thread().name)

    monkeypatch.setattr(streams.Stream, "mark_consumer", mark)
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        with client.loader(3, prefetch=2) as loader:
            for _ in range(8):
                next(loader)
    assert marks == [threading.current_thread().name] * 7


def test_a_loader_gathers_ahead_of_its_consumer_and_keeps_pins_until_kernels_are_through(monkeypatch):
    """Of three buffers two are gathered while the consumer has the third; a batch that is not through is not ready."""
    with gear.embedded([table(gear.Window(4))], device="cuda:0") as client:
        fill(client)
        kernels = Kernels(monkeypatch)
        with client.loader(3, prefetch=2, timeout=0.2) as loader:
            with pytest.raises(gear.DeadlineExceeded):
                next(loader)
            assert kernels.waits.is_set()
            assert pins_of(client) == 1, "it is being gathered"
            kernels.through.set()
            loader._timeout = 60.0
            next(loader)
            ring = loader._ring
            with ring.changed:
                assert ring.changed.wait_for(lambda: len(ring.ready) == 2, 60)
            streams.drain_all()
            assert pins_of(client) == 2, "those that wait, not the one that was handed out"


@pytest.mark.parametrize("layout", ["padded", "packed", "packed views"])
def test_nothing_is_allocated_in_steady_state(layout, monkeypatch):
    """No two packed batches are laid out alike: that goes with the batch, and kernels' memory is used again."""
    views = ("obs", gear.View("frame", shift=1)) if layout.endswith("views") else ()
    query = gear.Query(3, views=views, layout=layout.partition(" ")[0])
    with gear.embedded([table(gear.Whole(), ("obs",))], device="cuda:0") as client:
        for k in range(12):  # of every length there is one
            client.insert(trajectory(np.random.default_rng(k), 12 - k))
        batch = client.collect(client.select(ids=largest(client, 3)), views or None, layout=query.layout)
        totals = set()
        with client.loader(query, prefetch=2) as loader:
            ring = [next(loader) for _ in range(40)]
            for name in ("allocate", "page_locked"):
                monkeypatch.setattr(streams.Stream, name, lambda *_: pytest.fail("memory was allocated"))
            for name in ("to_device", "device_array"):
                monkeypatch.setattr(numba.cuda, name, lambda *_, **__: pytest.fail("memory was allocated"))
            monkeypatch.setattr(reading, "Collector", lambda *_: pytest.fail("a table was opened again"))
            for _ in range(6):
                totals.add(next(loader).plan.total)
                client.sample(query, out=batch)
        assert (len(totals) > 1) == (query.layout == "packed")
        assert ring


def largest(client: gear.Client, count: int) -> np.ndarray:
    """The ids of the longest trajectories."""
    page = next(iter(client.scan()))
    return page.ids[np.argsort(-page.lengths)[:count]]


def test_one_client_hands_out_batches_of_several_kinds():
    with gear.embedded([table(gear.Window(4))]) as client:
        fill(client)
        assert type(client.sample(2)).__name__ == "Batch"
        assert type(client.sample(2, device="cpu")).__name__ == "TensorBatch"
        assert isinstance(client.sample(2, device="cuda:1"), DeviceBatch)
        with client.loader(2, device="cuda:0") as loader:
            assert isinstance(next(loader), DeviceBatch)
        copy = client.sample(2, device="cuda:0").copy()
        assert copy["obs"].shape == (2, 4, 3)
        assert copy.mask.shape == (2, 4)


def test_a_table_of_a_device_is_told_to_a_session_that_has_none():
    session = InprocSession([], "")
    with pytest.raises(gear.DeviceError, match=r"embedded\(\.\.\., device='cuda:0'\)"):
        session.create_table(table(gear.Step(), ("obs",)), None)
    session.close()


def test_a_learner_of_numpy_arrays_needs_no_torch():
    code = """
import sys, numpy as np, gear
from gear.client.client import Client
from gear.plan import make_plan
from gear.storage.layout import Layout
from gear.transport.inproc import InprocSession
table = gear.Table("t", [gear.Column("x", placement="device")], gear.Steps(20))
with Client(InprocSession([table], "GPU-simulated-0")) as client:
    client.insert({"x": np.arange(5, dtype=np.float32)})
    print(sorted(set(client.sample(60)["x"].tolist())), "torch" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "[0.0, 1.0, 2.0, 3.0, 4.0] False\n", ended.stderr
