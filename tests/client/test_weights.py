"""The weights channel: the latest version, whole, to whoever waits for it; the same on every path."""

from __future__ import annotations

import asyncio
import threading
import uuid

import ml_dtypes
import numpy as np
import pytest

import gear
from tests.transport.helpers import Python, eventually

PATHS = ["inproc", "shm", "tcp"]
LARGE = 9_000_000
"""Bytes that take three pieces."""


@pytest.fixture(params=PATHS)
def client(request):
    """A client of its own, over every path."""
    if request.param == "inproc":
        with gear.embedded() as made:
            yield made
        return
    with gear.connect(request.getfixturevalue("server").address, path=request.param) as made:
        yield made
        for name in made.info()["weights"]:
            made.publish(name, {"x": np.zeros(1)})


@pytest.fixture
def name(request):
    """A name of this test's own; what is left under it takes next to no memory."""
    made = uuid.uuid4().hex
    yield made
    if "server" in request.fixturenames:
        with gear.connect(request.getfixturevalue("server").address) as client:
            client.publish(made, {"x": np.zeros(1)})


def some_arrays() -> dict:
    return {
        "layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "head": {"bias": np.array([1.5, -2.0], ml_dtypes.bfloat16), "mask": np.array([True, False])},
        "steps": np.int64(7),
        "empty": np.empty((0, 3), np.float16),
        "reversed": np.arange(6)[::-2],
        "big_endian": np.array([1, 256], ">i4"),
    }


def test_what_is_published_is_fetched_bit_by_bit(client, name):
    assert client.publish(name, some_arrays()) == 1
    version, arrays = client.fetch(name, timeout=60.0)
    expected = some_arrays() | {"head/bias": some_arrays()["head"]["bias"], "head/mask": some_arrays()["head"]["mask"]}
    del expected["head"]
    assert version == 1
    assert arrays.keys() == expected.keys()
    for key, value in expected.items():
        assert arrays[key].shape == np.shape(value)
        assert arrays[key].dtype == np.asarray(value).dtype.newbyteorder("=")
        assert np.array_equal(arrays[key], value)


def test_many_pieces_and_small_arrays_between_large_ones(client, name):
    random = np.random.default_rng(0)
    arrays = {f"a{k}": random.integers(0, 256, n, np.uint8) for k, n in enumerate([3, LARGE, 1, 0, 70, 4 << 20, 5])}
    client.publish(name, arrays)
    fetched = client.fetch(name, timeout=20).arrays
    assert all(np.array_equal(fetched[key], value) for key, value in arrays.items())


def test_only_the_latest_version_is_kept_and_numbers_rise(client, name):
    versions = [client.publish(name, {"x": np.full(3, k)}) for k in range(3)]
    assert versions == [1, 2, 3]
    assert client.publish(name, {"x": np.full(3, 9)}, version=40) == 40
    version, arrays = client.fetch(name, newer_than=1)
    assert (version, arrays["x"].tolist()) == (40, [9, 9, 9])
    with pytest.raises(gear.DataError, match="version 40 of .* is not newer than version 40"):
        client.publish(name, {"x": np.zeros(3)}, version=40)
    assert client.publish(name, {"x": np.zeros(3)}) == 41
    assert client.info()["weights"][name]["version"] == 41


def test_the_fetched_arrays_are_the_callers_own(client, name):
    client.publish(name, {"x": np.zeros(3)})
    client.fetch(name).arrays["x"][:] = 5
    assert client.fetch(name).arrays["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_waiting_fetch_is_woken_by_the_version_it_waits_for(client, name, size):
    client.publish(name, {"x": np.zeros(size, np.uint8)})
    got = []
    thread = threading.Thread(target=lambda: got.append(client.fetch(name, newer_than=2, timeout=30)))
    thread.start()
    waiting = lambda: client.info()["weights"][name].get("waiting_readers", 1)
    eventually(lambda: waiting() == 1, "the reader waits")
    client.publish(name, {"x": np.ones(size, np.uint8)})
    client.publish(name, {"x": np.full(size, 2, np.uint8)})
    thread.join(60)
    assert [(p.version, int(p.arrays["x"][-1])) for p in got] == [(3, 2)]


def test_a_fetch_that_times_out_says_what_there_is(client, name):
    with pytest.raises(gear.DeadlineExceeded, match="nothing is published under that name"):
        client.fetch(name, timeout=0.01)
    client.publish(name, {"x": np.zeros(3)})
    with pytest.raises(gear.DeadlineExceeded, match=f"{name}.* newer than version 5 timed out: version 1 is the lat"):
        client.fetch(name, newer_than=5, timeout=0)


def test_a_name_that_nobody_waits_for_any_more_is_forgotten(client, name):
    """Origin: who asked for one new name after the other, each in vain, left all of them behind at the server."""
    with pytest.raises(gear.DeadlineExceeded):
        client.fetch(f"{name}-never", timeout=0)
    assert f"{name}-never" not in client.info()["weights"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([1, 2], "expected a dict"),
        ({}, "expected 1 to"),
        ({"x": [1.0]}, "array 'x': expected a NumPy array or a torch tensor, got list"),
        ({"x": np.array(["a"])}, "array 'x': dtype str"),
        ({"a/b": np.zeros(1), "a": {"b": np.zeros(1)}}, "two values are named 'a/b'"),
    ],
)
def test_what_is_no_array_is_refused_by_name(client, name, arrays, message):
    with pytest.raises(gear.DataError, match=message):
        client.publish(name, arrays)
    with pytest.raises(gear.DeadlineExceeded):
        client.fetch(name, timeout=0)


