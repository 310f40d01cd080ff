"""Shards that outlived their supervisor are taken over by one with the same secrets, and by no other."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

import gear
from gear.errors import ServerConflict
from gear.server import adoption, runtime
from gear.server.adoption import check_shards
from gear.server.config import Options, ShardOptions
from gear.server.process import launch
from gear.server.runtime import Claim, runtime_directory
from gear.transport.discovery import discover
from gear.transport.door import DOOR, locked_file, take_door
from tests.server.test_restart import declare, trajectory
from tests.transport.helpers import eventually

pytestmark = pytest.mark.faults


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
        server.process.wait(60)
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
        assert refused.process.wait(60) == 1
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


def test_a_shard_that_does_not_answer_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(adoption, "PATIENCE", 0.1)
    door = locked_file(tmp_path / DOOR)
    options = Options("n", "127.0.0.1", 1, "cpu", 1, "", "info", False, 1.0)
    claim = Claim(tmp_path, True, [7], {0: 12345})
    with pytest.raises(ServerConflict, match="process 12345 still serves .* does not answer within 0.1 s"):
        check_shards(claim, options, 1, "")
    os.close(door)
    check_shards(claim, options, 1, "")  # it has died meanwhile


def test_a_shard_that_is_still_starting_is_waited_for(tmp_path, monkeypatch):
    """Origin: its supervisor was killed while it started; it had taken its door and did not listen yet."""
    door = locked_file(tmp_path / DOOR)
    options = Options("n", "127.0.0.1", 1, "cpu", 1, "", "info", False, 1.0)
    answers = [None, None, {"curve_key": "", "host": "127.0.0.1"}]
    monkeypatch.setattr(adoption, "_ask", lambda *_: answers.pop(0))
    assert check_shards(Claim(tmp_path, True, [7], {0: 12345}), options, 1, "") == [7]
    assert answers == []
    os.close(door)


def test_half_a_restored_checkpoint_is_not_taken_over(tmp_path, monkeypatch):
    """Origin: a supervisor and one of its shards were killed while a checkpoint was restored; the next one took over
    the other shard, said that this held more, and began that of the dead one empty."""
    monkeypatch.setattr(runtime, "SHARED", tmp_path)
    monkeypatch.setattr(runtime, "runtime_directory", lambda: tmp_path)
    kept = tmp_path / f"gear-{0:032x}"
    for shard in range(2):
        (kept / f"shard-{shard}").mkdir(parents=True)
    (kept / "shard-1" / "table-0").write_bytes(b"as far as it came")
    door = take_door(kept / "shard-0" / DOOR)[0]
    place = runtime.Place("n")
    place.write(runtime.Record(str(kept), 1, [2, 3], "", [0, 0], restoring=True))
    with pytest.raises(ServerConflict, match=f"processes \\[{os.getpid()}\\] are restoring .* end them"):
        place.claim(False, 2)
    assert (kept / "shard-1" / "table-0").exists()
    os.close(door)
    assert not place.claim(False, 2).kept
    place.leave(True)


def record_of(name: str) -> Path:
    return runtime_directory() / f"{name}.record"


def test_a_living_shard_is_found_by_its_door_whatever_the_record_says(start_server):
    """Origin: a supervisor killed between starting a shard again and noting that down left a record of a dead process;
    each start after that failed on it. One killed before its shards served left no ports: clients were sent to 0."""
    server = start_server(discard=False)
    with gear.connect(server.address) as client:
        client.create_table(declare())
        pid = client.info()["pid"]
        server.process.kill()
        server.process.wait(60)
        record = json.loads(record_of(server.name).read_text())
        port = record["ports"]
        record_of(server.name).write_text(json.dumps(record | {"shards": [server.process.pid], "ports": [0]}))
        again = start_server("--name", server.name, discard=False)
        with gear.connect(again.address, path="tcp") as another:
            assert another.info()["pid"] == pid
        assert [shard.port for shard in discover(again.address, "", 60.0).shards] == port
    again.stop()
    start_server("--name", server.name).stop()


def test_a_start_that_is_cut_off_leaves_the_shards_their_ports(start_server):
    """Origin: a start noted down no ports until its shards served. Killed before, the next one took others, and
    clients over tcp waited at the old one for good."""
    server = start_server(discard=False)
    with gear.connect(server.address) as client:
        client.create_table(declare())
        shard = client.info()["pid"]
    before = discover(server.address, "", 60.0).shards
    for pid in (server.process.pid, shard):
        os.kill(pid, signal.SIGKILL)
    server.process.wait(60)
    cut = start_server("--name", server.name, discard=False, ready=False)
    eventually(
        lambda: json.loads(record_of(server.name).read_text())["supervisor"] == cut.process.pid, "it began", 30.0
    )
    started = json.loads(record_of(server.name).read_text())["shards"]
    for pid in (cut.process.pid, *started):
        os.kill(pid, signal.SIGKILL)
    cut.process.wait(60)
    again = start_server("--name", server.name, discard=False)
    assert [shard.port for shard in discover(again.address, "", 60.0).shards] == [shard.port for shard in before]
    again.stop()
    start_server("--name", server.name).stop()


def test_a_shard_that_nobody_waits_for_any_more_does_not_take_the_place_of_the_next(tmp_path):
    """Origin: the shard of a supervisor that was killed while it started came up beside that of the next one."""
    process = launch("info")
    process.stdout.close()
    told = ShardOptions("n", "127.0.0.1", 0, 1, str(tmp_path / "d"), 1 << 20, "", "info", False, 1.0)
    process.stdin.write(msgspec.json.encode(told) + b"\n")
    process.stdin.close()
    assert process.wait(60) == 0
    assert not (tmp_path / "d").exists()
