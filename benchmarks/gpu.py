"""What only a GPU can show of the kernels: one run, under four minutes, no network.

    python -m benchmarks.gpu [--json FILE]
    NUMBA_ENABLE_CUDASIM=1 python -m benchmarks.gpu --tiny     # the script itself, in the simulator: no figures

First every kernel against the reference on the device, on fresh random inputs and poisoned outputs, and launches
that follow each other on streams of their own. Then medians with their range: what the device copies, and reads of
mapped host memory, in this run; gathers as fractions of that; draws and updates; `sample` from a server with the GPU;
the same batches by NumPy and a copy, and by TorchRL where it is installed. It needs torch, numba-cuda and what the
tests need (pytest, hypothesis, ml_dtypes), whose random cases it uses. The exit code is 1 only if a result is wrong. No
device has run it yet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from benchmarks import gpu_service
from benchmarks.gpu_cases import Frames, Rows, Tree, Windows, busy, ceilings, host_way
from benchmarks.gpu_check import checks
from benchmarks.measure import WrongResult
from gear.kernels.cuda_seam import SIMULATED


def facts() -> dict[str, object]:
    """What every figure needs beside it."""
    found: dict[str, object] = {"numba": __import__("numba").__version__, "numpy": np.__version__}
    try:
        found["numba-cuda"] = __import__("numba_cuda").__version__
    except ImportError:
        found["numba-cuda"] = "none"
    if SIMULATED:
        return {**found, "card": "none: the simulator"}
    from numba.cuda.cudadrv.driver import driver

    name = cuda.get_current_device().name
    found["driver"] = ".".join(map(str, driver.get_version()))
    return {**found, "card": name.decode() if isinstance(name, bytes) else str(name)}


def timed(call: Callable[[int], object], repeats: int, ahead: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Seconds of each call on the device, by events, and on the host, until the device is through.

    By events while the device is still busy with other work: else it would wait for launches, and that be counted.
    """
    on_device, on_host = [], []
    for k in range(min(repeats, 5)):
        call(k)
    cuda.synchronize()
    for k in range(repeats):
        start = time.perf_counter()
        call(2 * k)
        cuda.synchronize()
        on_host.append(time.perf_counter() - start)
        begin, end = cuda.event(), cuda.event()
        ahead()
        begin.record()
        call(2 * k + 1)
        end.record()
        cuda.synchronize()
        on_device.append(on_host[-1] if SIMULATED else cuda.event_elapsed_time(begin, end) / 1e3)
    return on_device, on_host


def record(
    name: str, call: Callable[[int], object], repeats: int, moved: float = 0.0, limit: float = 0.0,
    ahead: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """A line of the table: microseconds on the device and the host; bytes per second, and as a fraction of a limit."""
    on_device, on_host = timed(call, repeats, ahead)
    median = statistics.median(on_device)
    line: dict[str, object] = {
        "name": name,
        "device_us": round(median * 1e6, 2),
        "device_us_range": [round(min(on_device) * 1e6, 2), round(max(on_device) * 1e6, 2)],
        "wall_us": round(statistics.median(on_host) * 1e6, 2),
        "repeats": repeats,
    }
    if moved:
        line["GB_per_s"] = round(moved / median / 1e9, 2)
    if limit:
        line["of_limit"] = round(moved / median / limit, 3)
    return line


def show(line: dict[str, Any]) -> str:
    low, high = line["device_us_range"]
    text = f"{line['name']:<44} {line['device_us']:>10.1f} us ({low:.1f} to {high:.1f}), wall {line['wall_us']:.1f} us"
    if "GB_per_s" in line:
        text += f", {line['GB_per_s']:.1f} GB/s"
    if "of_limit" in line:
        text += f" = {line['of_limit']:.2f} of the limit"
    return text


def measure(tiny: bool, say: Callable[[dict[str, Any]], None]) -> None:
    """All figures; `say` takes each line as it comes."""
    repeats = 2 if tiny else 50
    ahead = busy(1 << 10 if tiny else 1 << 28)
    limits = {}
    for place, call, moved in ceilings(1 << 12 if tiny else 1 << 30):
        line = record(f"limit: {place}", call, repeats if tiny else 15, moved, ahead=ahead)
        limits[place] = moved / line["device_us"] * 1e6
        say(line)
    for made in (Windows, Frames, Rows):
        for mapped in (False, True):
            case = made(tiny, mapped)
            limit = limits["mapped host memory, read"] if mapped else limits["device memory, copied"]
            moved = case.nbytes * (1 if mapped else 2)
            where = "mapped host" if mapped else "device"
            say(record(f"{case.name} from {where}", case.gather, repeats, moved, limit, ahead))
            case.verify()
            if mapped:
                say(record(f"{case.name} by NumPy and a copy", host_way(case), min(repeats, 10), moved, limit))
            del case
    for size in (64,) if tiny else (10**5, 10**6, 10**7):
        tree = Tree(size)
        for draws in (8,) if tiny else (256, 4096):
            say(record(f"draw {draws} of {size}", tree.draw(draws), repeats, ahead=ahead))
        for updates in (8,) if tiny else (256, 4096, 65536):
            say(record(f"update {updates} of {size}", tree.update(updates), repeats, ahead=ahead))
        tree.verify()
        say(record(f"best 64 of {size}", tree.best(4 if tiny else 64), repeats, ahead=ahead))
    for name, call, moved in gpu_service.samples(tiny):
        say(record(name, call, repeats, moved))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes for the simulator; its figures mean nothing")
    parser.add_argument("--json", help="append a line per figure to this file")
    given = parser.parse_args()
    if SIMULATED and not given.tiny:
        parser.error("the simulator is for --tiny alone; unset NUMBA_ENABLE_CUDASIM to measure a GPU")
    if not SIMULATED and not cuda.is_available():
        parser.error("Numba finds no GPU here (`numba -s` says why); for the script itself see --tiny")
    header, lines = facts(), list[dict[str, Any]]()
    print(", ".join(f"{key} {value}" for key, value in header.items()), flush=True)

    def say(line: dict[str, Any]) -> None:
        lines.append(line)
        print(show(line), flush=True)

    try:
        for name in itertools.chain(checks(given.tiny), gpu_service.checks(given.tiny)):
            print(f"checked: {name}", flush=True)
        measure(given.tiny, say)
    except WrongResult as wrong:
        print(f"WRONG: {wrong}", file=sys.stderr)
        sys.exit(1)
    if given.json:
        with open(given.json, "a") as file:
            file.writelines(json.dumps({**header, **line}) + "\n" for line in lines)


if __name__ == "__main__":
    main()
