"""Checkpoints that were damaged: never taken for whole, and what is restored of those whose sums fit goes on working.

`python -m tests.fuzz.checkpoints --count 1000`: a process of its own, as what is looked for ends processes. Half of the
damage is blind, as by a disk or a copy that was cut off: a check must find it. The other half is knowing, as by a
program that writes the format wrongly: fields and arrays are changed and all checksums made anew, so that what reads
them is on its own. Each case is one number, by which it is made again: those that did harm are in `corpus`.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import shutil
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from xxhash import xxh3_64

from gear import schema
from gear.errors import CheckpointError, GearError
from gear.server.checkpoints import inspect
from gear.server.reinsert import Reader
from gear.server.warm import warm
from gear.storage import arrayfile, format, manifest, shelf
from gear.storage.portions import pieces
from gear.storage.restoring import restore
from gear.storage.saving import Parcel, PartSave
from gear.storage.saving_table import Subject
from gear.storage.table import StoredTable
from tests.fuzz import frames
from tests.fuzz.segments import PATIENCE, use, work
from tests.storage.test_recount import Drive

EACH = 25
"""Damaged copies of each checkpoint."""

LIMIT = 64 << 20
"""Bytes that what is restored may take."""

EDGES = (0, 1, -1, 2, 63, 255, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
_PLAIN = (
    *EDGES,
    0.5,
    1e300,
    -1.0,
    True,
    None,
    "",
    "x",
    "..",
    "/etc/passwd",
    "../x",
    "float64",
    "O",
    "uint8",
    "S3",
    [],
    {},
)


def made(drive: Drive, root: Path) -> Path:
    """A checkpoint of a table that has been at work, the second of two, so that it has files of the first."""
    stored = drive.stored
    subject = Subject(stored, stored.table, schema.to_bytes(stored.table), 0, 1, True)
    parcel = Parcel("policy", 3, (), [], np.arange(100, dtype=np.uint8))
    for number in range(2):
        save = PartSave(root, f"{number:016x}", 0, [subject], lambda: [parcel], yields=False)
        save.prepare()
        save.take()
        save.write()
        save.let_go()
        path, _ = shelf.seal(root, save.token, 1, "test", "test", 0.0)
        work(drive)
    return path


# Damage that knows nothing


def blind(chance: Random, path: Path) -> str:
    """Do something to one file or two; what."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    victim = chance.choice(files)
    data = victim.read_bytes()
    kind = chance.choice(("flipped", "cut", "longer", "gone", "empty", "exchanged", "noise"))
    if kind == "flipped":
        at = chance.randrange(len(data))
        changed = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    elif kind == "cut":
        changed = data[: chance.randrange(len(data))]
    elif kind == "longer":
        changed = data + bytes(chance.randrange(1, 300))
    elif kind == "empty":
        changed = b""
    elif kind == "exchanged":
        other = chance.choice(files)
        changed = other.read_bytes()
        _replace(other, data)
    else:
        changed = frames.damaged(chance, data)
    if kind == "gone":
        victim.unlink()
    else:
        _replace(victim, changed)
    return f"{victim.name} {kind}"


def _replace(path: Path, data: bytes) -> None:
    """Anew: it may be a link to a file of another checkpoint."""
    path.unlink()
    path.write_bytes(data)


# Damage with sums that fit


def knowing(chance: Random, path: Path) -> str:
    """Change the manifest or arrays, and all sums with them; what."""
    raw = json.loads((path / manifest.MANIFEST).read_text())
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        said.append(_array(chance, path, raw) if chance.random() < 0.6 else _field(chance, raw))
    raw["checksum"] = "00000000"
    text = json.dumps(raw, indent=1)
    sum_ = f'"checksum": "{zlib.crc32(text.encode()):08x}"'
    _replace(path / manifest.MANIFEST, text.replace('"checksum": "00000000"', sum_, 1).encode())
    return "; ".join(said)


