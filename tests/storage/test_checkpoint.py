"""A checkpoint of tables at one instant: what is saved, what is written again, what a restore makes of it."""

from __future__ import annotations

import shutil
from copy import copy
from pathlib import Path
from random import Random
from threading import Barrier, Thread
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, note, settings

import gear
from gear import schema
from gear.errors import CheckpointError
from gear.storage import arrayfile, format, manifest, shelf
from gear.storage import fields as f
from gear.storage.evict import evict
from gear.storage.portions import pieces
from gear.storage.restoring import restore
from gear.storage.saving import Parcel, PartSave
from gear.storage.saving_table import Subject
from gear.storage.table import StoredTable

from .actors import Actor, Growing, column, make
from .test_recount import Drive
from .test_recovery import contents


def begin(stored: StoredTable, directory: Path, number: int = 0, room: int | None = None) -> PartSave:
    """A save of one table, at its instant."""
    declaration = schema.to_bytes(stored.table)
    subject = Subject(stored, stored.table, declaration, 0, 1, True)
    save = PartSave(directory, f"{number:016x}", 0, [subject], room=room)
    save.prepare()
    save.take()
    return save


def end(save: PartSave, directory: Path) -> Path:
    """Write the rest of it."""
    save.write()
    save.let_go()
    return shelf.seal(directory, save.token, 1, "test", "test", 0.0)[0]


def save(stored: StoredTable, directory: Path, number: int = 0) -> Path:
    return end(begin(stored, directory, number), directory)


def restored(path: Path, folder: Path, same_line: bool = True) -> StoredTable:
    folder.mkdir(exist_ok=True)
    restore(path, pieces(path, manifest.load(path), 0, 1, same_line), folder)
    header = format.read(folder / "table-0")
    return StoredTable(header.table, header.index, header.shard, folder / "table-0", header.spread, kept=True, era=0)


def written(path: Path) -> int:
    return manifest.load(path).written


def files(path: Path) -> set[Path]:
    return {p for p in path.rglob("*") if p.is_file()}


@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_restored_is_what_was_there_at_the_instant(seed, tmp_path_factory):
    """Whatever is done between the instant and the writing; what is lost meanwhile is left out whole."""
    drive, tmp_path, random = Drive(seed), tmp_path_factory.mktemp("saved"), Random(seed)
    note(f"seed {seed}: {drive.table}")
    for number in range(random.randint(5, 60)):
        drive.step(number)
    drive.settle_claims()
    before, kept = contents(drive.stored), drive.stored.counters.copy()
    writing = begin(drive.stored, tmp_path, room=random.choice([0, 200, 1 << 20]))
    for number in range(100, 100 + random.choice([0, 0, 30])):
        drive.step(number)
    path = end(writing, tmp_path)
    left_out = manifest.load(path).parts[0].tables[0].left_out
    again = restored(path, tmp_path / "shard")
    assert again.found.damaged == 0
    after = contents(again)
    assert len(after) >= len(before) - left_out - sum(k not in after for k in before)
    assert all(before[order] == what for order, what in after.items())
    gone = before.keys() - after.keys()
    assert len(gone) <= left_out
    assert again.counters[f.INSERTED] == kept[f.INSERTED]
    assert again.counters[f.INSERTED_ITEMS] == kept[f.INSERTED_ITEMS]
    if not left_out:
        sampled = kept[f.SAMPLED_ITEMS]
        if (
            again.params[f.P_MOST] and not again.table.lines
        ):  # items that left a queue while they were on their way, too
            sampled = kept[f.DELETED_ITEMS] - kept[f.RETURNED_ITEMS]
        assert again.counters[f.SAMPLED_ITEMS] == sampled
    mirror = copy(drive)
    mirror.stored, mirror.queue = again, SimpleNamespace(_selects=())
    mirror.draws, mirror.clients, mirror.claimed = [], [], {}
    assert again.counters[f.LEASED_BLOCK_COUNT] == 0


