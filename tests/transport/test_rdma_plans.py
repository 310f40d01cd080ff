"""What the rdma path plans and keeps, without a device: transfers, the copy that is gathered from, buffers, the way."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear.errors import DeviceError
from gear.kernels.collect import collect
from gear.plan import make_plan
from gear.server.peers import Peers
from gear.storage import memory
from gear.storage.extent import Extent
from gear.storage.fields import BEGIN, CONTINUED, CONTINUES, END, HAS_FINAL, TERMINATED
from gear.storage.layout import COMMIT_ENTRY, Layout
from gear.storage.table import StoredTable
from gear.transport import messages as m
from gear.transport import rdma_chains, rdma_verbs, rdma_way
from gear.transport.base import OpenTable
from gear.transport.rdma import RdmaSession, cut
from gear.transport.rdma_inbox import Inbox
from gear.transport.rdma_mirror import Found, Mirror, short_columns
from gear.transport.rdma_pool import LEAST, Pool
from gear.transport.rdma_pushed import pushes, reads
from gear.transport.staged import StagedOutbox

SIZE = 64


@given(st.lists(st.integers(0, 40), unique=True, max_size=60), st.integers(1, 5))
def test_runs_move_every_block_once_and_join_neighbours(blocks, longest):
    far = np.array(sorted(blocks), np.int64) * SIZE
    near = np.arange(len(blocks), dtype=np.int64) * SIZE
    kept, rdma_chains.LONGEST = rdma_chains.LONGEST, longest * SIZE
    try:
        made = rdma_chains.runs(near, far, SIZE)
    finally:
        rdma_chains.LONGEST = kept
    source = np.random.default_rng(1).integers(0, 256, 41 * SIZE, dtype=np.uint8)
    target = np.zeros(len(blocks) * SIZE, np.uint8)
    for one in made:
        assert not target[one.near : one.near + one.nbytes].any()
        target[one.near : one.near + one.nbytes] = source[one.far : one.far + one.nbytes]
    np.testing.assert_array_equal(target.reshape(-1, SIZE), source.reshape(-1, SIZE)[sorted(blocks)])
    gaps = sum(b - a != 1 for a, b in zip(sorted(blocks), sorted(blocks)[1:], strict=False))
    assert len(made) <= gaps + 1 + len(blocks) // longest
    if not blocks:
        assert not made


@given(st.integers(0, 1000))
def test_chains_hold_all_transfers_in_order(count):
    given = [rdma_chains.Transfer(k, k, 1) for k in range(count)]
    made = rdma_chains.chains(given)
    assert [one for chain in made for one in chain] == given
    assert all(0 < len(chain) <= rdma_chains.MOST for chain in made)
    assert all(len(chain) == rdma_chains.MOST for chain in made[:-1])


COLUMNS = (
    gear.Column("obs", (300,), "uint8"),
    gear.Column("reward", (), "float64"),
    gear.Column("policy", (), "int64", per="trajectory"),
    gear.Column("image", (2000,), "uint8", per="trajectory"),
)


def stored_table(rng: np.random.Generator, item: gear.schema.Item, lengths: list[int]) -> StoredTable:
    """A table whose blocks are scattered, as other trajectories left between those that stay."""
    table = gear.Table(
        "t", COLUMNS, gear.Steps(400), item=item, mean_length=12, max_length=30, block_steps=4
    )  # fmt: skip
    stored = StoredTable(table)
    layout, client = stored.layout, stored.attach(bytes(16))
    arena, base = layout.regions["arena"].offset, layout.regions["trajectories"].offset
    open_pieces = 0
    for sequence, length in enumerate(lengths, 1):
        final, goes_on = bool(sequence % 3), sequence % 4 == 0
        need = layout.blocks_for(length + final)
        grant = stored.lease(client, need, 1)
        assert len(grant.blocks) == need
        for block in grant.blocks.tolist():
            at = arena + block * layout.block_bytes
            stored.segment[at : at + layout.block_bytes] = rng.integers(0, 256, layout.block_bytes, np.uint8)
        for place in layout.per_trajectory:
            at = base + place.offset + int(grant.slots[0]) * place.stride
            stored.segment[at : at + place.width] = rng.integers(0, 256, place.width, np.uint8)
        flags = BEGIN | END | (HAS_FINAL if final and not goes_on else 0) | (TERMINATED if sequence % 2 else 0)
        follows = sequence - 1 if open_pieces else 0
        flags = flags & ~TERMINATED | CONTINUED if goes_on else flags
        flags |= CONTINUES if open_pieces else 0
        used = layout.blocks_for(length + bool(flags & HAS_FINAL))
        entry = np.zeros(1, COMMIT_ENTRY)
        entry[0] = (sequence, grant.slots[0], used, length, flags, 0, open_pieces, follows)
        stored.check(client, entry, grant.blocks[:used], np.empty(0))
        stored.commit(client, entry, grant.blocks[:used], np.empty(0))
        stored.end_leases(client, grant.blocks[used:], grant.slots[:0])
        open_pieces = length if goes_on else 0
    return stored


VIEWS = (
    (),
    (gear.View("obs", stack=3, name="frames"), "policy", gear.n_step("reward", 3, 0.9), "image"),
    (gear.return_to_go("reward"), gear.View("reward", offset=-5, length=4, pad="head"), gear.View("obs", shift=2)),
)


@pytest.mark.parametrize("views", range(len(VIEWS)))
@pytest.mark.parametrize("item", [gear.Whole(), gear.Window(7), gear.Window(7, edge="head")], ids=str)
def test_gathering_from_the_copy_gives_the_bytes_that_the_table_gives(item, views):
    rng = np.random.default_rng(7)
    stored = stored_table(rng, item, [int(n) for n in rng.integers(1, 31, 30)])
    layout, segment = stored.layout, stored.segment
    from gear.views import as_views

    wanted = as_views(VIEWS[views]) if VIEWS[views] else ()
    length = layout.max_length if isinstance(item, gear.Whole) else 7
    for size in (1, 9):
        plan = make_plan(layout, wanted, size, length)
        assert reads(plan)
        selection = stored.select(0, size, 1, 60.0, 0, False, 0, (plan.before, plan.after))
        near, starts, lengths = selection.neighbours, selection.starts, selection.lengths
        expected, got = np.full(plan.nbytes, 7, np.uint8), np.full(plan.nbytes, 7, np.uint8)
        collect(segment, plan, starts, lengths, near, expected)
        for items in cut(layout, plan, lengths):
            placed = plan.behind(items.start, 0) if items.start else plan
            found = Found(*_found(Extent(layout, segment).of(
                starts[items], lengths[items], plan.length, (plan.before, plan.after), near
            )))  # fmt: skip
            mirror = Mirror(layout, found)
            memory = np.full(mirror.nbytes, 9, np.uint8)
            for moves, region in zip(mirror.transfers(), ("arena", "trajectories"), strict=True):
                origin = segment[layout.regions[region].offset :]
                for one in moves:
                    memory[one.near : one.near + one.nbytes] = origin[one.far : one.far + one.nbytes]
            mirror.fill(memory, _values(stored, found.slots))
            collect(
                memory, mirror.plan(placed), mirror.starts(starts[items]), lengths[items].copy(),
                mirror.neighbours(near), got,
            )  # fmt: skip
        np.testing.assert_array_equal(got, expected)


def _found(of: tuple) -> tuple:
    blocks, records, slots, slot_records = of
    return blocks, records, slots, slot_records


def _values(stored: StoredTable, slots: np.ndarray) -> np.ndarray:
    base, parts = stored.layout.regions["trajectories"].offset, []
    for place in short_columns(stored.layout):
        for slot in slots.tolist():
            at = base + place.offset + slot * place.stride
            parts.append(stored.segment[at : at + place.stride])
    return np.concatenate(parts)


def test_places_that_are_none_lead_nowhere():
    stored = stored_table(np.random.default_rng(1), gear.Window(7), [30] * 5)
    extent = Extent(stored.layout, stored.segment)
    blocks, _, slots, _ = extent.of(
        np.array([-1, 1 << 40], np.int64), np.array([7, 7], np.int32), 7, (1 << 40, 1 << 40), np.array([-3, 1 << 20])
    )
    assert not len(blocks)
    assert not len(slots)


def test_short_rows_are_not_read():
    table = gear.Table("t", (gear.Column("x"),), gear.Steps(100), item=gear.Window(4), block_steps=4)
    assert not reads(make_plan(StoredTable(table).layout, (), 3, 4))
    table = gear.Table("t", (gear.Column("x", (1000,)),), gear.Steps(100), item=gear.Step(0))
    assert not reads(make_plan(StoredTable(table).layout, (), 3, 1))


def test_rows_of_which_some_lie_on_a_gpu_go_over_tcp():
    columns = (gear.Column("x", (1000,)), gear.Column("y", (1000,), placement="device"))
    table = gear.Table("t", columns, gear.Steps(100), item=gear.Window(4), block_steps=4)
    layout = Layout(table, staged=True)  # as a client has it from which rows travel
    assert not reads(make_plan(layout, (), 3, 4))
    on_host = gear.Table("t", columns[:1], gear.Steps(100), item=gear.Window(4), block_steps=4)
    assert reads(make_plan(Layout(on_host, staged=True), (), 3, 4))
    box = RdmaSession._box(object.__new__(RdmaSession), None, OpenTable(table, layout, memory.sparse(layout.nbytes)))
    assert type(box) is StagedOutbox
    stored = SimpleNamespace(arena="there")
    peers = Peers(lambda client, index: (SimpleNamespace(stored=stored), 0), None, None, None, None)
    for body, frames in ((m.Locate(0, 1, 1, 0, 0), [b"", bytes(8), bytes(4)]), (m.Place(0, 1, 1, 1), [b""])):
        with pytest.raises(DeviceError, match="over TCP"):
            peers.handlers()[type(body)](SimpleNamespace(peer="dialed"), 1, body, frames)


def test_where_memory_cannot_be_registered_the_batch_goes_over_tcp():
    def register(memory):
        raise DeviceError("ulimit -l")

    stored = stored_table(np.random.default_rng(1), gear.Window(7), [30] * 5)
    plan, selection = make_plan(stored.layout, (), 2, 7), stored.select(0, 2, 1, 60.0, 0, False, 0, (0, 0))
    found = Extent(stored.layout, stored.segment).of(
        selection.starts, selection.lengths, 7, (0, 0), selection.neighbours
    )
    session, pair = object.__new__(RdmaSession), Pair()
    session._way, session._pool, session._talking = rdma_way.Way(), Pool(register), nullcontext
    session._way.pair = pair
    session._locate = lambda *_: (pair, Found(*found), _values(stored, found[2]), None, None)
    out = np.zeros(plan.nbytes, np.uint8)
    table = OpenTable(stored.table, stored.layout, stored.segment)
    assert not session._bring(table, selection, plan, plan, slice(0, 2), out)
    assert pair.closed
    assert session._way.failures == 1


class Region:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * LEAST)), max_size=30))
def test_a_buffer_has_one_user_at_a_time_and_is_used_again(steps):
    pool, taken, biggest = Pool(lambda memory: Region()), [], 0
    for take, nbytes in steps:
        if take:
            buffer = pool.take(nbytes)
            assert len(buffer.memory) >= nbytes
            assert all(buffer is not other for other in taken)
            assert not buffer.region.closed
            taken.append(buffer)
            biggest = max(biggest, len(taken))
        elif taken:
            pool.put(taken.pop())
    for buffer in taken:
        pool.put(buffer)
    assert pool.made <= 4 * biggest  # sizes are powers of two: of 1, 2, 4 and 8 MiB here
    before = pool.made
    pool.put(pool.take(1)) if before else None
    assert pool.made == before


def test_too_many_idle_buffers_are_unregistered():
    pool = Pool(lambda memory: Region(), 3 * LEAST)
    large, small = pool.take(2 * LEAST), [pool.take(1) for _ in range(2)]
    pool.put(large)
    for buffer in small:
        pool.put(buffer)
    assert large.region.closed
    assert not any(buffer.region.closed for buffer in small)


class Pair:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_attempts_come_later_and_later_until_the_way_is_given_up(caplog):
    way, waits = rdma_way.Way(), []
    for _ in range(7):
        pair = way.pair = Pair()
        way.broke(pair, "test")
        assert pair.closed
        assert way.pair is None
        waits.append(way._due - time.monotonic())
    assert waits[:4] == pytest.approx([0.05, 0.1, 0.2, 0.4], abs=0.04)
    assert waits[4:] == pytest.approx([rdma_way.LATER] * 3, abs=0.04)
    assert way.figures["broken"] == 7
    assert len([r for r in caplog.records if r.name == "gear.transport.rdma_way"]) == 2
    way.went_well()
    assert way.failures == 0


def test_an_old_pair_that_breaks_leaves_the_new_one_alone():
    way = rdma_way.Way()
    old, new = Pair(), Pair()
    way.pair = new
    way.broke(old, "test")
    assert old.closed
    assert way.pair is new
    assert not new.closed


def test_a_missing_library_is_named_with_its_package(monkeypatch):
    rdma_verbs.verbs.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pyverbs", None)
    with pytest.raises(DeviceError, match="python3-pyverbs"):
        rdma_verbs.verbs()
    rdma_verbs.verbs.cache_clear()


def test_both_layouts_of_the_library_are_known(monkeypatch, tmp_path):
    for layout in ("enums", "libibverbs_enums"):
        home = tmp_path / layout / "pyverbs"
        home.mkdir(parents=True)
        (home / "__init__.py").touch()
        (home / f"{layout}.py").write_text("IBV_WC_SUCCESS = 0\n")
        for module in set(rdma_verbs._MODULES.values()):
            names = [name for name, of in rdma_verbs._MODULES.items() if of == module]
            (home / f"{module}.py").write_text("".join(f"class {name}: pass\n" for name in names))
        code = f"import sys; sys.path.insert(0, {str(home.parent)!r}); from gear.transport.rdma_verbs import verbs; "
        code += "assert verbs().enums.IBV_WC_SUCCESS == 0 and verbs().QPEx"
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_a_device_the_path_is_refused_and_nothing_else_is_taken(server, monkeypatch, tmp_path):
    monkeypatch.setattr(rdma_verbs, "PRESENT", tmp_path)
    monkeypatch.setattr(rdma_verbs, "verbs", lambda: None)
    monkeypatch.setattr("gear.transport.rdma_device.verbs", lambda: None)
    with pytest.raises(DeviceError, match="no RDMA device"):
        gear.connect(server.address, path="rdma")


@given(st.lists(st.one_of(st.integers(1, 40), st.just(0)), max_size=40))
def test_parts_of_an_inbox_do_not_overlap_and_fit_while_there_is_room(steps):
    inbox, taken = Inbox(1, 0, 0, 100), []
    for nbytes in steps:  # 0: one is given back
        if nbytes:
            begin = inbox.take(nbytes)
            used = np.zeros(100 + nbytes, bool)
            for other, size in taken:
                used[other : other + size] = True
            gaps = [at for at in range(101 - nbytes) if not used[at : at + nbytes].any()]
            assert begin == (gaps[0] if gaps else None)
            taken += [(begin, nbytes)] if gaps else []
        elif taken:
            inbox.give(taken.pop(len(taken) // 2)[0])


def test_what_counts_as_short_can_be_set(monkeypatch):
    table = gear.Table("t", COLUMNS[:2], gear.Steps(100), item=gear.Window(4), block_steps=4)
    plan = make_plan(Layout(table, staged=True), (), 100, 4)
    assert reads(plan)
    monkeypatch.setenv("GEAR_RDMA_SHORT", "1M")
    with pytest.raises(DeviceError, match="number of bytes"):
        reads(plan)
    monkeypatch.setenv("GEAR_RDMA_SHORT", str(1 << 20))
    assert not reads(plan)
    assert pushes(plan, 100)
    assert not pushes(plan, 1)  # comes with its selection


def test_a_client_without_a_queue_pair_is_refused(session, name):
    from tests.transport.helpers import table

    opened = session.create_table(table(name), 5.0)
    index = opened.layout.index
    with session._talk.lock:
        for body, frames in (
            (m.Locate(index, 1, 1, 0, 0), (bytes(8), bytes(4))),
            (m.Place(index, 1, 1, 1), ()),
            (m.Unload(index, 17, 0, 64), (np.zeros(1, COMMIT_ENTRY).tobytes(), b"", b"")),
            (m.Push(index, 1, m.Shape((), 1), 4096, 7), (bytes(8), bytes(4))),
        ):
            with pytest.raises(DeviceError, match="no queue pair"):
                session._talk.ask(body, time.monotonic() + 5, frames)
