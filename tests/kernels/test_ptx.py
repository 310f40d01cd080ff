"""Every kernel for a GPU compiled for real architectures, with no device: what the compiler and assembler made of it.

That shows that they compile, that nothing lies in local memory, and how wide their accesses are; not that they run.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

if any(importlib.util.find_spec(name) is None for name in ("numba_cuda", "cuda")):
    pytest.skip("compiling for a GPU needs numba-cuda[cu13]", allow_module_level=True)

from cuda.bindings import nvjitlink
from numba import cuda, types
from numba.cuda import dispatcher

from gear import kernels
from gear.kernels import (
    cuda_packed,
    cuda_random,
    cuda_rows,
    cuda_scatter,
    cuda_top,
    cuda_tree,
    cuda_update,
    cuda_views,
    cuda_windows,
)
from tests.kernels.words import FOUR_AT_ONCE, WORDS

ARCHITECTURES = [(8, 0), (9, 0)]
BOTH = ({*WORDS.values()}, {*WORDS.values()})
SUMS = ({"f64"}, {"f64"})

Int, Float, Plan, Table = types.int64, types.float64, types.int64[:, ::1], types.int64[::1]

# Kernels with their arguments (i: int64, f: float64, p: a plan, t: a table), and the words that they load and store.
KERNELS = {
    cuda_windows.gather_windows: ("iipiiiiiiiii", BOTH),
    cuda_rows.gather_rows: ("iipiiiiii", BOTH),
    cuda_views.gather_views: ("iipiiiiiiiiiiiti", BOTH),
    cuda_packed.number_packed: ("iiii", ({"volatile.global.b32"}, {"u64"})),
    cuda_scatter.scatter_columns: ("ippiii", BOTH),
    cuda_tree.build_levels: ("iitiii", SUMS),
    cuda_tree.draw_masses: ("itiii", ({"f64"}, {"u64"})),
    cuda_tree.draw_numbered: ("itiiiii", ({"f64"}, {"u64", "f64"})),
    cuda_update.update_few: ("iiiitiiiii", SUMS),
    cuda_update.enter_all: ("iiiiii", ({"f64", "u64"}, {"u64"})),
    cuda_update.put_all: ("iiiiii", ({"u64", "f64"}, {"f64"})),
    cuda_update.rise_all: ("iiiitiiiii", SUMS),
    cuda_top.best_of_tiles: ("iiiifiii", ({"u64", "f64"}, {"u64"})),
    cuda_random.write_uniforms: ("iiii", (set(), {"f64"})),
    cuda_random.write_bits: ("iiii", (set(), {"u64"})),
}
COPY_RUNS = [kernel for kernel, (_, words) in KERNELS.items() if words is BOTH and kernel != cuda_rows.gather_rows]

MOST_REGISTERS, MOST_OF_VIEWS = 65536 // 512, 65536 // 256
"""So that four blocks of 128 threads fit on a multiprocessor; two where much is computed."""


class Compiled(NamedTuple):
    """What became of a kernel: its PTX, and what the assembler says of it."""

    ptx: str
    report: str


@pytest.fixture(params=ARCHITECTURES, ids=lambda cc: f"sm_{cc[0]}{cc[1]}")
def architecture(request, monkeypatch):
    # Device functions ask for the current device's architecture when they are first called by a kernel.
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=request.param))
    return request.param


@functools.cache
def compiled(kernel, architecture: tuple[int, int]) -> Compiled:
    """Compile to PTX, then to machine code."""
    signature = tuple({"i": Int, "f": Float, "p": Plan, "t": Table}[a] for a in KERNELS[kernel][0])
    ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=architecture, opt=3)
    handle = nvjitlink.create(3, [f"-arch=sm_{architecture[0]}{architecture[1]}", "-O3", "-verbose"])
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), kernel.__name__)
        nvjitlink.complete(handle)
        assert nvjitlink.get_linked_cubin_size(handle) > 0
        report = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, report)
    finally:
        nvjitlink.destroy(handle)
    return Compiled(ptx, report.decode())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_compiles_to_what_it_is_meant_to_be(architecture, kernel):
    made = compiled(kernel, architecture)
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", made.report)
    assert found == [("0", "0", "0")], made.report
    assert re.findall(r"(\d+) bytes lmem", made.report) == ["0"]
    most = MOST_OF_VIEWS if kernel is cuda_views.gather_views else MOST_REGISTERS
    assert int(re.findall(r"Used (\d+) registers", made.report)[0]) <= most
    assert not re.search(r"\b(ld|st)\.local|\.local\b", made.ptx)
    assert not re.search(r"\b(ld|st)\.(volatile\.)?[bfsuv]\d", made.ptx), "a generic access"
    assert "fma.rn.f64" not in made.ptx, "a product and a sum are rounded together"
    for access, words in zip(("ld", "st"), KERNELS[kernel][1], strict=True):
        for word in words:
            assert f"{access}.global.{word}" in made.ptx or f"{access}.{word}" in made.ptx, (access, word)


@pytest.mark.parametrize("kernel", COPY_RUNS, ids=lambda kernel: kernel.__name__)
def test_wide_words_are_loaded_four_at_a_time_before_any_is_stored(architecture, kernel):
    ptx = compiled(kernel, architecture).ptx
    for word in (WORDS[size] for size in FOUR_AT_ONCE):
        load, store = rf"ld\.global\.{re.escape(word)}[^\n]*\n", rf"st\.global\.{re.escape(word)}[^\n]*\n"
        between = r"(?:\s*(?!ld|st)[^\n]*\n){0,6}?\s*"
        assert re.search(between.join([load] * 4 + [store] * 4), ptx), word


def test_every_kernel_is_here():
    """A new one is compiled here as well."""
    names = {path.stem for path in Path(kernels.__file__).parent.glob("cuda*.py")} - {"cuda_simulated"}
    made = {
        value
        for name in names
        for value in vars(importlib.import_module(f"gear.kernels.{name}")).values()
        if isinstance(value, dispatcher.CUDADispatcher) and not value.targetoptions.get("device")
    }
    assert made == set(KERNELS)