def draws(stored: StoredTable, actor: Actor, batches: int = 5, size: int = 7) -> list:
    found = []
    for _ in range(batches):
        selection = stored.select(actor.client, size, 1, 60.0)
        assert not isinstance(selection, int)
        found.append((selection.ids.tolist(), selection.probabilities.tolist()))
        stored.pins.release(actor.client, selection.pin, True)
    return found


SAMPLERS = [
    gear.Uniform(), gear.Uniform("trajectories"), gear.Prioritized(0.6), gear.Epochs(), gear.Fifo(), gear.Lifo(),
    gear.MaxHeap(), gear.MinHeap(), gear.Fresh(),
]  # fmt: skip


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("prefetched", [0, 3])
def test_the_next_batches_are_those_of_the_uninterrupted_run(sampler, prefetched, tmp_path):
    """Also on a second save; what was drawn ahead and not delivered is drawn again (rl#4089, #4388)."""
    stored = make(
        capacity=gear.Steps(60), item=gear.Window(3), sampler=sampler, remover=gear.Uniform(), seed=7, block_steps=4
    )
    actor = Actor(stored)
    for number in range(30):  # the first ones are evicted by then, in no order
        actor.insert(number, 3 + number % 8, priorities=(1.0 + number % 5,))
    draws(stored, actor)
    save(stored, tmp_path, 1)
    draws(stored, actor, 2)
    ahead = [stored.select(actor.client, 7, 1, 60.0) for _ in range(prefetched)]
    path = save(stored, tmp_path, 2)
    expected = [(s.ids.tolist(), s.probabilities.tolist()) for s in ahead]
    for selection in ahead:
        stored.pins.release(actor.client, selection.pin, True)
    expected += draws(stored, actor, 8 - prefetched)
    again = restored(path, tmp_path / "shard")
    assert draws(again, Actor(again), 8) == expected
    for one in (stored, again):
        Actor(one, b"b" * 16).insert(99, 9)
    assert contents(again) == contents(stored), "removers go on where they were"


def test_a_save_gets_on_with_the_rest_while_blocks_are_evicted_one_by_one(tmp_path, monkeypatch):
    """Origin: as long as one was evicted with each piece, pieces had one block, each with a rest behind it."""
    stored = make(capacity=gear.Trajectories(400), item=gear.Whole(), mean_length=4, block_steps=4)
    actor = Actor(stored)
    slots = [actor.insert(number, 4) for number in range(400)]
    before, writing, hurries = contents(stored), begin(stored, tmp_path), []

    def advance(nbytes: int, hurry: bool) -> bool:
        if writing.snapshots[0].pending.any():
            hurries.append(hurry)
            evict(stored.segment, stored.params, slots.pop(), False)  # the newest, which would be written last
        return False

    monkeypatch.setattr(arrayfile, "PIECE", 10 * stored.layout.block_bytes)
    monkeypatch.setattr(writing, "_advance", advance)
    path = end(writing, tmp_path)
    assert len(hurries) < 100
    assert contents(restored(path, tmp_path / "shard")) == before


def test_a_save_looks_at_what_is_urgent_after_each_rest(tmp_path, monkeypatch):
    """Origin: it wrote on for four rests, a second where cores are short, while what it had not read was leased."""
    stored = make(capacity=gear.Trajectories(400), item=gear.Whole(), mean_length=4, block_steps=4)
    actor = Actor(stored)
    slots = [actor.insert(number, 4) for number in range(400)]
    writing, written = begin(stored, tmp_path), []
    snapshot = writing.snapshots[0]
    block = int(snapshot.records("slots")[slots[-1], f.FIRST])

    def rest(nbytes: int, hurry: bool) -> bool:
        written.append(bool(snapshot.pending[block]))
        if len(written) == 5:
            evict(stored.segment, stored.params, slots[-1], False)
        return True

    monkeypatch.setattr(arrayfile, "PIECE", 10 * stored.layout.block_bytes)
    monkeypatch.setattr(writing, "_advance", rest)
    end(writing, tmp_path)
    assert written[:6] == [True] * 5 + [False]


