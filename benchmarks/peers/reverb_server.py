"""Reverb's server in a process of its own: `python -m benchmarks.peers.reverb_server SIZE` prints its port, serves, and
ends with its standard input.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import reverb


def tables(size: int) -> list[reverb.Table]:
    """A uniform and a prioritized table."""
    selectors = {"uniform": reverb.selectors.Uniform(), "prioritized": reverb.selectors.Prioritized(0.6)}
    return [
        reverb.Table(name, selector, reverb.selectors.Fifo(), size, reverb.rate_limiters.MinSize(1))
        for name, selector in selectors.items()
    ]


@contextlib.contextmanager
def server(size: int) -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.reverb_server", str(size)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield f"localhost:{int(process.stdout.readline())}", process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Serve."""
    serving = reverb.Server(tables(int(sys.argv[1])), port=None)
    print(serving.port, flush=True)
    sys.stdin.read()
    serving.stop()


if __name__ == "__main__":
    main()
