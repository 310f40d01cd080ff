"""Programs: compiled together, kept in one file, loaded together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.kernels.test_compile import SOURCES, python


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A small package `gear` elsewhere: the real machinery and a program of two modules that call a third."""
    kernels = tmp_path / "gear" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "gear" / "__init__.py").touch()
    for name in ("__init__", "compile", "parts", "program"):
        shutil.copy(SOURCES / "kernels" / f"{name}.py", kernels / f"{name}.py")
    (kernels / "both.py").write_text(
        "from gear.kernels.program import Program\nBOTH = Program('both', 'gear.kernels.one', 'gear.kernels.two')\n"
    )
    (kernels / "callee.py").write_text(
        "from gear.kernels.compile import kernel\n\n\n@kernel\ndef callee(x):\n    return x + 1\n"
    )
    for name, kinds in (("one", ""), ("two", "x=FLOATS")):
        (kernels / f"{name}.py").write_text(
            "from gear.kernels.both import BOTH\nfrom gear.kernels.callee import callee\n"
            "from gear.kernels.program import FLOATS\n\n\n"
            f"@BOTH.kernel({kinds})\ndef {name}(x, n):\n    return callee({'x[n]' if kinds else 'x * n'})\n"
        )
    return tmp_path


CALL = """
import json
import numpy as np
from gear.kernels.one import one
from gear.kernels.two import two
numbers = [one(3, 2), two(np.array([1.5, 2.5]), 1)]
figures = [(kernel.stats.cache_misses, kernel.stats.cache_hits) for kernel in (one, two)]
print(json.dumps([numbers, [[sum(misses.values()), sum(hits.values())] for misses, hits in figures]]))
"""


def call(root: Path) -> list[object]:
    """[results, (misses, hits) of either kernel] in a fresh process."""
    return json.loads(python(CALL, root))


def files(root: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in root.glob("gear/kernels/__pycache__/*.nbc"))


CACHED = "from gear.kernels.both import BOTH; print(BOTH.is_cached())"


def test_the_first_call_of_any_kernel_compiles_all_and_another_process_none(installation):
    assert python(CACHED, installation) == "False"
    assert call(installation) == [[7, 3.5], [[1, 0], [0, 1]]]
    assert files(installation) == ["program.both"]
    assert python(CACHED, installation) == "True"
    assert call(installation) == [[7, 3.5], [[0, 1], [0, 1]]]


def test_an_upgrade_of_what_a_kernel_of_the_program_calls_leaves_nothing_stale(installation):
    assert call(installation)[0] == [7, 3.5]
    callee = installation / "gear" / "kernels" / "callee.py"
    callee.write_text(callee.read_text().replace("x + 1", "x + 2"))
    assert call(installation) == [[8, 4.5], [[1, 0], [0, 1]]]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_file_is_made_anew(installation, suffix):
    call(installation)
    for file in installation.glob(f"gear/kernels/__pycache__/*.{suffix}"):
        file.write_bytes(file.read_bytes()[:7])
    assert call(installation) == [[7, 3.5], [[1, 0], [0, 1]]]
    assert call(installation) == [[7, 3.5], [[0, 1], [0, 1]]]


def test_the_first_call_may_be_of_a_kernel_that_others_of_the_program_call(installation):
    two = installation / "gear" / "kernels" / "two.py"
    two.write_text(two.read_text().replace("callee", "one").replace("one(x[n])", "one(n, n) + x[n]"))
    assert call(installation) == [[7, 4.5], [[1, 0], [0, 1]]]


def test_without_a_directory_to_write_to_each_process_compiles_the_whole_once(installation):
    nowhere = "from numba.core import caching\ncaching.CompileResultCacheImpl._locator_classes = []\n"
    load = "from gear.kernels.both import BOTH\nBOTH.load()\n"
    code = nowhere + "caching.CacheImpl._locator_classes = []\n" + load + CALL
    assert json.loads(python(code, installation))[0] == [7, 3.5]
    assert files(installation) == []


ANOTHER_NUMBA = {
    "a name less": "import numba.core.codegen\ndel numba.core.codegen.JITCodeLibrary\n",
    "other parameters": """
from numba.core import compiler
true = compiler.compile_extra
def refuse(*args, library=None, **kinds):
    if library is not None:
        raise TypeError("unexpected keyword argument 'library'")
    return true(*args, **kinds)
compiler.compile_extra = refuse
""",
}


@pytest.mark.parametrize("difference", ANOTHER_NUMBA)
def test_with_another_numba_kernels_compile_one_by_one_and_the_log_says_so(installation, difference):
    log = (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(message).5s %(levelname)s')\n"
        "from gear.kernels.both import BOTH\nBOTH.load()\n"
    )
    code = ANOTHER_NUMBA[difference] + CALL
    first = python(code.replace("import json\n", "import json\n" + log, 1), installation).splitlines()
    assert json.loads(first[-1]) == [[7, 3.5], [[1, 0], [1, 0]]]
    assert first[:-1] == ["Numba WARNING"]
    assert set(files(installation)) == {"callee.callee", "one.one", "two.two"}
    assert json.loads(python(code, installation)) == [[7, 3.5], [[0, 1], [0, 1]]]


def test_a_kernel_called_with_other_types_compiles_for_itself(installation):
    code = CALL.replace("[one(3, 2), ", "[one(1.5, 2), ")
    assert json.loads(python(code, installation))[0] == [4.0, 3.5]
    assert files(installation) == ["one.one", "program.both"]
    assert json.loads(python(code, installation)) == [[4.0, 3.5], [[0, 1], [0, 1]]]


WARM = """
import json
from gear.server.warm import warm
from gear.storage.programs import COMMIT, DRAW
warm()
print(json.dumps({
    ".".join(key): [[str(kind) for kind in kinds] for kinds in kernel.overloads if kinds != declared]
    for program in (COMMIT, DRAW)
    for key, (kernel, declared) in program._members.items()
}))
"""


def test_the_storage_calls_its_kernels_with_the_types_declared():
    """Else a kernel would compile a second time, in mid-service where `warm` does not call it."""
    others = json.loads(python(WARM))
    assert len(others) > 30
    assert {name for name, kinds in others.items() if kinds} == set()
