"""A server and a client on two hosts: `python -m tests.rdma.pair server ADDRESS` there, `... client ADDRESS` here.

``GEAR_CURVE_KEYS`` names a directory that `gear keys new` made, with both ends' keys.

The client inserts and samples at once, compares with what TCP returns, then loses packets and the link. It says what it
did; an exit status other than 0 says that something was wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import gear
from tests.rdma.children import COLUMNS, consistent, numbered

TOKEN, PORT = "of-two-machines", 7400
LONG, LOST = 600.0, 20
DONE = gear.Table("done", [gear.Column("passed", (), "bool")], gear.Steps(1), max_length=1)


def say(text: str) -> None:
    sys.stdout.write(f"[{time.monotonic():7.1f}] {text}\n")
    sys.stdout.flush()


def serve(host: str) -> None:
    """Serve until the other host inserts into the table `done`."""
    with tempfile.NamedTemporaryFile("w") as token:
        token.write(TOKEN)
        token.flush()
        command = [sys.executable, "-m", "gear.server", "--host", host, "--port", str(PORT), "--token-file", token.name]
        command += [
            "--curve-keys",
            os.environ["GEAR_CURVE_KEYS"],
            "--discard",
            "--memory",
            "64MiB",
            "--max-restarts",
            "0",
            "--client-timeout",
            "30",
        ]
        process = subprocess.Popen(command)
        try:
            with gear.connect(f"{host}:{PORT}", path="tcp", token=TOKEN, timeout=LONG) as client:
                client.create_table(DONE)
                client.sample(1, "done", timeout=LONG)
        finally:
            process.terminate()
            process.wait(60)


def same(client: gear.Client, other: gear.Client, size: int) -> None:
    """What both collect of one selection is equal, bit by bit."""
    selection = other.select(size, "t", parties=2, timeout=LONG)
    mine, theirs = client.collect(selection), other.collect(selection)
    for name in theirs:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    consistent(mine)
    client.release(selection)
    other.release(selection)


def both(client: gear.Client, other: gear.Client, count: int, size: int) -> None:
    """Insert that many trajectories and sample meanwhile; every insert that is acknowledged is counted once."""
    before = client.info()["tables"]["t"]["inserted_trajectories"]
    actor = threading.Thread(target=lambda: [client.insert(numbered(k), "t", timeout=LONG) for k in range(count)])
    actor.start()
    batches = 0
    while actor.is_alive():
        same(client, other, size)
        batches += 1
    actor.join()
    info = client.info()
    assert info["tables"]["t"]["inserted_trajectories"] == before + count
    say(f"{count} inserted, {batches} batches equal; {info['rdma']} {info['way']}")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def dropped(device: str) -> int:
    """Packets that the queue of a device has thrown away."""
    said = subprocess.run(["tc", "-s", "qdisc", "show", "dev", device], check=True, capture_output=True, text=True)
    return int(said.stdout.split("dropped ")[1].split(",")[0])


def link_down(device: str, seconds: float) -> None:
    run("ip", "link", "set", device, "down")
    time.sleep(seconds)
    run("ip", "link", "set", device, "up")


def work(host: str) -> None:
    """Insert, sample and compare, on a good link and on bad ones."""
    os.environ["GEAR_TOKEN"] = TOKEN
    with gear.connect(f"{host}:{PORT}", timeout=LONG, path="rdma") as client:
        item = gear.Window(16)
        table = gear.Table("t", COLUMNS, gear.Steps(600), item=item, mean_length=40, max_length=60, block_steps=8)
        client.create_table(table)
        client.insert_many([numbered(k) for k in range(30)], "t")
        with gear.connect(f"{host}:{PORT}", path="tcp", timeout=LONG) as other:
            client.sample(4, "t", timeout=LONG)
            both(client, other, 40, 16)
            device = next(path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("e"))
            say("3 % of packets lost")
            run("tc", "qdisc", "replace", "dev", device, "root", "netem", "loss", "3%", "limit", "100000")
            while dropped(device) < LOST:
                both(client, other, 15, 8)
            say(f"{dropped(device)} packets were lost")
            run("tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "100000")
            say("link down for 8 s")
            harm = threading.Thread(target=link_down, args=(device, 8.0))
            harm.start()
            both(client, other, 15, 8)
            harm.join()
            deadline = time.monotonic() + 120
            while not client.info()["way"]["up"] and time.monotonic() < deadline:
                same(client, other, 8)
            assert client.info()["way"]["up"]
            both(client, other, 10, 8)
        client.create_table(DONE)
        client.insert({"passed": np.ones(1, np.bool_)}, "done")
        say("done")


if __name__ == "__main__":
    {"server": serve, "client": work}[sys.argv[1]](sys.argv[2])
