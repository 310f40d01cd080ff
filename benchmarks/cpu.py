"""CPU time of processes, to the microsecond: what the kernel's scheduler counted for each of their threads.

Beside the wall time because that of a shared machine is noise, and because a system that keeps two cores busy for what
another does with half a one is not as fast.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable


def tree(roots: Iterable[int]) -> set[int]:
    """These processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, left = set(), list(roots)
    while left:
        found.add(process := left.pop())
        left += children.get(process, ())
    return found


def spent(processes: Iterable[int]) -> float:
    """CPU seconds of the threads of these processes that still run."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/schedstat") as file:
                    total += int(file.read().split()[0])
    return total / 1e9


def settle(processes: Iterable[int], most: float = 2.0) -> None:
    """Wait until these processes have nothing left to do (prefetches, acknowledgements), at most `most` seconds."""
    members, deadline = tree(processes), time.monotonic() + most
    before = spent(members)
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = spent(members)
        if now - before < 0.002:
            return
        before = now
