"""Rates of the transport's queue pairs beside perftest's, both ends in this machine: `run.sh -- PYTHON rates.py`.

Ratios alone mean something in a virtual machine. Both are measured in turns, and the best of
`ROUNDS` of each is taken: less than that says what else the machine did.
It ends with 1 if a transfer of 1 MiB is slower than `BAR` of what perftest does.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from gear.transport.rdma_chains import Transfer
from gear.transport.rdma_device import device, enter, leave
from gear.transport.rdma_queue import Key, QueuePair
from gear.transport.rdma_verbs import verbs

BAR, ROUNDS = 0.8, 6
PORT, ATTEMPTS, TOTAL = 18519, 5, {1 << 20: 40 << 20, 4096: 4 << 20}


def perftest(program: str, size: int, count: int) -> float:
    """MB/s, by perftest."""
    command = [program, "-d", device().name, "-x", str(device().gid_index), "-s", str(size), "-n", str(count), "-F"]
    command += ["-p", str(PORT)]
    # Line by line, so that it is heard saying that it waits. It listens a moment later: who comes before asks again.
    server = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        said = iter(server.stdout)
        while "Waiting for client" not in next(said, "Waiting for client"):
            pass
        for _ in range(ATTEMPTS):
            done = subprocess.run([*command, "127.0.0.1"], capture_output=True, text=True)
            if done.returncode == 0:
                break
        rows = [line.split() for line in done.stdout.splitlines()]
        found = [float(row[3]) for row in rows if len(row) >= 5 and row[0] == str(size)]
        return found[0] * (1 << 20) / 1e6 if found else float("nan")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def ours(verb: str, size: int, count: int) -> float:
    """MB/s, by a pair of queue pairs of the transport."""
    e = verbs().enums
    near, far = (np.ones(1 << 20, np.uint8) for _ in range(2))
    regions = [device().register(near, e.IBV_ACCESS_LOCAL_WRITE)]
    regions.append(
        device().register(far, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE)
    )
    mine, other = QueuePair(device()), QueuePair(device())
    mine.connect(other.end, e.IBV_ACCESS_LOCAL_WRITE)
    other.connect(mine.end, e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE)
    places = [0 if size >= 1 << 20 else k % 64 * size for k in range(count)]  # as perftest: one buffer
    moves = [Transfer(at, at, size) for at in places]
    began = time.perf_counter()
    getattr(mine, verb)(moves, (near.ctypes.data, regions[0].lkey), Key(far.ctypes.data, regions[1].rkey))
    rate = size * count / (time.perf_counter() - began) / 1e6
    for one in (mine, other, *regions):
        one.close()
    return rate


def main() -> int:
    """Print a line for each verb and size; how the process ends."""
    enter()
    low = 0
    for verb, program in (("read", "ib_read_bw"), ("write", "ib_write_bw")):
        for size, total in TOTAL.items():
            pairs = [(ours(verb, size, total // size), perftest(program, size, total // size)) for _ in range(ROUNDS)]
            mine, theirs = (max(column) for column in zip(*pairs, strict=True))
            sys.stdout.write(f"{verb} {size:>8} B: {mine:7.1f} MB/s, {program} {theirs:7.1f}: {mine / theirs:.2f}\n")
            sys.stdout.flush()
            low += size >= 1 << 20 and not mine / theirs >= BAR  # nor if perftest said nothing
    leave()
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main())