def full(n: int = 200, **fields) -> tuple[StoredTable, Actor]:
    stored = make(capacity=gear.Trajectories(n), item=gear.Whole(), mean_length=8, block_steps=4, **fields)
    actor = Actor(stored)
    for number in range(n + n // 4):
        actor.insert(number, 8)
    return stored, actor


def test_what_has_not_changed_is_not_written_again(tmp_path):
    stored, actor = full(2000)
    first = save(stored, tmp_path, 1)
    for number in range(20):
        actor.insert(10_000 + number, 8)
    second = save(stored, tmp_path, 2)
    rows = [sum(e.nbytes for e in manifest.load(p).parts[0].tables[0].rows) for p in (first, second)]
    directory = sum(e.nbytes for e in manifest.load(second).parts[0].tables[0].arrays.values())
    assert written(first) > rows[0]
    assert written(second) - directory < rows[1] // 20
    shutil.rmtree(first)
    assert contents(restored(second, tmp_path / "shard")) == contents(stored)


def test_rows_that_came_to_a_block_later_are_written_again(tmp_path):
    """Open trajectories grow in the block that a save before has seen, and columns are filled late."""
    columns = (*make(capacity=gear.Steps(8)).table.columns, gear.Column("late", (), "int64", late=True))
    stored = make(capacity=gear.Steps(100), columns=columns, block_steps=8, publish="rows", item=gear.Step(0))
    actor = Actor(stored)
    slot = actor.insert(1, 4)
    save(stored, tmp_path, 1)
    ids = np.array([stored.select(actor.client, 1, 1, 60.0).ids[0]])
    stored.fill(ids, np.array([4]), {"late": np.arange(4).tobytes()})
    path = save(stored, tmp_path, 2)
    again = restored(path, tmp_path / "shard")
    block = int(again.layout.view(again.segment, "slots")[slot, f.FIRST])
    assert column(again, "late")[block, :4].tolist() == [0, 1, 2, 3]


def test_a_late_column_is_filled_between_the_end_of_writing_and_that_of_the_save(tmp_path):
    """The other tables are still being written then, or the owner has not heard of the end."""
    columns = (*make(capacity=gear.Steps(8)).table.columns, gear.Column("late", (), "int64", late=True))
    stored = make(capacity=gear.Steps(100), columns=columns, block_steps=8, publish="rows", item=gear.Step(0))
    actor = Actor(stored)
    slot = actor.insert(1, 4)
    begun = begin(stored, tmp_path)
    begun.write()
    ids = np.array([stored.select(actor.client, 1, 1, 60.0).ids[0]])
    assert stored.fill(ids, np.array([4]), {"late": np.arange(4).tobytes()}).applied == 1
    begun.let_go()
    block = int(stored.layout.view(stored.segment, "slots")[slot, f.FIRST])
    assert column(stored, "late")[block, :4].tolist() == [0, 1, 2, 3]


def test_files_of_which_little_is_left_are_not_kept(tmp_path):
    stored, actor = full()
    save(stored, tmp_path, 1)
    for number in range(150):
        actor.insert(1000 + number, 8)
    path = save(stored, tmp_path, 2)
    entry = manifest.load(path).parts[0].tables[0]
    assert len(entry.rows) == 1, "the file of which a quarter was in use is not linked"
    assert contents(restored(path, tmp_path / "shard")) == contents(stored)


def test_evicted_blocks_are_copied_aside_and_beyond_that_left_out(tmp_path):
    stored, actor = full(100)
    for room, expected in ((1 << 20, 0), (0, 1)):
        before = contents(stored)
        writing = begin(stored, tmp_path, expected + 1, room=room)
        for number in range(150):
            actor.insert(5000 + number, 8)
        path = end(writing, tmp_path)
        saved = manifest.load(path).parts[0].tables[0]
        assert (saved.left_out > 0) == bool(expected)
        after = contents(restored(path, tmp_path / "shard"))
        assert len(after) == 100 - saved.left_out == saved.trajectories
        assert all(before[order] == what for order, what in after.items())


def test_evicted_blocks_are_urgent_and_in_time_near(tmp_path):
    stored, actor = full(40, max_length=8)
    snapshot = begin(stored, tmp_path).snapshots[0]
    assert (len(snapshot.urgent(1000)[0]), snapshot.urgent(1000)[1]) == (0, False)
    near, counts = [], []
    for number in range(20):
        actor.insert(number, 8)
        blocks, one = snapshot.urgent(1000)
        counts.append(len(blocks))
        near.append(one)
    assert counts[0] > 0
    assert not near[0]
    assert near[-1]
    assert near == sorted(near)
    assert snapshot.most_aside == 0, "near is not late"


def test_a_restored_older_checkpoint_is_a_line_of_its_own(tmp_path):
    """What was saved after it is not taken for what is written after the restore, though generations come again."""
    stored, actor = full(50)
    old = save(stored, tmp_path, 1)
    for number in range(25):
        actor.insert(7000 + number, 8)
    save(stored, tmp_path, 2)
    again = restored(old, tmp_path / "shard", same_line=False)
    other = Actor(again)
    for number in range(25):
        other.insert(8000 + number, 8)
    path = save(again, tmp_path, 3)
    assert contents(restored(path, tmp_path / "shard-2")) == contents(again)


def damaged(path: Path, kind: str):
    """A file in every way that a kind of damage can be done to it; whole again behind each."""
    data = path.read_bytes()
    if kind == "flip":
        for bit in (0, 4 * len(data) + 3, 8 * len(data) - 1):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            yield
    elif kind == "truncate":
        path.write_bytes(data[:-1])
        yield
    else:
        path.unlink()
        yield
    path.write_bytes(data)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["flip", "truncate", "remove"])
