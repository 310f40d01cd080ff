"""Queue pairs of two ends in one process: what each may do to the other's memory, and what ends with an offence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from gear.server.peer import Peer, Regions
from gear.server.trial import TRUST, confines, may_write
from gear.transport.rdma_chains import MOST, Transfer, runs
from gear.transport.rdma_device import device, enter, leave
from gear.transport.rdma_queue import FLYING, Broken, Key, QueuePair
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
        self._closing: list[QueuePair | Peer] = []

    def client(self) -> tuple[QueuePair, Peer]:
        pair = QueuePair(device())
        peer = Peer(pair.end)
        pair.connect(peer.end, verbs().enums.IBV_ACCESS_LOCAL_WRITE)
        self._closing += [pair, peer]
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
    assert may_write() == (confines() or os.environ.get(TRUST) == "trusted")


def test_when_a_pair_is_destroyed_its_windows_show_nothing(ends):
    pair, peer = ends.client()
    (run,) = ends.open(peer, 3)
    before = ends.memory.copy()
    ends.own[:] = 7
    peer.close()
    with pytest.raises(Broken):
        pair.write([Transfer(0, 0, BLOCK)], ends.near, run)
    np.testing.assert_array_equal(ends.memory, before)
