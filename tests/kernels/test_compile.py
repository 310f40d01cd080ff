"""Compile once, then load: the cache of the kernels, its keys, its failures and its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gear.kernels
from gear.kernels import compile as compiling

SOURCES = Path(gear.kernels.__file__).parents[1]


def python(code: str, root: Path = SOURCES.parent, **environment: str) -> str:
    """What a fresh interpreter prints that imports `gear` from `root`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_", "PYTHON"))}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=inherited | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


STATISTICS = """
import json
from gear.kernels import host
host.load()
kernels = {name: getattr(host, name) for name in host.__all__ if name != "load"}
print(json.dumps({
    name: {
        "misses": sum(kernel.stats.cache_misses.values()),
        "hits": sum(kernel.stats.cache_hits.values()),
        "arrays": [[(a.layout, a.mutable, a.aligned) for a in s if hasattr(a, "layout")] for s in kernel.signatures],
    }
    for name, kernel in kernels.items()
}))
"""


def test_a_second_process_compiles_nothing():
    python(STATISTICS)
    for name, figures in json.loads(python(STATISTICS)).items():
        assert (figures["misses"], figures["hits"]) == (0, 1), name
        assert len(figures["arrays"]) == 1, name
        assert all(array == ["C", True, True] for array in figures["arrays"][0]), name


@compiling.helper
def _sum(a, b):
    return a + b


@compiling.kernel
def _sums(shorts, flag):
    return _sum(shorts[0], 1) + _sum(np.int64(shorts[0]), shorts[1]) + _sum(0, 2), _sum(1.5, flag), _sum(2.5, True)


def test_constants_and_narrow_integers_make_no_variant_of_their_own():
    assert _sums(np.array([3, 4], np.int32), False) == (13, 1.5, 3.5)
    assert [[str(kind) for kind in variant] for variant in _sum._compiler.part.results] == [
        ["int64", "int64"],
        ["float64", "bool"],
    ]


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A small package `gear` elsewhere: the real `compile`, a kernel, and a helper in another file."""
    kernels = tmp_path / "gear" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "gear" / "__init__.py").touch()
    for name in ("kernels/__init__.py", "kernels/compile.py", "kernels/parts.py"):
        shutil.copy(SOURCES / name, tmp_path / "gear" / name)
    (kernels / "value.py").write_text("VALUE = 1\n")
    (kernels / "callee.py").write_text(
        "from gear.kernels.compile import helper\n"
        "from gear.kernels import (\n    value,\n)\n"
        "VALUE = value.VALUE\n\n\n@helper\ndef callee():\n    return VALUE\n"
    )
    (kernels / "caller.py").write_text(
        "from gear.kernels.compile import kernel\n"
        "from gear.kernels.callee import callee\n\n\n@kernel\ndef caller():\n    return callee()\n"
    )
    return tmp_path


CALL = """
from gear.kernels.caller import caller
print(caller(), sum(caller.stats.cache_hits.values()), sum(caller.stats.cache_misses.values()))
"""


def call(installation: Path, **environment: str) -> list[int]:
    """[result, cache hits, cache misses] of the kernel `caller` in a fresh process."""
    return [int(v) for v in python(CALL, installation, **environment).split()]


def test_an_upgrade_of_any_imported_source_leaves_no_stale_kernel(installation):
    assert call(installation) == [1, 0, 1]
    assert call(installation) == [1, 1, 0]
    (installation / "gear" / "kernels" / "value.py").write_text("VALUE = 2\n")
    assert call(installation) == [2, 0, 1]
    assert call(installation) == [2, 1, 0]


def test_an_upgrade_of_other_sources_recompiles_nothing(installation):
    assert call(installation) == [1, 0, 1]
    (installation / "gear" / "kernels" / "other.py").write_text("VALUE = 2\n")
    assert call(installation) == [1, 1, 0]


def test_a_read_only_installation_caches_in_the_users_directory(installation, tmp_path):
    (installation / "gear" / "kernels" / "__pycache__").write_text("a file: no directory can be made here")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert call(installation, **cache) == [1, 0, 1]
    assert call(installation, **cache) == [1, 1, 0]


def test_where_nothing_can_be_written_kernels_compile_in_every_process(installation):
    blocked = installation / "gear" / "kernels" / "__pycache__"
    blocked.write_text("a file: no directory can be made here")
    for _ in range(2):
        assert call(installation, XDG_CACHE_HOME=str(blocked)) == [1, 0, 1]
    code = "from gear.kernels import caller, compile\nwith compile.compile_lock(): print(caller.caller())"
    assert python(code, installation, XDG_CACHE_HOME=str(blocked)) == "1"


ARRAYS = """
import numpy as np
from gear.kernels.compile import kernel


@kernel
def inner(n):
    return np.arange(n)


@kernel
def outer(n):
    return inner(n).sum()
"""


@pytest.mark.parametrize("order", ["outer, inner", "inner, outer"])
def test_a_kernel_that_returns_an_array_is_called_beside_one_that_calls_it(installation, order):
    """Compiled or loaded, in either order: what makes its result into an array is not that of its part in another."""
    (installation / "gear" / "kernels" / "arrays.py").write_text(ARRAYS)
    code = f"from gear.kernels.arrays import {order}\nfor one in ({order}): print(one(4))"
    for _ in range(2):
        assert set(python(code, installation).splitlines()) == {"6", "[0 1 2 3]"}
    both = "from gear.kernels.arrays import inner, outer\n"
    for file in (installation / "gear" / "kernels" / "__pycache__").glob("arrays.outer*"):
        file.unlink()  # compiled again, beside the other one's code that another process made
    assert python(f"{both}print(outer(4), inner(4))", installation) == "6 [0 1 2 3]"


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache_is_made_anew(installation, suffix):
    assert call(installation) == [1, 0, 1]
    for file in (installation / "gear" / "kernels" / "__pycache__").glob(f"*.{suffix}"):
        file.write_bytes(file.read_bytes()[:7])
    assert call(installation) == [1, 0, 1]
    assert call(installation) == [1, 1, 0]


def test_the_digest_covers_what_a_kernel_is_made_of():
    covered, todo = set(), [str(SOURCES / "kernels" / "host.py")]
    while todo:
        covered.add(todo[-1])
        todo += set(compiling._read(todo.pop())[1]) - covered
    names = {Path(name).name for name in covered}
    assert names >= {"host.py", "host_tree.py", "host_rows.py", "host_windows.py", "compile.py", "records.py"}


def test_the_compile_lock_excludes_others_and_may_be_taken_again():
    python(STATISTICS)
    assert compiling._directory is not None or compiling.kernel(call)
    path = Path(str(compiling._directory)) / "compile.lock"

    def free() -> bool:
        with path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with compiling.compile_lock():
        with compiling.compile_lock():
            assert not free()
        assert not free()
    assert free()


def test_a_forked_child_starts_with_a_free_lock():
    code = """
import os
from gear.kernels import compile, host_random
with compile.compile_lock():
    child = os.fork()
    if child == 0:
        os._exit(0 if compile._depth == 0 and compile._lock.acquire(blocking=False) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert python(code) == "0"