def test_damage_anywhere_is_found_and_named(kind, tmp_path):
    stored, _ = full(20)
    path = save(stored, tmp_path, 1)
    manifest.verify(path)
    for victim in sorted(files(path)):
        for _ in damaged(victim, kind):
            with pytest.raises(CheckpointError, match=victim.name):
                manifest.verify(path)


@pytest.mark.faults
def test_a_restore_of_what_is_damaged_leaves_no_finished_segment(tmp_path):
    stored, _ = full(20)
    path = save(stored, tmp_path, 1)
    victim = next(p for p in files(path) if p.name.startswith("rows-"))
    data = bytearray(victim.read_bytes())
    data[200] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=victim.name):
        restored(path, tmp_path / "shard")
    assert not format.in_use(tmp_path / "shard" / "table-0")


def test_nothing_is_removed_that_no_save_has_written(tmp_path):
    """Reverb deletes what lies beside its checkpoints."""
    stored, actor = full(20)
    (tmp_path / "foreign").write_text("mine")
    (tmp_path / "checkpoint-notes").mkdir()
    paths = []
    for number in range(4):
        actor.insert(100 + number, 8)
        paths.append(save(stored, tmp_path, number))
        if number == 0:
            (paths[0] / "shard-0" / "notes.txt").write_text("mine too")
    assert shelf.keep(tmp_path, 2) == paths[:2]
    assert [one.path for one in shelf.listed(tmp_path)] == paths[2:]
    assert files(paths[0]) == {paths[0] / "shard-0" / "notes.txt"}
    assert not paths[1].exists()
    assert (tmp_path / "foreign").exists()
    assert (tmp_path / "checkpoint-notes").exists()
    for path in paths[2:]:
        manifest.verify(path)


@pytest.mark.faults
def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    stored, actor = full(20)
    good = save(stored, tmp_path, 1)
    actor.insert(500, 8)
    writing = begin(stored, tmp_path, 2)
    monkeypatch.setattr(arrayfile.os, "pwrite", _full)
    with pytest.raises(CheckpointError, match="no space left on device"):
        writing.write()
    writing.let_go()
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == [good.name]
    assert contents(restored(save(stored, tmp_path, 3), tmp_path / "shard")) == contents(stored)


def _full(*arguments):
    raise OSError(28, "No space left on device")


