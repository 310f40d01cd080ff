"""What only a GPU can show of the kernels: one run, under four minutes, no network.

    python -m benchmarks.gpu [--json FILE]
    NUMBA_ENABLE_CUDASIM=1 python -m benchmarks.gpu --tiny     # the script itself, in the simulator: no figures

First every kernel against the reference on the device, on fresh random inputs and poisoned outputs, and launches
that follow each other on streams of their own. Then medians with their range: what the device copies, and reads of
mapped host memory, in this run; gathers as fractions of that; draws and updates; `sample` from a server with the GPU;
the same batches by NumPy and a copy, and by TorchRL where it is installed. It needs torch, numba-cuda and what the
tests need (pytest, hypothesis, ml_dtypes), whose random cases it uses. A part that fails is told and the others go on;
what has no time left is named. The exit code is 1 if a result is wrong or a part failed. No device has run it yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from numba import cuda

import gear
from benchmarks import gpu_service
from benchmarks.gpu_cases import Frames, Rows, Tree, Windows, busy, ceilings, host_ways
from benchmarks.gpu_check import checks
from benchmarks.measure import WrongResult
from gear.devices import choice
from gear.kernels.cuda_seam import SIMULATED


def facts() -> dict[str, object]:
    """What every figure needs beside it."""
    versions = {name: __import__(name).__version__ for name in ("numba", "numpy", "torch")}
    found: dict[str, object] = {"gear": gear.__version__, **versions}
    try:
        found["numba-cuda"] = __import__("numba_cuda").__version__
    except ImportError:
        found["numba-cuda"] = "none"
    if SIMULATED:
        return {**found, "card": "none: the simulator"}
    from numba.cuda.cudadrv.driver import driver

    name = cuda.get_current_device().name
    found["driver"] = f"CUDA {'.'.join(map(str, driver.get_version()))}"
    found["toolkit"] = ".".join(map(str, choice.toolkit() or ("none",)))
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


SECONDS = 200.0
"""After which no further figure is begun: one run is to take less than four minutes."""

Say = Callable[[dict[str, Any]], None]


class Parts:
    """What is still to be done of a run: a part that fails leaves the others alone."""

    def __init__(self) -> None:
        self.began, self.failed = time.monotonic(), 0

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    def do(self, name: str, part: Callable[[], None]) -> None:
        """Do a part, unless its time is over."""
        if self.seconds > SECONDS:
            print(f"left out for lack of time: {name}", flush=True)
            return
        before = self.seconds
        try:
            part()
        except Exception as error:
            self.failed += 1
            word = "WRONG" if isinstance(error, WrongResult) else "FAILED"
            print(f"{word}: {name}: {error}", file=sys.stderr, flush=True)
            if word == "FAILED":
                traceback.print_exc()
        print(f"({name}: {self.seconds - before:.1f} s)", flush=True)


def gathers(tiny: bool, say: Say, ahead: Callable[[], None], made: type, limits: dict[str, float]) -> None:
    """One shape of batches: from the device, from mapped host memory, and gathered by the host."""
    repeats = 2 if tiny else 50
    for mapped in (False, True):
        case = made(tiny, mapped)
        limit = limits.get("mapped host memory, read" if mapped else "device memory, copied", 0.0)
        moved = case.nbytes * (1 if mapped else 2)
        where = "mapped host" if mapped else "device"
        say(record(f"{case.name} from {where}", case.gather, repeats, moved, limit, ahead))
        case.verify()
        for way, call in host_ways(case) if mapped else ():
            say(record(f"{case.name} {way}", call, min(repeats, 10), moved, limit))
            case.verify()


def trees(tiny: bool, say: Say, ahead: Callable[[], None], size: int) -> None:
    """Draws from a sum tree, updates of it, the best of its leaves."""
    repeats, tree = 2 if tiny else 50, Tree(size)
    for draws in (8,) if tiny else (256, 4096):
        say(record(f"draw {draws} of {size}", tree.draw(draws), repeats, ahead=ahead))
    for updates in (8,) if tiny else (256, 4096, 65536):
        say(record(f"update {updates} of {size}", tree.update(updates), repeats, ahead=ahead))
    tree.verify()
    say(record(f"best 64 of {size}", tree.best(4 if tiny else 64), repeats, ahead=ahead))


def run(tiny: bool, say: Say) -> int:
    """Everything; how many parts failed."""
    parts, limits = Parts(), dict[str, float]()
    checked = [*checks(tiny), *gpu_service.checks(tiny)]
    for name, check in checked:
        parts.do(f"checked: {name}", check)
    ahead = busy(1 << 10 if tiny else 1 << 28)

    def tops() -> None:
        for place, call, moved in ceilings(1 << 12 if tiny else 1 << 30):
            line = record(f"limit: {place}", call, 2 if tiny else 15, moved, ahead=ahead)
            limits[place] = moved / line["device_us"] * 1e6
            say(line)

    parts.do("limits", tops)
    for made in (Windows, Frames, Rows):
        parts.do(made.name, lambda made=made: gathers(tiny, say, ahead, made, limits))  # type: ignore[misc]
    for size in (64,) if tiny else (10**6, 10**5, 10**7):
        parts.do(f"trees of {size}", lambda size=size: trees(tiny, say, ahead, size))  # type: ignore[misc]

    def end_to_end() -> None:
        for name, call, moved in gpu_service.samples(tiny):
            say(record(name, call, 2 if tiny else 50, moved))

    parts.do("sample, end to end", end_to_end)
    print(f"{parts.seconds:.0f} s, {parts.failed} parts failed", flush=True)
    return parts.failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes for the simulator; its figures mean nothing")
    parser.add_argument("--json", help="append a line per figure to this file, as they come")
    given = parser.parse_args()
    if SIMULATED and not given.tiny:
        parser.error("the simulator is for --tiny alone; unset NUMBA_ENABLE_CUDASIM to measure a GPU")
    if not SIMULATED and not cuda.is_available():
        parser.error("Numba finds no GPU here (`numba -s` says why); for the script itself see --tiny")
    header = facts()
    print(", ".join(f"{key} {value}" for key, value in header.items()), flush=True)

    def say(line: dict[str, Any]) -> None:
        print(show(line), flush=True)
        if given.json:
            with open(given.json, "a") as file:
                file.write(json.dumps({**header, **line}) + "\n")

    sys.exit(1 if run(given.tiny, say) else 0)


if __name__ == "__main__":
    main()
