"""A thousand connected clients: nothing lost, nobody stuck, and how long the shards' control loops take.

    python -m benchmarks.crowd [--clients 1000] [--processes 8] [--seconds 20] [--devices cpu:2] [--path shm|tcp]

Processes of many clients each (threads of one process would wait for one another's interpreter) insert small
trajectories and sample small batches, at a pace that leaves the machine some air. Then every trajectory is counted, and
the latencies of requests are read from what the shards count for their metrics: the time from the reading of a message
to its answer, and thus the control loop's part of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import secrets
import subprocess
import sys
import time

import numpy as np

import gear
from benchmarks import service
from gear.server.figures import measure, total
from gear.server.latency import quantile
from gear.transport.discovery import discover, parse_address

TABLE = gear.Table(
    "crowd", [gear.Column("n", (), "int64")], gear.Steps(400_000), item=gear.Window(4), mean_length=8, max_length=8
)
STEPS = 8
KINDS = ("commit", "insert", "lease", "draw", "select", "collect", "releases")


def crowd(address: str, clients: int, seconds: float, path: str, seed: int) -> None:
    """One process: connect all its clients, say so, and use them in turn until told to end; its account at last."""
    rng = np.random.default_rng(seed)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
    everybody = [gear.connect(address, path=path, timeout=120.0) for _ in range(clients)]  # type: ignore[arg-type]
    rows = {"n": np.arange(STEPS)}
    for client in everybody:  # opens the table, and loads what is loaded once
        client.insert(rows, "crowd", timeout=60.0)
        client.sample(16, "crowd", timeout=60.0)
    print("ready", flush=True)
    sys.stdin.readline()
    inserted, sampled = clients, 0
    end = time.monotonic() + seconds
    slowest = 0.0
    while time.monotonic() < end:
        client = everybody[int(rng.integers(clients))]
        began = time.monotonic()
        if rng.integers(4):
            client.insert(rows, "crowd", timeout=60.0)
            inserted += 1
        else:
            batch = client.sample(16, "crowd", timeout=60.0)
            assert (np.diff(np.asarray(batch["n"]), axis=1) == 1).all(), "a row is not its own"
            sampled += 1
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(float(rng.exponential(0.002)))
    print(json.dumps({"inserted": inserted, "sampled": sampled, "slowest": round(slowest, 3)}), flush=True)
    sys.stdin.readline()
    for client in everybody:
        client.close()


def requests_of(address: str) -> dict[str, list[int]]:
    """How many requests of each kind took how long, on all shards: counts per bucket."""
    found = discover(address, "", 10.0)
    figures = total(measure(found.shards, parse_address(address)[0], "", 10.0).values())["requests"]
    return {kind: row["buckets"] for kind, row in figures.items()}


def run(clients: int, processes: int, seconds: float, devices: str, path: str) -> bool:
    """Start everybody, wait for the end, compare; whether all held."""
    server, address = service.start(f"crowd-{secrets.token_hex(4)}", "--devices", devices)
    started: list[subprocess.Popen[str]] = []
    try:
        with gear.connect(address) as client:
            client.create_table(TABLE)
            client.insert({"n": np.arange(STEPS)}, "crowd")
            for k in range(processes):
                share = clients // processes + (k < clients % processes)
                command = [sys.executable, "-m", "benchmarks.crowd", "--one", address, str(share), str(seconds), path]
                started.append(
                    subprocess.Popen([*command, str(k)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                )
            for process in started:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "ready":
                    raise SystemExit("a process of clients did not come up")
            shards = client.info()
            print(f"{shards['clients']['connected']} connections of {clients} clients and this one to {devices}")
            before = requests_of(address)
            for process in started:
                print(file=process.stdin, flush=True)
            accounts = []
            for process in started:
                assert process.stdout is not None
                accounts.append(json.loads(process.stdout.readline()))
            figures = client.info()["tables"]["crowd"]
            requests = requests_of(address)
            for process in started:
                process.communicate("\n\n", timeout=120)
        inserted = 1 + sum(account["inserted"] for account in accounts)
        ok = inserted == figures["inserted_trajectories"] and all(process.returncode == 0 for process in started)
        rate = (sum(account["inserted"] + account["sampled"] for account in accounts) - clients) / seconds
        print(f"{inserted} inserts acknowledged, {figures['inserted_trajectories']} counted, {rate:.0f} calls/s")
        print(f"the slowest call took {max(account['slowest'] for account in accounts):.3f} s")
        for kind in KINDS:
            then = before.get(kind, [0] * 99)
            buckets = [now - was for now, was in zip(requests.get(kind, []), then, strict=False)]
            if sum(buckets):
                median, late = (quantile(q, buckets) for q in (0.5, 0.99))
                print(f"{kind:9} {sum(buckets):8} requests, p50 {median * 1e6:7.0f} us, p99 {late * 1e6:7.0f} us")
        print("passed" if ok else "FAILED")
        return ok
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
        service.stop(server)


def main() -> None:
    """Parse the options and run."""
    if sys.argv[1:2] == ["--one"]:
        address, clients, seconds, path, seed = sys.argv[2:]
        crowd(address, int(clients), float(seconds), path, int(seed))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--path", choices=("shm", "tcp"), default="shm")
    options = parser.parse_args()
    ok = run(options.clients, options.processes, options.seconds, options.devices, options.path)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