def _field(chance: Random, raw: dict[str, Any]) -> str:
    """Change one field somewhere in the manifest, or the order or number of entries of a list."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                walk(value[key])

    walk(raw)
    holder, key = chance.choice(places)
    before, kind = holder[key], chance.randrange(6)
    if isinstance(before, list) and len(before) > 1 and kind < 4:
        chance.shuffle(before) if kind < 2 else before.pop(chance.randrange(len(before)))
    elif kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1 and isinstance(before, str) and before:
        holder[key] = frames.damaged(chance, before.encode()).decode(errors="replace")
    elif kind == 2:
        holder[key] = chance.choice(places)[0]
        with contextlib.suppress(ValueError):
            holder[key] = json.loads(json.dumps(holder[key]))
    else:
        holder[key] = chance.choice(_PLAIN)
    with contextlib.suppress(ValueError):
        json.dumps(raw)
        return f"field {key}"
    holder[key] = before  # it had itself within it
    return "nothing"


def _array(chance: Random, path: Path, raw: dict[str, Any]) -> str:
    """Change numbers of one array, or its dtype or length, and its entry with it."""
    try:
        table = raw["parts"][0]["tables"][0]
        name, entry = chance.choice(sorted(table["arrays"].items()))
        array = np.load(path / entry["file"])
    except (KeyError, IndexError, TypeError, AttributeError, OSError, ValueError):
        return "nothing"
    kind = chance.randrange(10)
    if kind == 0:
        array = array.astype(chance.choice(("float64", "int8", "int64", "uint8", "bool", "complex128")))
    elif kind == 1:
        array = array[: chance.randrange(len(array) + 1)]
    elif kind == 2:
        array = np.concatenate([array, array])
    elif kind == 3:
        array = array.reshape(-1) if chance.random() < 0.5 else array[..., None]
    elif kind == 4:
        array = array[::-1]
    elif array.size:
        flat = array.reshape(-1)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(flat))
            value = chance.choice(
                (*EDGES, int(flat[at]) + chance.choice((-1, 1)), int(flat[chance.randrange(len(flat))]))
            )
            with contextlib.suppress(OverflowError):
                flat[at] = value
    array = np.ascontiguousarray(array)
    data = array.tobytes()
    _replace(path / entry["file"], arrayfile.header(array.dtype.name, array.shape) + data)
    entry |= {"dtype": array.dtype.name, "shape": list(array.shape), "xxh3": xxh3_64(data).hexdigest()}
    return f"array {name}"


# What reads it


def once(path: Path, folder: Path, chance: Random, said: list[str] | None = None) -> str:
    """Do with a checkpoint all that is done with one; what became of it."""
    outcomes = []
    for what in (_verify, _inspect, _read, _again, _deal):
        try:
            outcomes.append(what(path, folder, chance))
        except GearError as error:
            outcomes.append("refused")
            if said is not None:
                said.append(f"{what.__name__[1:]}: {error}")
    return ", ".join(outcomes)


def _verify(path: Path, folder: Path, chance: Random) -> str:
    manifest.verify(path)
    return "verified"


def _inspect(path: Path, folder: Path, chance: Random) -> str:
    inspect(argparse.Namespace(directory=str(path), json=chance.random() < 0.5), "")
    return "shown"


def _read(path: Path, folder: Path, chance: Random) -> str:
    """As `gear checkpoint restore` reads it."""
    whole = manifest.verify(path)
    for part in whole.parts:
        for table in part.tables:
            for _, _ in Reader(path, table):
                pass
    return "read"


def _again(path: Path, folder: Path, chance: Random) -> str:
    """Restored onto as many shards, taken up, and used."""
    return _restored(path, folder, chance, 0, 1)


def _deal(path: Path, folder: Path, chance: Random) -> str:
    """The same onto one of two."""
    return _restored(path, folder, chance, chance.randrange(2), 2)


def _restored(path: Path, folder: Path, chance: Random, shard: int, shards: int) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = pieces(path, manifest.load(path), shard, shards, chance.random() < 0.5)
    restore(path, found, folder, LIMIT)
    said = "nothing for it"
    for piece in found:
        at = folder / f"table-{piece.layout.index}"
        header = format.read(at)
        again = StoredTable(header.table, header.index, header.shard, at, header.spread, kept=True, era=1)
        assert again.found is not None
        said = "restored in part" if again.found.damaged else "restored"
        use(again, chance)
    return said


def case(number: int, folder: Path, base: Path, chance: Random) -> tuple[str, str]:
    """Damage a copy of a checkpoint; (how, what became of it)."""
    path = folder / "checkpoint-000001"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    if number % 2:
        how = knowing(chance, path)
        return how, once(path, folder / "shard", chance)
    before = _bytes(path)
    how = blind(chance, path)
    if _bytes(path) != before:
        try:
            manifest.verify(path)
        except CheckpointError:
            pass
        else:
            raise AssertionError(f"{how}: was taken for whole")
    return how.split()[1], once(path, folder / "shard", chance)


def _bytes(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def run(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """So many cases from that number on: what became of them, and those that did harm."""
    outcomes: Counter[str] = Counter()
    harm: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as name:
        folder = Path(name)
        for first in range(seed - seed % EACH, seed + count, EACH):
            drive = Drive(first)
            for _ in range(Random(first).randint(5, 40)):
                work(drive)
            shutil.rmtree(folder / "root", ignore_errors=True)
            base = made(drive, folder / "root")
            said: list[str] = []
            once(base, folder / "shard", Random(0), said)
            wrong = [one for one in said if "damaged" in one]  # too small a table for two shards is another thing
            assert not wrong, f"--seed {first}: what nobody damaged is refused: {wrong}"
            for number in range(max(first, seed), min(first + EACH, seed + count)):
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                how = "?"
                try:
                    how, became = case(number, folder, base, Random(number))
                    outcomes[became] += 1
                except Exception as error:
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    harm.append(
                        f"--seed {number} --count 1: {type(error).__name__}: {error} ({where.name}, {where.lineno})"
                    )
                    print(harm[-1], flush=True)
                    if count == 1:
                        traceback.print_exc()
                faulthandler.cancel_dump_traceback_later()
    return outcomes, harm


def main() -> int:
    """Run; 0 if nothing did harm."""
    parser = argparse.ArgumentParser("tests.fuzz.checkpoints", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="number of the first case; default: any, it is shown")
    options = parser.parse_args()
    faulthandler.enable()
    warm()
    seed = options.seed if options.seed is not None else time.time_ns() % (1 << 32)
    outcomes, harm = run(options.count, seed)
    for what, count in sorted(outcomes.items()):
        print(f"{count:6} {what}")
    print(
        f"{'ok' if not harm else 'FAILED'}: {options.count} damaged checkpoints from seed {seed}, {len(harm)} did harm"
    )
    return int(bool(harm))


if __name__ == "__main__":
    sys.exit(main())
