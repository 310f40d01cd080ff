"""Bad input, in process and through a server: each error says what was expected, what came and what to do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gear

TABLE = gear.Table(
    "replay",
    [gear.Column("obs", (3,), "float32"), gear.Column("reward", (), "float32")],
    gear.Steps(100),
    item=gear.Window(4),
    sampler=gear.Prioritized(0.6),
)


def good(steps: int = 5) -> dict[str, np.ndarray]:
    return {"obs": np.zeros((steps, 3), np.float32), "reward": np.zeros(steps, np.float32)}


@pytest.fixture(params=["inproc", "shm"])
def client(request, start_server):
    with contextlib.ExitStack() as stack:
        if request.param == "inproc":
            client = stack.enter_context(gear.embedded([TABLE]))
        else:
            client = stack.enter_context(gear.connect(start_server().address))
            client.create_table(TABLE)
        yield client


BAD_TRAJECTORIES = {
    "missing column": ({"obs": good()["obs"]}, r"reward"),
    "extra column": ({**good(), "action": np.zeros(5)}, r"action"),
    "wrong dtype": (
        {**good(), "obs": np.zeros((5, 3))},
        r"column 'obs': expected float32\[T, 3\], got float64\[5, 3\]; cast it or declare float64",
    ),
    "wrong shape": ({**good(), "obs": np.zeros((5, 4), np.float32)}, r"expected float32\[T, 3\], got float32\[5, 4\]"),
    "unequal lengths": (
        {**good(), "reward": np.zeros(4, np.float32)},
        r"columns have unequal lengths: obs 5, reward 4; expected one row per step",
    ),
    "zero steps": (good(0), r"(?i)no steps|zero|at least one"),
    "longer than the capacity": (good(101), r"101 steps does not fit .* capacity is 100 steps"),
}


@pytest.mark.parametrize("case", BAD_TRAJECTORIES)
def test_a_bad_trajectory_is_refused_and_changes_nothing(client, case):
    """Origin of some: SB3#40, TorchRL observed ({a, b} then {a}), ray#54284."""
    trajectory, message = BAD_TRAJECTORIES[case]
    client.insert(good())
    with pytest.raises(gear.DataError, match=message):
        client.insert(trajectory)
    info = client.info()["tables"]["replay"]
    assert (info["trajectories"], info["inserted_trajectories"]) == (1, 1)
    client.insert(good())
    assert client.info()["tables"]["replay"]["trajectories"] == 2


@pytest.mark.parametrize("priority", [np.nan, -1.0, np.inf])
def test_a_bad_priority_is_refused_and_the_table_goes_on(client, priority):
    """Origin: Reverb 0.14, observed."""
    with pytest.raises(gear.DataError, match="priorit.*finite|priorit.*nan|priorit.*negative|priorit.*inf"):
        client.insert(good(), priority=priority)
    client.insert(good())
    batch = client.sample(4, timeout=5.0, beta=0.4)
    with pytest.raises(gear.DataError, match=r"index 2|\b2\b"):
        client.update_priorities(batch.ids, [1.0, 1.0, priority, 1.0])
    assert client.update_priorities(batch.ids, [1.0, 1.0, 2.0, 1.0]).applied == 4


def test_an_unknown_table_shows_the_line_that_creates_it(client):
    with pytest.raises(gear.TableNotFound, match=r"table 'other' does not exist[\s\S]*gear\.\w+\([\s\S]*'?other'?"):
        client.insert(good(), "other")
    with pytest.raises(KeyError, match="does not exist"):
        client.sample(4, "other", timeout=1.0)


def test_an_unequal_table_of_the_same_name_is_refused_naming_the_difference(client):
    client.create_table(TABLE)
    other = gear.Table("replay", TABLE.columns, gear.Steps(200), item=gear.Window(4), sampler=gear.Prioritized(0.6))
    with pytest.raises(gear.TableMismatch, match=r"capacity: .*Steps\(n=100\).*Steps\(n=200\)"):
        client.create_table(other)


def test_a_sample_of_an_empty_table_times_out_in_time_and_says_why(client):
    """Origin: reverb#18: within 0.2 to 0.4 s, as a TimeoutError."""
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="holds 0 items and its limiter wants at least 1; insert more"):
        client.sample(4, timeout=0.2)
    assert time.monotonic() - start >= 0.2


def test_a_sample_without_a_timeout_waits_for_the_first_items(client):
    sizes = []
    thread = threading.Thread(target=lambda: sizes.append(len(client.sample(4).ids)))
    thread.start()
    client.insert(good())
    thread.join(20)
    assert sizes == [4]


def kill_shard(server) -> None:
    """SIGKILL the process that serves; its supervisor, told not to start another one, cleans up after it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == server.process.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)


@pytest.mark.parametrize("call", ["sample", "insert", "loader"])
def test_a_server_killed_in_mid_call_raises_a_connection_error(start_server, call):
    """Origin: reverb#18: never a hang."""
    server, checked = start_server("--max-restarts", "0"), False
    # Closing may say the same once more: an insert that was not acknowledged is never dropped in silence.
    with contextlib.suppress(gear.ConnectionLost), gear.connect(server.address) as client:
        client.create_table(
            gear.Table(
                "t", TABLE.columns, gear.Steps(100), limiter=gear.SampleToInsertRatio(1.0, 1, 2.0), item=gear.Whole()
            )
        )
        calls = {
            "sample": lambda: client.sample(64, "t"),
            "insert": lambda: [client.insert(good(), "t") for _ in range(50)],
            "loader": lambda: next(client.loader(64, "t")),
        }
        errors: list[BaseException] = []

        def run() -> None:
            try:
                calls[call]()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        kill_shard(server)
        thread.join(20)
        with pytest.raises(gear.GearError):
            client.sample(1, "t", timeout=5.0)
        checked = True
    assert checked
    assert not thread.is_alive()
    assert isinstance(errors[0], gear.ConnectionLost)


def test_garbage_on_the_port_disturbs_nobody(start_server):
    server = start_server()
    host, port = server.address.rsplit(":", 1)
    with gear.connect(server.address) as client:
        client.create_table(TABLE)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40, b"\xff" + bytes(9) + b"\x7f" + bytes(54)):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(junk)
        client.insert(good())
        assert client.info()["tables"]["replay"]["trajectories"] == 1
    with gear.connect(server.address) as client:
        assert len(client.sample(4, timeout=5.0).ids) == 4


def test_a_wrong_token_is_refused(start_server, tmp_path):
    path = tmp_path / "token"
    path.write_text("the right one")
    path.chmod(0o600)
    server = start_server("--token-file", str(path))
    with pytest.raises(gear.AuthenticationError, match="token is wrong.*--token-file"):
        gear.connect(server.address, token="another")
    with pytest.raises(PermissionError, match="wants a token and none was given"):
        gear.connect(server.address, token="")
    gear.connect(server.address, token="the right one").close()


def test_another_protocol_version_is_named(start_server, monkeypatch):
    from gear.transport import messages

    server = start_server()
    ours = messages.PROTOCOL
    monkeypatch.setattr(messages, "PROTOCOL", 99)
    with pytest.raises(
        gear.ProtocolError, match=f"client speaks protocol version 99, this end speaks {ours}; install the same release"
    ):
        gear.connect(server.address, timeout=5.0)


def test_no_server_is_a_connection_error_in_time():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConnectionError, match=address):
        gear.connect(address, timeout=0.5)
