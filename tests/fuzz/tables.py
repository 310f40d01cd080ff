"""Files of tables that are damaged: read, or refused with an error of ours that names the file.

`python -m tests.fuzz.tables --count 100000`. Damage is done to bytes, to lines and to values: a number where a name
should be, one that is too large, too deep a list. What is read all the same must be writable again and lay out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from gear import toml
from gear.errors import GearError
from gear.schema import Table
from gear.server.declared import read_tables
from gear.storage.layout import Layout
from tests.fuzz import frames
from tests.fuzz.attack import TABLES

MEMORY = 256 << 20

_TEXTS = ("", "x", "y" * 100_000, "uniform", "\\u0000")
_NUMBERS = ("0", "-1", "1", "1e400", "-0.0", "nan", "inf", "-inf", "0.5", "1e-320", str((1 << 63) - 1), str(1 << 63))
VALUES = (
    *(f'"{text}"' for text in _TEXTS),
    *_NUMBERS,
    *("1" * 5000, "true", "[]", "{}", "[[]]", "[" * 2000 + "]" * 2000, "1979-05-27", '["x", "x"]', "[1, 2]"),
    *(f'{{ type = "steps", n = {n} }}' for n in _NUMBERS),
    *(f'{{ type = "prioritized", alpha = {n} }}' for n in _NUMBERS),
    *(f'{{ type = "window", length = {n}, stride = {n} }}' for n in _NUMBERS),
    '{ type = "fifo" }',
    '{ name = "x", shape = [2147483647, 2147483647] }',
)
KEYS = (*Table.__struct_fields__, "x")
_VALUE = re.compile(r"(?<== )(?:\{[^{}]*\}|\[[^\[\]]*\]|\"[^\"]*\"|[\w.+-]+)")


def damaged(chance: Random) -> bytes:
    """A file of a table or some, with something wrong in it."""
    text = toml.to_toml(chance.sample(TABLES, chance.choice((1, 1, 2))))
    for _ in range(chance.choice((1, 1, 2, 4))):
        lines, kind = text.splitlines(), chance.randrange(6)
        if kind < 3:
            places = [*_VALUE.finditer(text)]
            if places:
                place = chance.choice(places)
                text = text[: place.start()] + chance.choice(VALUES) + text[place.end() :]
        elif kind == 3:
            lines.insert(chance.randrange(len(lines) + 1), f"{chance.choice(KEYS)} = {chance.choice(VALUES)}")
            text = "\n".join(lines)
        elif kind == 4 and lines:
            line = lines.pop(chance.randrange(len(lines)))
            if chance.random() < 0.5:
                lines.insert(chance.randrange(len(lines) + 1), line)
            text = "\n".join(lines)
        else:
            text = text.replace(
                chance.choice((" = ", "[", "]", "{", '"', ",")), chance.choice((" ", "=", "[", "", "\x00")), 1
            )
    return frames.damaged(chance, text.encode()) if chance.random() < 0.3 else text.encode()


def once(data: bytes, path: Path) -> str:
    """Read a file as a server does that is started with it; what became of it."""
    path.write_bytes(data)
    said, tables = "", []
    try:
        tables = read_tables(str(path), MEMORY)
    except GearError as refused:
        said = str(refused)
    if said:
        assert str(path) in said, f"it does not say which file: {said}"
        return "refused"
    for number, table in enumerate(tables):
        Layout(table, number, 0)
    assert toml.from_toml(toml.to_toml(tables)) == tables
    return "read"


def run(count: int, seed: int, keep: Path | None = None) -> tuple[Counter[str], list[str]]:
    """So many files from that number on: what became of them, and those that did harm, which are kept."""
    outcomes: Counter[str] = Counter()
    harm: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-fuzz-") as folder:
        path = Path(folder, "tables.toml")
        for number in range(seed, seed + count):
            data = damaged(Random(number))
            try:
                outcomes[once(data, path)] += 1
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                harm.append(
                    f"--seed {number} --count 1: {type(error).__name__}: {error!s:.200} ({where.name}, {where.lineno})"
                )
                print(harm[-1], flush=True)
                if keep is not None and len(harm) <= 20:
                    keep.mkdir(exist_ok=True)
                    (keep / f"tables-{number}.toml").write_bytes(data)
    return outcomes, harm


def main() -> int:
    """Run; 0 if nothing did harm."""
    parser = argparse.ArgumentParser("tests.fuzz.tables", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="number of the first file; default: any, it is shown")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where files go that did harm")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else time.time_ns() % (1 << 32)
    outcomes, harm = run(options.count, seed, options.keep)
    shown = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
    print(f"{'ok' if not harm else 'FAILED'}: {options.count} files from seed {seed}: {shown}, {len(harm)} did harm")
    return int(bool(harm))


if __name__ == "__main__":
    sys.exit(main())
