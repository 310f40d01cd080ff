"""A real `gear-server` of a benchmark: a process with a name and a port of its own that is always stopped."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

READY = b"gear-server ready: "
COMPILING = 600.0
"""Seconds that a first start may take: it compiles the kernels, on a machine with more to do."""


def launch(name: str, *options: str, stderr: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a server with these options; it has not said anything yet.

    It has a session of its own, so that a Ctrl-C in the terminal reaches it through its starter, last.
    """
    command = [sys.executable, "-m", "gear.server", "--devices", "cpu", "--port", "0", "--name", name]
    return subprocess.Popen(
        [*command, "--log-level", "warning", *options], stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )


def wait_ready(process: subprocess.Popen[bytes]) -> str:
    """Wait for the ready line; the server's address. It is stopped if that does not come."""
    try:
        assert process.stdout is not None
        deadline, said = time.monotonic() + COMPILING, b""
        while b"\n" not in said.partition(READY)[2]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise SystemExit(f"the server was not ready within {COMPILING:g} s; it said {said!r}")
            more = os.read(process.stdout.fileno(), 65536)
            if not more:
                raise SystemExit(f"the server ended before it was ready; it said {said!r}")
            said += more
        return said.partition(READY)[2].decode().split("address=")[1].split()[0]
    except BaseException:
        stop(process)
        raise


def start(name: str, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server on a free port, whatever an earlier one left, and wait for it; the process and its address."""
    process = launch(name, "--discard", *options)
    return process, wait_ready(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, kindly first."""
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def server(*options: str) -> Iterator[str]:
    """The address of a server that lives as long as the context."""
    with served(*options) as (address, _):
        yield address


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, int]]:
    """The same, and its process."""
    process, address = start(f"bench-{secrets.token_hex(4)}", *options)
    try:
        yield address, process.pid
    finally:
        stop(process)


def start_and_stop() -> float:
    """Seconds from the start of a server to its ready line."""
    begin = time.perf_counter()
    process, _ = start(f"bench-{secrets.token_hex(4)}")
    seconds = time.perf_counter() - begin
    stop(process)
    return seconds