def test_tensors_come_as_tensors(name):
    import torch

    with gear.embedded(device="cpu") as client:
        model = torch.nn.Linear(3, 2).bfloat16()
        client.publish(name, model.state_dict())
        arrays = client.fetch(name).arrays
        twin = torch.nn.Linear(3, 2).bfloat16()
        twin.load_state_dict(arrays)
        assert torch.equal(twin.weight, model.weight)
        assert torch.equal(twin.bias, model.bias)


def test_asyncio(client, name):
    async def both():
        waiting = asyncio.ensure_future(client.fetch_async(name, timeout=30))
        await client.publish_async(name, {"x": np.ones(2)})
        return await waiting

    assert asyncio.run(both()).arrays["x"].tolist() == [1, 1]


def test_a_cancelled_fetch_takes_nothing_along(client, name):
    async def cancelled():
        waiting = asyncio.ensure_future(client.fetch_async(name))
        await asyncio.sleep(0)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    client.publish(name, {"x": np.zeros(LARGE, np.uint8)})
    assert client.fetch(name).version == 1


def test_a_closed_client_ends_its_waiting_fetch(name):
    client, errors = gear.embedded(), []

    def fetch():
        try:
            client.fetch(name)
        except gear.GearError as error:
            errors.append(type(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    client.close()
    thread.join(60)
    assert errors == [gear.Closed]


# Of a server


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_readers_never_get_a_mix_of_two_versions(server, name, path):
    """Two publishers replace three pieces of equal bytes while readers fetch: every array of a fetch is constant."""
    stop, seen = threading.Event(), []

    def publish(number):
        with gear.connect(server.address, path=path) as client:
            while not stop.is_set():
                number = (number + 2) % 250
                client.publish(name, {"a": np.full(LARGE, number, np.uint8), "b": np.full(3, number, np.uint8)})

    threads = [threading.Thread(target=publish, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    try:
        with gear.connect(server.address, path=path) as reader:
            version = 0
            for _ in range(12):
                version, arrays = reader.fetch(name, newer_than=version, timeout=30)
                seen.append(version)
                assert {int(arrays["a"].min()), int(arrays["a"].max())} == set(arrays["b"].tolist())
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert seen == sorted(set(seen))


_PUBLISHER = """
import sys, numpy as np, gear
from gear.transport import weights
address, path, name = sys.argv[1:]
client = gear.connect(address, path=path)
client.publish(name, {"x": np.zeros(9_000_000, np.uint8)})
pieces = []
piece = weights._piece
def stop_after_one(parcel, begin, end):
    if pieces:
        print("half", flush=True)
        sys.stdin.readline()
    pieces.append(begin)
    return piece(parcel, begin, end)
weights._piece = stop_after_one
client.publish(name, {"x": np.ones(9_000_000, np.uint8)})
"""


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_a_publisher_killed_midway_leaves_the_old_version_and_no_memory(server, name, path):
    with gear.connect(server.address) as client:
        before = client.info()["weights_bytes"]
        publisher = Python(_PUBLISHER, server.address, path, name)
        assert publisher.read() == "half"
        assert client.info()["weights_bytes"] >= before + 18_000_000
        publisher.process.kill()
        publisher.end()
        eventually(lambda: client.info()["weights_bytes"] < before + 10_000_000, "its memory is free", 20)
        version, arrays = client.fetch(name)
        assert (version, int(arrays["x"].max())) == (1, 0)


def test_what_does_not_fit_is_refused_with_both_numbers(server, name):
    """The module's server may take 64 MiB."""
    with gear.connect(server.address) as client:
        client.publish(name, {"x": np.ones(1000)})
        left = (64 << 20) - client.info()["segment_bytes"] - client.info()["weights_bytes"]
        with pytest.raises(gear.InsufficientMemory, match=rf"\({80 << 20} bytes\).* \({left} bytes\) are left"):
            client.publish(name, {"x": np.zeros(80 << 20, np.uint8)})
        assert client.fetch(name).version == 1
        table = gear.Table("large", [gear.Column("x", (1024,))], gear.Steps(1 << 14))
        with pytest.raises(gear.InsufficientMemory, match="allowed by --memory"):
            client.create_table(table)


def test_a_reader_of_a_replaced_version_makes_room_and_starts_again(server, name):
    """64 MiB hold two versions of 24 MiB: for a third the one that is read has to go."""
    size = 24 << 20
    with gear.connect(server.address, path="tcp") as client, gear.connect(server.address, path="tcp") as reader:
        client.publish(name, {"x": np.zeros(size, np.uint8)})
        session, replaced = reader._session, []
        read = session._read

        def replace_first(ticket, out):
            while len(replaced) < 2:
                replaced.append(client.publish(name, {"x": np.full(size, len(replaced) + 1, np.uint8)}))
            read(ticket, out)

        session._read = replace_first
        version, arrays = reader.fetch(name)
        assert (version, int(arrays["x"].min()), int(arrays["x"].max())) == (3, 2, 2)


def test_a_broken_connection_on_the_way(server, proxy, name):
    from gear.transport.tcp import TcpSession

    session = proxy.session(TcpSession)
    with gear.Client(session) as client:
        for cut in range(4):
            proxy.cut_after(1_000_000 + 7_000_000 * cut)
            version = client.publish(name, {"x": np.full(LARGE, cut, np.uint8)})
            assert int(client.fetch(name, newer_than=version - 1).arrays["x"].sum()) == cut * LARGE
    assert proxy.cuts >= 3
