"""CURVE keys: made private, never written over, needed beyond loopback; who has none, or others, is told so."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import gear
from gear.errors import AuthenticationError
from gear.server import cli, config
from gear.server.keys import ALLOWED, Gate, ServerKeys, make_client, make_keys
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import context
from gear.transport.discovery import discover
from gear.transport.keys import client_keys, secure

TABLE = gear.Table("t", [gear.Column("x", (4,))], gear.Steps(1000), item=gear.Whole())


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secret") / "keys"
    make_keys(directory)
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secret_keys_are_their_owners_alone_and_no_two_are_alike(keys, tmp_path):
    make_keys(tmp_path / "others")
    assert [mode(keys / name) for name in ("server.key", "client.key", "", ALLOWED)] == [0o600, 0o600, 0o700, 0o700]
    texts = {(d / name).read_text() for d in (keys, tmp_path / "others") for name in ("server.key", "client.key")}
    assert len(texts) == 4
    for name in ("server.pub", "clients/first.pub"):
        assert "secret" not in (keys / name).read_text()


def test_keys_are_never_written_over(keys):
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    with pytest.raises(AuthenticationError, match="is there already: keys are never written over"):
        make_keys(keys)
    assert {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()} == before


def test_the_command_makes_keys_and_says_who_gets_which(tmp_path, capsys):
    where = tmp_path / "keys"
    assert cli.main(["keys", "new", str(where)]) == 0
    assert "copy client.key (mode 0600) and server.pub" in capsys.readouterr().out
    assert cli.main(["keys", "client", str(where), str(tmp_path / "actor-7")]) == 0
    assert str(where / "clients" / "actor-7.pub") in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "actor-7").iterdir()} == {"client.key", "server.pub"}
    assert cli.main(["keys", "client", str(where), str(tmp_path / "actor-7")]) == 1
    assert "never written over" in capsys.readouterr().err


@pytest.mark.parametrize("who", ["server.key", "client.key"])
@pytest.mark.parametrize("wrong", [0o640, 0o604, None, b"", b'secret-key = "short"'])
def test_key_files_that_others_can_read_or_that_hold_none_are_refused(keys, tmp_path, who, wrong):
    mine = tmp_path / "keys"
    shutil.copytree(keys, mine)
    path = mine / who
    if wrong is None:
        path.unlink()
    elif isinstance(wrong, int):
        path.chmod(wrong)
    else:
        path.write_bytes(wrong)
    message = {None: "No such file"}.get(wrong, "only its owner can read it; chmod 600|expected a pair of CURVE keys")
    with pytest.raises(AuthenticationError, match=message) as refused:
        ServerKeys(str(mine)) if who == "server.key" else client_keys(mine)
    assert "secret-key" not in str(refused.value)


def test_a_secret_key_is_not_taken_for_a_public_one(keys, tmp_path):
    mine = tmp_path / "keys"
    shutil.copytree(keys, mine)
    shutil.copy(mine / "server.key", mine / "server.pub")
    with pytest.raises(AuthenticationError, match="expected one public CURVE key"):
        client_keys(mine)


def test_an_address_beyond_loopback_needs_keys_beside_the_token(keys, tmp_path, capsys):
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a-long-secret")
    assert cli.server_main(["--host", "0.0.0.0", "--port", "0", "--token-file", str(token)]) == 2
    message = capsys.readouterr().err
    assert re.search("--host 0.0.0.0 is not loopback: CURVE keys are required.*gear keys new.*GEAR_CURVE_KEYS", message)
    assert cli.server_main(["--host", "0.0.0.0", "--port", "0", "--curve-keys", str(keys)]) == 2
    assert "not loopback: a token is required" in capsys.readouterr().err
    assert config.read_keys(str(keys), "0.0.0.0") == str(keys)


@pytest.fixture(scope="module")
def secrets(keys: Path) -> list[bytes]:
    """What must be seen nowhere."""
    found = [re.search(rb'secret-key = "(.*)"', (keys / name).read_bytes()) for name in ("server.key", "client.key")]
    return [match[1] for match in found if match] + [b"a-long-secret"]


def test_with_keys_and_token_everything_works_over_either_path_and_no_secret_is_shown(
    keys, secrets, start_server, tmp_path, monkeypatch
):
    """Actors need no change: keys and token come from the environment."""
    token, tables = tmp_path / "token", tmp_path / "tables.toml"
    token.touch(0o600)
    token.write_text("a-long-secret")
    tables.write_text('[table.other]\ncolumns = [{ name = "x" }]\ncapacity = { type = "steps", n = 100 }\n')
    server = start_server(
        "--token-file", str(token), "--curve-keys", str(keys), "--devices", "cpu:2", "--log-level", "debug",
        "--tables", str(tables),
    )  # fmt: skip
    monkeypatch.setenv("GEAR_CURVE_KEYS", str(keys))
    monkeypatch.setenv("GEAR_TOKEN", "a-long-secret")
    for path in ("tcp", "shm"):
        with gear.connect(server.address, path=path) as client:
            client.create_table(TABLE)
            for _ in range(20):
                client.insert({"x": [[1, 2, 3, 4]] * 5}, "t")
            assert client.sample(8, "t", timeout=60.0)["x"].sum() == 8 * 50
            pids = [state["pid"] for state in client.info()["shards"].values()]
    monkeypatch.delenv("GEAR_CURVE_KEYS")
    for wrong, message in (
        ("", "wants CURVE keys and none were given; pass curve_keys=... or set GEAR_CURVE_KEYS"),
        (_stranger(keys, tmp_path), "does not know this client's CURVE key"),
    ):
        with pytest.raises(AuthenticationError, match=message):
            gear.connect(server.address, curve_keys=wrong, timeout=10.0)
    with pytest.raises(AuthenticationError, match="the token is wrong"):
        gear.connect(server.address, token="wrong-secret", curve_keys=keys)
    for pid in (server.process.pid, *pids):
        for what in ("cmdline", "environ", "comm"):
            seen = Path(f"/proc/{pid}/{what}").read_bytes()
            assert not [secret for secret in (*secrets, b"wrong-secret") if secret in seen]
    log = server.log.read_bytes()
    assert b"its key is not among those in clients" in log
    assert not [secret for secret in (*secrets, b"wrong-secret") if secret in log]


def _stranger(keys: Path, tmp_path: Path) -> Path:
    """Keys that are in order but not among those of the server."""
    make_client(keys, tmp_path / "stranger")
    (keys / ALLOWED / "stranger.pub").unlink()
    return tmp_path / "stranger"


def test_a_server_of_other_keys_is_not_spoken_to(keys, start_server, tmp_path):
    """Who stands in for the server's address gets neither token nor rows."""
    make_keys(tmp_path / "others")
    server = start_server("--curve-keys", str(tmp_path / "others"))
    with pytest.raises(gear.ConnectionLost, match="server.pub in the directory of keys may be another server's"):
        gear.connect(server.address, curve_keys=keys, timeout=1.0)
    plain = start_server()
    with pytest.raises(AuthenticationError, match="does not use CURVE keys"):
        gear.connect(plain.address, curve_keys=keys, timeout=10.0)


