"""A shard that dies, and a server that is ended, while clients use RDMA: they go on, and it is dialed anew."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

import gear
from tests.rdma.children import COLUMNS, consistent, numbered
from tests.rdma.served import PATIENCE, Served

TABLE = gear.Table(
    "t", COLUMNS, gear.Steps(1500), item=gear.Window(16), mean_length=40, max_length=60, block_steps=8
)  # fmt: skip


class Writer:
    """Inserts numbered trajectories over RDMA until it is told to end, and notes which were acknowledged."""

    def __init__(self, address: str) -> None:
        self.client = gear.connect(address, path="rdma", timeout=PATIENCE)
        self.acknowledged: list[int] = []
        self.error: BaseException | None = None
        self._ending, self._thread = False, threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ending:
                number = len(self.acknowledged)
                self.client.insert(numbered(number), "t", timeout=PATIENCE)
                self.acknowledged.append(number)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ending = True
        self._thread.join(PATIENCE)
        if self.error is None:
            self.client.close()


def dialed(client: gear.Client) -> tuple[int, int, int]:
    """Queue pairs that a client had, and the bytes that went over them each way."""
    figures = client._session._way.figures
    return figures["dialed"], figures["read_bytes"], figures["written_bytes"]


@pytest.mark.slow
def test_nothing_is_lost_or_twice_when_a_shard_is_killed_and_when_the_server_is_started_again(tmp_path):
    server = Served(tmp_path / "log", "again", writes="inbox", silence=PATIENCE / 5).start()
    reader, writer = gear.connect(server.address, path="rdma", timeout=PATIENCE), None
    try:
        reader.create_table(TABLE)
        writer = Writer(server.address)

        def anew() -> None:
            """Wait until both ends of the writer and of the reader are joined by RDMA again, and rows go over it."""
            before, deadline = (dialed(writer.client), dialed(reader)), time.monotonic() + PATIENCE
            while True:
                consistent(reader.sample(16, "t", timeout=PATIENCE))
                assert writer.error is None
                now = dialed(writer.client), dialed(reader)
                wrote = now[0][0] > before[0][0] and now[0][2] > before[0][2]
                if wrote and now[1][0] > before[1][0] and now[1][1] > before[1][1]:
                    return
                assert time.monotonic() < deadline, (before, now)

        consistent(reader.sample(16, "t", timeout=PATIENCE))
        os.kill(reader.info()["pid"], signal.SIGKILL)
        anew()
        server.stop()
        server.start()
        anew()
        writer.end()
        assert writer.error is None
        stored = []
        for page in reader.scan("t"):
            selection = reader.select(table="t", ids=page.ids)
            batch = reader.collect(selection)
            consistent(batch)
            stored += batch["policy"].tolist()
            reader.release(selection)
        info = reader.info()["tables"]["t"]
        assert info["inserted_trajectories"] == len(writer.acknowledged), "inserted twice, or acknowledged and lost"
        first = info["evicted_trajectories"]
        assert sorted(set(stored)) == writer.acknowledged[first:]
    finally:
        if writer is not None:
            writer.end()
        reader.close()
        server.stop()
