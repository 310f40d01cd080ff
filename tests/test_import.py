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


DECLARE = {"columns", "declared_sets", "errors", "grouping", "limiters", "rules", "schema", "served"}


def test_import_loads_numpy_and_msgspec_and_of_gear_only_what_declares_a_table():
    """What its time depends on; the time itself is measured by `make bench` (import)."""
    code = """
import sys
import numpy, msgspec.structs
before = set(sys.modules)
import gear
print(sorted(set(sys.modules) - before))
"""
    assert set(ast.literal_eval(run(code))) == {"gear", *(f"gear.{name}" for name in DECLARE)}


def test_the_short_names_of_views_are_the_views():
    assert (gear.n_step, gear.return_to_go, gear.timestep) == (gear.NStep, gear.ReturnToGo, gear.Timestep)


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
