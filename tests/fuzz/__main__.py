"""`python -m tests.fuzz --messages 1000000`: so many malformed messages to a server of its own; what it says of it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from random import Random

from tests.conftest import Server
from tests.fuzz.attack import Attack, save
from tests.fuzz.frames import KINDS

PARTS, WARM = 20, 5
"""After each part the attackers hang up and are forgotten; the most memory that the shard had after one of the first is
taken for its size."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""The C library gives back at once what is free. Else it keeps up to 64 MiB of it once arrays of 28 MiB were freed
(answers to requests for a million items): no leak, but in the way of who looks for one."""

FLAT = 0.01
"""What it may take more than that, later."""


def main() -> int:
    """Run; 0 if the server stood."""
    parser = argparse.ArgumentParser("tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="default: any, it is shown")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="where messages go that did harm")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else uuid.uuid4().int % (1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="gear-fuzz-"))
    name, log = f"fuzz-{uuid.uuid4().hex[:8]}", folder / "log"
    command = [sys.executable, "-m", "gear.server", "--name", name, "--port", "0", "--memory", "64MiB", "--discard"]
    command += ["--log-level", "warning", "--max-restarts", "0", "--client-timeout", "1"]
    environment = os.environ | ALLOCATOR
    with log.open("wb") as stderr:
        server = Server(name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment), log)
    server.wait_ready()
    attack = Attack(server.address, Random(seed))
    print(f"seed {seed}: {options.messages} messages to {server.address}")
    began, warm, most, code = time.monotonic(), 0, 0, 1
    try:
        step = max(1, options.messages // PARTS)
        for part in range(PARTS):
            attack.run(step)
            attack.rest()
            used = attack.memory()
            warm, most = (max(warm, used), used) if part < WARM else (warm, max(most, used))
            rate = attack.sent / (time.monotonic() - began)
            print(f"{attack.sent} messages, {rate:.0f}/s, {used / 2**20:.1f} MiB, {len(attack.found)} internal errors")
        flat = most <= (1 + FLAT) * warm
        code = int(bool(attack.found) or b"Traceback" in log.read_bytes() or not flat)
    except BaseException as error:
        print(f"ended after {attack.sent} messages, the others waited {attack.slowest:.2f} s at most: {error!r}")
        raise
    finally:
        if code:
            print("kept:", *save(options.keep, attack), shutil.copy(log, options.keep / "server.log"))
        attack.close()
        server.stop()
        shutil.rmtree(folder)
    never = sorted(kind.__name__ for kind in KINDS if not attack.done[kind])
    print(f"{sum(attack.done.values())} were done, not refused; of no kind but {', '.join(never) or 'all'} none")
    print(f"{attack.sent} messages in {time.monotonic() - began:.0f} s: {len(attack.found)} internal errors")
    print(f"{attack.unheard} bursts unheard, the others waited {attack.slowest:.2f} s at most")
    growth = f"{warm / 2**20:.1f} MiB after {WARM} of {PARTS} parts, later {most / 2**20:.1f}, {most / warm - 1:+.2%}"
    print(f"{'ok' if flat else 'FAILED'}: memory of the shard, whenever nobody attacks: {growth}; bar {FLAT:.0%}")
    return code


if __name__ == "__main__":
    sys.exit(main())
