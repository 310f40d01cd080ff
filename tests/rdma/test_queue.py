"""Queue pairs of two ends in one process: what each may do to the other's memory, and what ends with an offence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from gear.server.peer import Peer, Regions
from gear.transport.rdma_chains import MOST, Transfer, runs
from gear.transport.rdma_device import device, enter, leave
from gear.transport.rdma_inlet import RECEIVES, Inlet
from gear.transport.rdma_queue import FLYING, Broken, Key, QueuePair
from gear.transport.rdma_trial import Writing, confines, writing
from gear.transport.rdma_verbs import verbs

BLOCK, BLOCKS = 4096, 600


class Ends:
    """A table's memory with its regions, and any number of clients that have dialed."""

    def __init__(self) -> None:
        enter()
        memory = np.random.default_rng(3).integers(0, 256, BLOCK * BLOCKS, dtype=np.uint8)
        layout = SimpleNamespace(block_bytes=BLOCK, regions={"arena": SimpleNamespace(offset=0)})
        self.hosted = SimpleNamespace(index=0, stored=SimpleNamespace(layout=layout, segment=memory))
        self.memory, self.regions = memory, Regions()
        self.own = np.zeros(BLOCK * BLOCKS, np.uint8)
        self._own = device().register(self.own, verbs().enums.IBV_ACCESS_LOCAL_WRITE)
        self.near = self.own.ctypes.data, self._own.lkey
        self.inlets: dict[Peer, Inlet] = {}
        self._closing: list[QueuePair | Peer] = []

    def client(self) -> tuple[QueuePair, Peer]:
        pair = QueuePair(device())
        back = Inlet(device())
        peer = Peer(pair.end, back.end)
        e = verbs().enums
        pair.connect(peer.end, e.IBV_ACCESS_LOCAL_WRITE)
        back.connect(peer.back.end, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.inlets[peer] = back
        self._closing += [pair, back, peer]
        return pair, peer

    @property
    def readable(self) -> Key:
        return Key(self.memory.ctypes.data, self.regions.readable(self.hosted).rkey)

    def open(self, peer: Peer, *blocks: int) -> list[Key]:
        windows = peer.open(self.hosted, self.regions.writable(self.hosted), np.array(blocks, np.int32))
        return [Key(int(address), int(key)) for _, address, key in windows]

    def close(self) -> None:
        for one in self._closing:
            one.close()
        self._own.close()
        self.regions.close()
        leave()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_blocks_are_read_in_chains_to_where_they_belong(ends):
    pair, _ = ends.client()
    wanted = np.random.default_rng(1).permutation(BLOCKS)[: FLYING * MOST + 70]  # more than fly at a time
    moves = runs(np.arange(len(wanted)) * BLOCK, wanted * BLOCK, BLOCK)
    assert len(moves) > FLYING * MOST
    pair.read(moves, ends.near, ends.readable)
    got = ends.own[: len(wanted) * BLOCK].reshape(-1, BLOCK)
    np.testing.assert_array_equal(got, ends.memory.reshape(-1, BLOCK)[wanted])


def test_a_writer_reaches_what_it_leased_for_as_long_as_it_does(ends):
    pair, peer = ends.client()
    before = ends.memory.copy()
    ends.own[:] = 7
    for _ in range(2):  # leased again, it is another key
        (run, single) = ends.open(peer, 3, 4, 9)
        pair.write([Transfer(0, 0, 2 * BLOCK)], ends.near, run)
        pair.write([Transfer(0, 0, BLOCK)], ends.near, single)
        peer.shut(0, np.array([3, 4, 9], np.int32))
    changed = np.flatnonzero((ends.memory != before).reshape(-1, BLOCK).any(axis=1))
    assert changed.tolist() == [3, 4, 9]
    assert (ends.memory.reshape(-1, BLOCK)[[3, 4, 9]] == 7).all()
    ends.memory[:] = before
    with pytest.raises(Broken, match="status 10"):
        pair.write([Transfer(0, 0, BLOCK)], ends.near, run)
    np.testing.assert_array_equal(ends.memory, before)


def _read_only(ends: Ends, pair: QueuePair, peer: Peer) -> None:
    pair.write([Transfer(0, 0, BLOCK)], ends.near, ends.readable)


def _wrong_key(ends: Ends, pair: QueuePair, peer: Peer) -> None:
    pair.read([Transfer(0, 0, BLOCK)], ends.near, ends.readable._replace(key=ends.readable.key ^ 0x55))


def _past_the_end(ends: Ends, pair: QueuePair, peer: Peer) -> None:
    pair.read([Transfer(0, (BLOCKS - 1) * BLOCK + 1, BLOCK)], ends.near, ends.readable)


def _anothers_window(ends: Ends, pair: QueuePair, peer: Peer) -> None:
    _, other = ends.client()
    (run,) = ends.open(other, 5)
    pair.write([Transfer(0, 0, BLOCK)], ends.near, run)


OFFENCES = [_read_only, _wrong_key, _past_the_end, _anothers_window]


@pytest.mark.parametrize("offence", OFFENCES, ids=lambda offence: offence.__name__)
def test_an_offence_ends_the_offender_s_pair_and_changes_nothing(ends, offence):
    pair, peer = ends.client()
    honest, _ = ends.client()
    before = ends.memory.copy()
    ends.own[:] = 7
    with pytest.raises(Broken, match="status"):
        offence(ends, pair, peer)
    np.testing.assert_array_equal(ends.memory, before)
    assert pair.broken
    with pytest.raises(Broken):
        pair.read([Transfer(0, 0, BLOCK)], ends.near, ends.readable)
    honest.read([Transfer(0, 0, BLOCK)], ends.near, ends.readable)
    np.testing.assert_array_equal(ends.own[:BLOCK], before[:BLOCK])


def test_the_trial_tells_what_a_window_confines(ends):
    pair, peer = ends.client()
    (run,) = ends.open(peer, 3, 4)
    before = ends.memory.copy()
    ends.own[:] = 7
    try:
        pair.write([Transfer(0, BLOCK, 2 * BLOCK)], ends.near, run)
    except Broken:
        assert confines()
        np.testing.assert_array_equal(ends.memory, before)
    else:
        assert not confines()
        assert (ends.memory != before).any()
    assert writing() is (Writing.LEASES if confines() else Writing.WINDOW)


@pytest.mark.parametrize("windowed", [True, False])
def test_a_writer_reaches_its_inbox_and_nothing_behind_it(ends, windowed):
    pair, peer = ends.client()
    peer.open_inbox(windowed)
    inbox, ends.own[:] = peer.inbox, 7
    far = Key(inbox.address, inbox.key)
    pair.write([Transfer(0, BLOCK, 2 * BLOCK)], ends.near, far)
    assert np.flatnonzero((inbox.memory == 7).reshape(-1, BLOCK).all(axis=1)).tolist() == [1, 2]
    with pytest.raises(Broken, match="status"):
        pair.write([Transfer(0, len(inbox.memory) - BLOCK + 1, BLOCK)], ends.near, far)
    assert not inbox.memory[3 * BLOCK :].any()


def test_an_inbox_is_of_one_writer(ends):
    _, peer = ends.client()
    other, _ = ends.client()
    peer.open_inbox(True)
    ends.own[:] = 7
    with pytest.raises(Broken, match="status"):
        other.write([Transfer(0, 0, BLOCK)], ends.near, Key(peer.inbox.address, peer.inbox.key))
    assert not peer.inbox.memory.any()


class Reader:
    """Memory of a client's that is written to from the server's."""

    def __init__(self, access: int) -> None:
        e = verbs().enums
        self.memory, self.staging = np.zeros(3 << 20, np.uint8), np.random.default_rng(2).bytes(3 << 20)
        self._staged = np.frombuffer(self.staging, np.uint8).copy()
        self.regions = [device().register(self.memory, access)]
        self.regions.append(device().register(self._staged, e.IBV_ACCESS_LOCAL_WRITE))
        self.near = self._staged.ctypes.data, self.regions[1].lkey
        self.far = Key(self.memory.ctypes.data, self.regions[0].rkey)


@pytest.fixture
def reader(ends, request) -> Iterator[Reader]:
    e = verbs().enums
    made = Reader(e.IBV_ACCESS_LOCAL_WRITE | (e.IBV_ACCESS_REMOTE_WRITE if request.param else e.IBV_ACCESS_REMOTE_READ))
    yield made
    for region in made.regions:
        region.close()


def until(peer: Peer, count: int) -> None:
    deadline = time.monotonic() + 60
    while count:
        assert time.monotonic() < deadline
        count -= peer.back.reap()


@pytest.mark.parametrize("reader", [True], indirect=True)
def test_rows_that_are_pushed_are_there_when_their_immediate_has_come(ends, reader):
    _, peer = ends.client()
    whole = [Transfer(at << 20, at << 20, 1 << 20) for at in range(3)]
    peer.back.send(whole, reader.near, reader.far, 2**32 - 2)
    peer.back.send([Transfer(5, 5, 1)], reader.near, reader.far, 3)
    ends.inlets[peer].wait_for(3)
    assert reader.memory.tobytes() == reader.staging
    ends.inlets[peer].wait_for(2**32 - 2)
    until(peer, 2)
    for number in range(100):  # more than are received without being looked at
        peer.back.send([Transfer(0, 0, 64)], reader.near, reader.far, 10 + number)
        until(peer, 1)
        ends.inlets[peer].wait_for(10 + number)


@pytest.mark.parametrize("reader", [False], indirect=True)
def test_rows_are_pushed_to_nothing_but_what_the_reader_opened(ends, reader):
    pair, peer = ends.client()
    peer.back.send([Transfer(0, 0, 64)], reader.near, reader.far, 1)
    with pytest.raises(Broken, match="status 10"):  # not allowed
        until(peer, 1)
    assert not reader.memory.any()
    pair.read([Transfer(0, 0, BLOCK)], ends.near, ends.readable)  # the other pair goes on


@pytest.mark.parametrize("reader", [True], indirect=True)
def test_a_reader_that_takes_in_no_immediates_ends_its_queue_pair(ends, reader):
    _, peer = ends.client()
    for number in range(1, RECEIVES + 1):
        peer.back.send([Transfer(0, 0, 64)], reader.near, reader.far, number)
        until(peer, 1)
    peer.back.send([Transfer(0, 0, 64)], reader.near, reader.far, RECEIVES + 1)
    with pytest.raises(Broken, match="status 13"):  # the receiver is not ready
        until(peer, 1)


def test_when_a_pair_is_destroyed_its_windows_show_nothing(ends):
    pair, peer = ends.client()
    (run,) = ends.open(peer, 3)
    before = ends.memory.copy()
    ends.own[:] = 7
    peer.close()
    with pytest.raises(Broken):
        pair.write([Transfer(0, 0, BLOCK)], ends.near, run)
    np.testing.assert_array_equal(ends.memory, before)
