"""`python -m tests.fuzz --messages 1000000`: so many malformed messages to a server of its own; what it says of it."""

from __future__ import annotations

import argparse
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

WARM = 0.2
"""Part of the messages after which the shard's memory is taken for its size: caches and tables are full."""


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
    command += ["--log-level", "warning", "--max-restarts", "0", "--client-timeout", "10"]
    with log.open("wb") as stderr:
        server = Server(name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr), log)
    server.wait_ready()
    attack = Attack(server.address, Random(seed))
    print(f"seed {seed}: {options.messages} messages to {server.address}")
    began, warm, most, code = time.monotonic(), 0, 0, 1
    try:
        step = max(1, options.messages // 20)
        for part in range(20):
            attack.run(step)
            used = attack.memory()
            warm = used if part < 20 * WARM else warm
            most = max(most, used)
            rate = attack.sent / (time.monotonic() - began)
            print(f"{attack.sent} messages, {rate:.0f}/s, {used / 2**20:.1f} MiB, {len(attack.found)} internal errors")
        code = int(bool(attack.found) or b"Traceback" in log.read_bytes())
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
    growth = most / warm - 1
    print(f"{attack.sent} messages in {time.monotonic() - began:.0f} s: {len(attack.found)} internal errors")
    print(f"{attack.unheard} bursts unheard, the others waited {attack.slowest:.2f} s at most")
    print(f"memory of the shard {warm / 2**20:.1f} MiB, at most {growth:.1%} more")
    return code


if __name__ == "__main__":
    sys.exit(main())
