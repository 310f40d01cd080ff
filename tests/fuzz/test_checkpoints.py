"""Damaged checkpoints and files of tables in short: found cases again, and some dozen others.

The same each time; `make fuzz` looks for what nobody has seen yet.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
from xxhash import xxh3_64

from gear.errors import CheckpointError
from gear.storage import arrayfile, fields, manifest
from tests.fuzz import checkpoints, tables
from tests.storage.test_checkpoint import full, save

CORPUS = Path(__file__).with_name("corpus")
FOUND = json.loads((CORPUS / "checkpoints.json").read_text())


def change(path: Path, case: dict) -> None:
    """Do to a checkpoint what did harm once, with all sums made anew."""
    raw = json.loads((path / manifest.MANIFEST).read_text())
    table = raw["parts"][0]["tables"][0]
    if "field" in case:
        *way, last = case["field"]
        holder = table
        for key in way:
            holder = holder[key]
        holder[last] = case["value"]
        if case["value"] is None:
            del holder[last]
    else:
        entry = table["arrays"][case["array"]]
        array = np.load(path / entry["file"])
        if "dtype" in case:
            array = array.astype(case["dtype"])
        elif "length" in case:
            array = array[: case["length"]]
        elif "flat" in case:
            array = array.reshape(-1)
        elif "record" in case:
            array[:, getattr(fields, case["record"])] = case["set"]
        else:
            array[:] = case["set"]
        data = array.tobytes()
        (path / entry["file"]).write_bytes(arrayfile.header(array.dtype.name, array.shape) + data)
        entry |= {"dtype": array.dtype.name, "shape": list(array.shape), "xxh3": xxh3_64(data).hexdigest()}
    text = json.dumps({**raw, "checksum": "00000000"}, indent=1)
    summed = f'"checksum": "{zlib.crc32(text.encode()):08x}"'
    (path / manifest.MANIFEST).write_text(text.replace('"checksum": "00000000"', summed, 1))


@pytest.mark.parametrize("case", FOUND, ids=[case["origin"] for case in FOUND])
def test_what_did_harm_once_is_refused_by_whoever_cannot_use_it(case, tmp_path):
    stored, _ = full(20)
    path = save(stored, tmp_path, 1)
    change(path, case)
    said: list[str] = []
    checkpoints.once(path, tmp_path / "shard", Random(0), said)
    assert said, "nobody noticed"


def test_a_manifest_that_names_files_elsewhere_is_damaged(tmp_path):
    stored, _ = full(20)
    path = save(stored, tmp_path, 1)
    change(path, FOUND[0])
    with pytest.raises(CheckpointError, match="damaged"):
        manifest.load(path)


def test_damaged_checkpoints_are_refused_or_restored_and_what_is_restored_goes_on():
    """In a process of its own: what would be wrong ends it, or never ends."""
    command = [sys.executable, "-m", "tests.fuzz.checkpoints", "--count", "60", "--seed", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def test_damaged_files_of_tables_are_refused_or_read(tmp_path):
    outcomes, harm = tables.run(200, 0)
    assert not harm, harm
    assert outcomes["refused"] > 0
