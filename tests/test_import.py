"""What importing the package loads, and what an actor that only inserts loads."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import gear

HEAVY = ("torch", "numba", "ray", "cupy", "zmq", "ml_dtypes")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy():
    loaded = run(f"import gear, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]"


def test_import_loads_numpy_and_msgspec_and_of_gear_only_what_declares_data():
    """What its time depends on; the time itself is measured by `make bench` (import)."""
    code = """
import sys
import numpy, msgspec
before = set(sys.modules)
import gear
new = {name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names}
print(sorted(name for name in new if not name.startswith("msgspec.")))
"""
    loaded = ast.literal_eval(run(code))
    assert [name for name in loaded if name.split(".")[0] != "gear"] == []
    assert [name for name in loaded if name.startswith(("gear.client", "gear.storage", "gear.transport"))] == []


def test_the_insert_path_needs_no_kernels():
    code = (
        "import gear.client.port, gear.client.writer, sys; print([m for m in ('torch', 'numba') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_every_public_name_is_there():
    assert [name for name in gear.__all__ if not hasattr(gear, name)] == []
    assert set(gear.__all__) <= set(dir(gear))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gear.nothing


def test_all_is_sorted():
    assert gear.__all__ == sorted(gear.__all__)