def test_shards_that_begin_a_save_at_once_leave_each_other_alone(tmp_path):
    begin, failed = Barrier(2), []

    def shard(number: int) -> None:
        for token in range(300):
            begin.wait()
            try:
                PartSave(tmp_path, f"{token:016x}", number, []).prepare()
            except CheckpointError as error:
                failed.append(error)

    threads = [Thread(target=shard, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.faults
def test_a_checkpoint_of_which_a_file_is_gone_is_not_completed(tmp_path):
    stored, _ = full(20)
    writing = begin(stored, tmp_path, 1)
    writing.write()
    writing.let_go()
    victim = next(p for p in files(tmp_path) if p.name.startswith("rows-"))
    victim.unlink()
    with pytest.raises(CheckpointError, match=victim.name):
        shelf.seal(tmp_path, writing.token, 1, "test", "test", 0.0)
    assert shelf.listed(tmp_path) == []


def test_a_checkpoint_holds_what_was_published_at_the_instant(tmp_path):
    published = [Parcel("policy", 1, (), [], np.zeros(4, np.uint8))]
    writing = PartSave(tmp_path, f"{1:016x}", 0, [], lambda: published)
    writing.prepare()
    published[0] = published[0]._replace(version=2)
    writing.take()
    published[0] = published[0]._replace(version=3)
    assert [one.version for one in writing.write().weights] == [2]


@pytest.mark.parametrize("item", [gear.Step(2), gear.Window(4, edge="tail")], ids=repr)
def test_items_that_end_with_a_deal_to_more_shards_are_drawn(item, tmp_path):
    """A trajectory that was open is closed then: its last items weigh what is inserted without a priority."""
    stored = make(
        capacity=gear.Steps(400), item=item, sampler=gear.Prioritized(0.5), publish="rows", block_steps=4, seed=3
    )
    actor = Actor(stored)
    actor.insert(1, 6, priorities=(9.0,))
    Growing(actor, 2).append(6)
    path = save(stored, tmp_path)
    drawable, items = 0, 0
    for shard in range(2):
        folder = tmp_path / f"shard-{shard}"
        folder.mkdir()
        restore(path, pieces(path, manifest.load(path), shard, 2, False), folder)
        segment = next(folder.iterdir())
        header = format.read(segment)
        part = StoredTable(header.table, header.index, shard, segment, header.spread, kept=True, era=0)
        leaves = part.layout.view(part.segment, "tree")[: part.layout.items]
        assert set(leaves[leaves > 0].round(6).tolist()) <= {round((9.0 + part.table.sampler.eps) ** 0.5, 6)}
        drawable += int((leaves > 0).sum())
        items += int(part.counters[f.ITEM_COUNT])
    assert drawable == items == 12


def test_numpy_alone_reads_a_checkpoint(tmp_path):
    stored, _ = full(20)
    path = save(stored, tmp_path, 1)
    table = manifest.load(path).parts[0].tables[0]
    blocks = np.load(path / table.arrays["blocks"].file)
    slots = np.load(path / table.arrays["slots"].file)
    where = np.load(path / table.arrays["block_row"].file), np.load(path / table.arrays["block_file"].file)
    rows = [np.load(path / entry.file, mmap_mode="r") for entry in table.rows]
    k = next(c for c in table.columns if c.name == "k")
    slot = int(np.flatnonzero(slots[:, f.STATE] == f.CLOSED)[0])
    first = int(slots[slot, f.FIRST])
    data = rows[where[1][first]][where[0][first]]
    found = np.ndarray((table.block_steps, *k.shape), k.dtype, data, k.offset)
    assert found.tolist() == column(stored, "k")[first].tolist()
    assert blocks[first, f.SLOT] == slot


def test_a_directory_for_checkpoints_has_its_name_on_the_disk_and_those_above_it(tmp_path, monkeypatch):
    """A checkpoint whose directory is gone after a power failure is none."""
    synced = []
    monkeypatch.setattr(arrayfile, "sync_folder", synced.append)
    arrayfile.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]
    arrayfile.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
