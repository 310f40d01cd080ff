from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gear.server.runtime import Place, runtime_directory
from gear.storage.memory import size_text
from gear.transport.negotiation import connect
from tests.transport.helpers import eventually, figures, insert, table

SHARED = Path("/dev/shm")


def directory(server) -> Path:
    session = connect(server.address, timeout=60.0)
    path = session._door.directory
    session.close()
    return path


def refused(*arguments: str) -> str:
    """What a server that does not start says."""
    command = [sys.executable, "-m", "gear.server", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    return ended.stderr


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_and_leaves_nothing(start_server, number):
    server = start_server()
    session = connect(server.address, timeout=60.0)
    session.create_table(table(), 60.0)
    shard, path = session.info(60.0)["pid"], session._door.directory
    assert server.stop(number) == 0
    assert gone(shard)
    assert not path.exists()
    assert list(runtime_directory().glob(f"{server.name}.*")) == []
    session.close()


def test_ctrl_c_in_a_terminal_reaches_the_shard_too_and_ends_cleanly(start_server):
    server = start_server()
    shard = connect(server.address, timeout=60.0)
    pid = shard.info(5.0)["pid"]
    os.kill(pid, signal.SIGINT)
    shard.info(5.0)
    shard.close()
    assert server.stop(signal.SIGINT) == 0


def test_kept_memory_is_taken_up_at_the_next_start_and_discarded_when_asked(start_server):
    server = start_server(discard=False)
    session = connect(server.address, timeout=60.0)
    opened = session.create_table(table(), 60.0)
    insert(session, opened, 1)
    path = session._door.directory
    assert server.stop() == 0
    session.close()
    assert sorted(p.name for p in path.iterdir()) == ["clients", "door", "table-0"]
    again = start_server("--name", server.name, discard=False)
    assert f"took up 1 table, 1 trajectories, {size_text(opened.layout.nbytes)} of {path}" in again.log.read_text()
    session = connect(again.address, timeout=60.0)
    assert figures(session)["trajectories"] == 1
    session.close()
    assert again.stop() == 0
    again = start_server("--name", server.name)
    assert "discarding" in again.log.read_text()
    assert not path.exists()
    assert again.stop() == 0


def test_segments_of_a_killed_server_are_taken_up_by_no_other_number_of_shards(start_server):
    """origin: vllm#51317"""
    server = start_server(discard=False)
    session = connect(server.address, timeout=60.0)
    session.create_table(table(), 60.0)
    shard, path = session.info(60.0)["pid"], session._door.directory
    for pid in (server.process.pid, shard):
        os.kill(pid, signal.SIGKILL)
    server.process.wait(60)
    eventually(lambda: gone(shard), "the shard is dead")
    session.close()
    message = refused("--name", server.name, "--port", "0", "--devices", "cpu:2")
    assert "of tables of 1 shards" in message
    assert "start with --devices cpu, with --discard" in message
    start_server("--name", server.name).stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (8, 99, "has segment format 99, expected"),
        (24, 1, "its header does not add up"),
        (300, 1, "its header does not add up"),
        (136, ord("9"), "was made by gear 9"),
    ],
)
def test_a_segment_that_cannot_be_taken_up_is_refused_and_kept(start_server, at, value, problem):
    server = start_server(discard=False)
    session = connect(server.address, timeout=60.0)
    session.create_table(table(), 60.0)
    path = session._door.directory
    session.close()
    server.stop()
    with open(path / "table-0", "r+b") as file:
        file.seek(at)
        file.write(bytes([value]))
    message = refused("--name", server.name, "--port", "0")
    assert problem in message
    assert "--discard" in message
    assert (path / "table-0").exists()
    start_server("--name", server.name).stop()
    assert not path.exists()


def test_a_server_without_tables_keeps_nothing(start_server):
    server = start_server(discard=False)
    path = directory(server)
    assert server.stop() == 0
    assert not path.exists()
    start_server("--name", server.name, discard=False).stop()


@pytest.mark.faults
def test_a_second_server_of_that_name_is_refused(start_server):
    server = start_server()
    message = refused("--name", server.name, "--port", "0", "--discard")
    assert f"a server named {server.name!r} is running (at {server.address}" in message
    directory(server)


@pytest.mark.faults
def test_a_second_server_on_that_port_is_refused(start_server):
    server = start_server()
    message = refused("--name", "another", "--port", server.address.rpartition(":")[2])
    assert f"cannot listen on {server.address}: address already in use" in message
    directory(server)


def test_a_shard_that_dies_and_is_not_started_again_ends_its_server(start_server):
    server = start_server("--max-restarts", "0")
    session = connect(server.address, timeout=60.0)
    session.create_table(table(), 60.0)
    path = session._door.directory
    os.kill(session.info(60.0)["pid"], signal.SIGKILL)
    assert server.process.wait(60) == 1
    assert "the shard died with exit code -9" in server.log.read_text()
    assert not path.exists()
    session.close()


def test_a_shard_outlives_its_supervisor_and_keeps_the_name(start_server):
    server = start_server()
    session = connect(server.address, timeout=60.0)
    opened = session.create_table(table(), 60.0)
    shard, path = session.info(60.0)["pid"], session._door.directory
    server.process.kill()
    server.process.wait(60)
    for number in range(100):
        insert(session, opened, number)
    assert figures(session)["inserted_trajectories"] == 100
    assert "is running" in refused("--name", server.name, "--port", "0", "--discard")
    session.close()
    os.kill(shard, signal.SIGTERM)
    eventually(lambda: gone(shard), "the shard ended")
    assert not path.exists()
    start_server("--name", server.name).stop()


def test_files_of_the_server_are_for_its_user_only(start_server):
    server = start_server()
    session = connect(server.address, timeout=60.0)
    session.create_table(table(), 60.0)
    path = session._door.directory
    for one in (path, *path.iterdir(), runtime_directory(), *runtime_directory().glob(f"{server.name}.*")):
        assert one.stat().st_mode & 0o077 == 0, one
    session.close()


def test_a_name_is_free_again_when_its_place_is_left():
    for _ in range(3):
        place = Place("test-place")
        place.claim(True, 1)
        assert place.leave(True) == 0
    assert list(runtime_directory().glob("test-place.*")) == []


def test_a_record_that_points_elsewhere_is_not_believed(tmp_path):
    place = Place("test-place")
    precious = tmp_path / "gear-0123456789abcdef0123456789abcdef"
    precious.mkdir()
    (precious / "table-0").write_bytes(bytes(100))
    (runtime_directory() / "test-place.record").write_text(f'{{"directory": "{precious}"}}')
    place.claim(True, 1)
    assert (precious / "table-0").exists()
    place.leave(True)
