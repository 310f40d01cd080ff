"""A writer or reader of Reverb beside others (see `benchmarks.crew`): its arguments are

address, workers, samples in flight, ``writer`` or ``reader``, and its number.
"""

from __future__ import annotations

import sys

from benchmarks.crew import serve
from benchmarks.peers import reverb as peer
from benchmarks.workloads import check_items

KIND = "64"


def main(address: str, workers: int, in_flight: int, role: str, number: int) -> None:
    """Serve."""
    given, place = peer.stored(KIND), number * 100
    if role == "writer":
        writer = peer.Writer(address, False, given[0])

        def write(service: int) -> int:
            nonlocal place
            for _ in range(20):
                writer.put(given[place % len(given)])
                place += 1
            return 20

        serve(write, lambda service: writer.done())
        return
    iterator = peer.batches(address, KIND, workers, in_flight)
    last = next(iterator)

    def read(service: int) -> int:
        nonlocal last
        last = next(iterator)
        return peer.BATCH

    def check(service: int) -> None:
        check_items(KIND, {name: column.numpy()[:8] for name, column in last.data.items()}, 8)

    serve(read, check)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
