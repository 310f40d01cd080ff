"""Shards that outlived their supervisor are taken over by one with the same secrets, and by no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import gear
from gear.errors import ServerConflict
from gear.server.adoption import check_shards
from gear.server.config import Options
from gear.server.runtime import Claim
from gear.transport.door import DOOR, locked_file
from tests.server.test_restart import declare, trajectory


def token_file(folder: Path, text: str) -> str:
    path = folder / text
    path.touch(0o600)
    path.write_text(text)
    return str(path)


@pytest.fixture
def orphan(start_server, tmp_path):
    """A shard whose supervisor was killed; the name, the token's file, a client of it."""
    file = token_file(tmp_path, "the-first-token")
    server = start_server("--token-file", file, discard=False)
    with gear.connect(server.address, token="the-first-token") as client:
        client.create_table(declare())
        client.insert(trajectory(3))
        server.process.kill()
        server.process.wait(10)
        yield server.name, file, client


def test_only_who_knows_the_token_takes_over_living_shards(orphan, start_server, tmp_path):
    name, file, client = orphan
    pid = client.info()["pid"]
    for arguments, message in (
        ((), "another token"),
        (("--token-file", token_file(tmp_path, "another-token")), "another token"),
        (("--token-file", file, "--host", "127.0.0.2"), r"another --host (127.0.0.1, not 127.0.0.2)"),
    ):
        refused = start_server("--name", name, *arguments, discard=False, ready=False)
        assert refused.process.wait(30) == 1
        log = refused.log.read_text()
        assert f"process {pid} still serves tables of this name" in log
        assert f"was started with {message}" in log
        assert "-token" not in log.replace("--token-file", "")
    client.insert(trajectory(5))  # nothing of the shard's was touched
    with_it = start_server("--name", name, "--token-file", file, discard=False)
    with gear.connect(with_it.address, token="the-first-token") as another:
        assert another.info()["pid"] == pid
        assert another.info()["tables"]["t"]["trajectories"] == 2
    assert with_it.stop() == 0
    start_server("--name", name).stop()


def test_a_shard_that_does_not_answer_is_not_taken_over(tmp_path):
    door = locked_file(tmp_path / DOOR)
    options = Options("n", "127.0.0.1", 1, "cpu", 1, "", "info", False, 1.0)
    claim = Claim(tmp_path, True, [7], {0: 12345})
    with pytest.raises(ServerConflict, match="process 12345 still serves .* does not answer within 10 s"):
        check_shards(claim, options, 1, "")
    os.close(door)
    check_shards(claim, options, 1, "")  # it has died meanwhile