def test_the_shards_port_is_guarded_as_the_public_one(keys, start_server):
    server = start_server("--curve-keys", str(keys))
    shard = discover(server.address, "", 60.0, client_keys(keys)).shards[0]
    one = context().socket(zmq.DEALER)
    monitor = one.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    try:
        one.linger = 0
        one.connect(f"tcp://127.0.0.1:{shard.port}")
        one.send(wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Hello(os.urandom(16), "", 1))))
        assert monitor.poll(60_000), "a client without keys was let in"
        assert not one.poll(0)
    finally:
        one.disable_monitor()
        monitor.close(0)
        one.close(0)


@pytest.mark.parametrize(("gate", "told"), [(True, zmq.EVENT_HANDSHAKE_FAILED_AUTH), (False, zmq.EVENT_DISCONNECTED)])
def test_nobody_is_let_in_when_it_cannot_be_found_out_who_may(keys, monkeypatch, gate, told):
    def allows(self: ServerKeys, public: bytes) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ServerKeys, "allows", allows)
    server, guard = zmq.Context(), ServerKeys(str(keys))
    router = server.socket(zmq.ROUTER)
    router.linger = 0
    if gate:
        Gate(server, guard)
    guard.guard(router)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        for _ in range(2):  # the first may have ended who answers
            one = context().socket(zmq.DEALER)
            one.linger = 0
            monitor = one.get_monitor_socket(told | zmq.EVENT_HANDSHAKE_SUCCEEDED)
            secure(one, "tcp:", client_keys(keys))
            one.connect(f"tcp://127.0.0.1:{port}")
            event = recv_monitor_message(monitor)["event"] if monitor.poll(60_000) else None
            one.disable_monitor()
            monitor.close(0)
            one.close(0)
            assert event == told
    finally:
        router.close(0)
        server.term()


def test_a_client_that_was_taken_away_or_added_counts_from_the_next_connection_on(keys, start_server, tmp_path, capsys):
    server = start_server("--curve-keys", str(keys))
    make_client(keys, tmp_path / "actor")
    assert cli.main(["info", server.address, "--json", "--curve-keys", str(tmp_path / "actor")]) == 0
    assert json.loads(capsys.readouterr().out)["host"] == "127.0.0.1"
    (keys / ALLOWED / "actor.pub").unlink()
    assert cli.main(["info", server.address, "--curve-keys", str(tmp_path / "actor")]) == 1
    assert "does not know this client's CURVE key" in capsys.readouterr().err


def test_a_shard_that_is_started_again_has_the_keys_of_its_server_whatever_has_become_of_the_file(
    keys, start_server, tmp_path
):
    theirs = tmp_path / "keys"
    shutil.copytree(keys, theirs)
    server = start_server("--curve-keys", str(theirs))
    with gear.connect(server.address, path="tcp", curve_keys=keys) as client:
        client.create_table(TABLE)
        client.insert({"x": [[1, 2, 3, 4]] * 5}, "t")
        (theirs / "server.key").write_text("written over")
        os.kill(client.info()["pid"], signal.SIGKILL)
        assert client.sample(2, "t", timeout=20.0)["x"].sum() == 100


def test_what_holds_a_secret_does_not_show_it(keys, secrets):
    guard = ServerKeys(str(keys))
    options = config.Options(
        "n", "h", 1, "cpu", 1, "a-long-secret", "info", False, 1.0, curve_keys=str(keys)
    )  # fmt: skip
    told = config.ShardOptions(
        "n", "h", 0, 1, "d", 1, "a-long-secret", "info", False, 1.0, 1, str(keys), curve_pair=guard.pair
    )
    shown = [options, told, m.Discover("a-long-secret"), m.Hello(bytes(16), "a-long-secret", 1), client_keys(keys)]
    for text in [repr(one) for one in shown] + [repr(m.Envelope(3, 0, 0, [], shown[2]))]:
        assert not [secret for secret in secrets if secret.decode() in text]
    assert told.encrypted
