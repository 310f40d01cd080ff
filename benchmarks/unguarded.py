"""GEAR as it would be if nothing outlived a crash: commits write no journal and no checksums. For `persistence` alone.

`python -m benchmarks.unguarded OPTIONS` is `gear-server OPTIONS` with such shards. Kernels are compiled without their
guards, so a cache of their own is wanted: set NUMBA_CACHE_DIR. Importing it before anything of `gear.storage` does it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from gear.kernels.compile import kernel
from gear.storage import journal

assert os.environ.get("NUMBA_CACHE_DIR"), "set NUMBA_CACHE_DIR: these kernels must not be taken for GEAR's own"
assert "gear.storage.commit" not in sys.modules, "import it before what it changes"


@kernel
def begin(segment, params, slot, ordinal, request):
    """In place of what writes down what stood there."""


@kernel
def end(segment, params):
    """In place of what says that a change is whole."""


@kernel
def stamp(segment, params, slot):
    """In place of the checksum of a record."""


@kernel
def chained(block, ordinal, generation):
    """In place of the checksum of a chain."""
    return 0


journal.begin, journal.end, journal.stamp, journal.chained = begin, end, stamp, chained

SHARD = "--shard"


def launch(log_level: str) -> subprocess.Popen[bytes]:
    """In place of `gear.server.process.launch`."""
    command = [sys.executable, "-m", "benchmarks.unguarded", SHARD, log_level]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main() -> int:
    """A server, or a shard of one."""
    if sys.argv[1:2] == [SHARD]:
        from gear.server import shard

        del sys.argv[1]
        return shard.main()
    from gear.server import cli, process, restart

    process.launch = restart.launch = launch
    return cli.server_main(sys.argv[1:])


if __name__ == "__main__":
    from benchmarks import unguarded  # cached kernels know their module by its name, and import it

    sys.exit(unguarded.main())
