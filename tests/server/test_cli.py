from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gear.errors import AuthenticationError
from gear.server import cli
from gear.server.config import parse_size, read_token
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.discovery import check_token
from gear.transport.negotiation import connect
from tests.transport.helpers import table


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gear.server", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_ready_line_is_the_only_one_and_says_address_name_devices_and_memory(start_server):
    server = start_server("--memory", "256MiB")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", server.address)
    assert server.fields == {
        "address": server.address, "name": server.name, "devices": "cpu", "memory": "256.00MiB"
    }  # fmt: skip
    server.process.terminate()
    assert server.process.stdout.read() == b""
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("97", "GPU 97 is not there"),
        ("0,98", r"GPU .*98 is not there"),
        ("cpu:0", "expected 1 to 256 shards"),
        ("cpu:257", "expected 1 to 256 shards"),
        ("tpu", "expected 'cpu', 'cpu:N' or GPU numbers like '0,1'"),
    ],
)
def test_devices_that_are_not_there_are_an_error_and_never_another_device(devices, message):
    ended = run("--devices", devices, "--port", "0")
    assert ended.returncode == 2
    assert re.search(f"gear-server: error: --devices .*{message}", ended.stderr)
    assert ended.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "plenty"),
        ("--port", "70000"),
        ("--name", "../x"),
        ("--client-timeout", "0"),
        ("--log-level", "loud"),
    ],
)
def test_bad_options_are_refused_naming_them(arguments):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert arguments[0] in ended.stderr
    assert arguments[1] in ended.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("8GiB", 8 << 30),
        ("8g", 8 << 30),
        ("500MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("2tib", 2 << 40),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1 parsec", "1e9"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


def test_an_address_beyond_loopback_needs_a_token():
    ended = run("--host", "0.0.0.0", "--port", "0")
    assert ended.returncode == 2
    assert "not loopback: a token is required" in ended.stderr


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a-long-secret\n")
    path.chmod(0o600)
    return path


def test_a_token_file_that_others_can_read_is_refused(token_file):
    token_file.chmod(0o644)
    ended = run("--token-file", str(token_file), "--port", "0")
    assert ended.returncode == 2
    assert f"its mode is 0644, expected that only its owner can read it; chmod 600 {token_file}" in ended.stderr
    assert "a-long-secret" not in ended.stderr


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o610, 0o777])
def test_a_token_file_is_the_owners_alone(token_file, mode, capsys):
    """Origin: a file that its group could read was taken."""
    token_file.chmod(mode)
    message = f"its mode is {mode:04o}, .*; chmod 600 {re.escape(str(token_file))}"
    with pytest.raises(AuthenticationError, match=message):
        read_token(str(token_file), "127.0.0.1")
    assert cli.main(["info", "127.0.0.1:1", "--token-file", str(token_file)]) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_token_file_that_only_its_owner_can_read_is_taken(token_file, mode):
    token_file.chmod(mode)
    assert read_token(str(token_file), "0.0.0.0") == "a-long-secret"


def test_a_path_that_a_shell_would_split_is_quoted(tmp_path):
    path = tmp_path / "my token"
    path.write_text("a-long-secret")
    path.chmod(0o640)
    with pytest.raises(AuthenticationError, match=f"chmod 600 '{re.escape(str(path))}'"):
        read_token(str(path), "127.0.0.1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"short\n", "expected a token of 8 to 4096 characters, got 5"),
        (b"", "8 to 4096 characters, got 0"),
        (b"x" * 4097, "8 to 4096 characters, got 4097"),
        (b"x" * 60_000 + b"\n", "8 to 4096 characters, got 60000"),
        (b" " * 4090 + b"x" * 5000, "8 to 4096 characters, got 5000"),
        (b"x" * 70_000, "8 to 4096 characters, got a file of more than 65536 bytes"),
        (b"hidden-\xff\xfe-hidden", "in UTF-8, got a file whose byte 7 is none; write a new one"),
        (None, "No such file"),
    ],
)
def test_a_token_file_without_a_usable_token_is_refused(tmp_path, content, message, capsys):
    """Origin: a token of 5000 characters was said to have 4097, or cut; bytes that are no text were shown."""
    path = tmp_path / "token"
    if content is not None:
        path.touch(0o600)
        path.write_bytes(content)
    assert cli.server_main(["--token-file", str(path), "--port", "0"]) == 2
    assert cli.main(["info", "127.0.0.1:1", "--token-file", str(path)]) == 1
    shown = capsys.readouterr().err.splitlines()
    assert [f"--token-file {path}: " in line and message in line for line in shown] == [True, True]
    assert "hidden" not in "".join(shown)
    assert "xxxx" not in "".join(shown)


@pytest.mark.parametrize("content", ["x" * 4096 + "\n", "\u00e9" * 4096, "\n\n eight888 \n"])
def test_the_longest_and_the_shortest_token_are_taken(tmp_path, content):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(content, encoding="utf-8")
    token = read_token(str(path), "127.0.0.1")
    assert token == content.strip()
    check_token(token)
    message = m.Envelope(m.PROTOCOL, 0, 0, [], m.Discover(token))
    assert wire.decode_request([wire.encode(message)]).body.token == token


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("x" * 4097, "expected a text of at most 4096 characters, got 4097; give what the server's --token-file"),
        ("x" * 100_000, "expected a text of at most 4096 characters, got 100000"),
        ("hidden-\udcff", "expected a text of at most 4096 characters in UTF-8, got one whose character 7 is none"),
    ],
)
def test_a_token_that_no_message_carries_is_refused_as_such(server, token, message, monkeypatch):
    """Origin: the wire said ProtocolError, or UnicodeEncodeError for bytes of GEAR_TOKEN that are no UTF-8."""
    monkeypatch.setenv("GEAR_TOKEN", token)
    for given in (token, None):
        with pytest.raises(AuthenticationError, match=f"token=... or GEAR_TOKEN: {message}") as refused:
            connect(server.address, given, timeout=5.0)
        assert "hidden" not in str(refused.value)


def test_a_token_of_bytes_is_refused(server):
    with pytest.raises(AuthenticationError, match="expected a text of at most 4096 characters, got bytes; give a str"):
        connect(server.address, b"a-long-secret", timeout=5.0)


def test_a_server_with_a_token_lets_in_who_has_it_and_shows_it_to_nobody(start_server, token_file, monkeypatch):
    server = start_server("--token-file", str(token_file), "--log-level", "debug")
    for token, message in (("wrong-secret", "the token is wrong"), (None, "wants a token and none was given")):
        with pytest.raises(AuthenticationError, match=f"{message}; pass token=... or set GEAR_TOKEN"):
            connect(server.address, token, 5.0)
    session = connect(server.address, "a-long-secret", 5.0)
    session.create_table(table(), 60.0)
    shard = session.info(60.0)["pid"]
    session.close()
    monkeypatch.setenv("GEAR_TOKEN", "a-long-secret")
    connect(server.address, timeout=60.0).close()
    for pid in (server.process.pid, shard):
        assert b"a-long-secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"a-long-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert "secret" not in server.log.read_text()


def test_the_shard_wants_the_token_too(start_server, token_file):
    from gear.transport.discovery import discover
    from gear.transport.shm import ShmSession

    server = start_server("--token-file", str(token_file))
    shard = discover(server.address, "a-long-secret", 60.0).shards[0]
    for endpoint in (f"tcp://127.0.0.1:{shard.port}", f"ipc://{shard.socket}"):
        with pytest.raises(AuthenticationError, match="the token is wrong"):
            ShmSession(endpoint, "wrong-secret", 1.0, 5.0)


def test_gear_info_shows_the_figures(server, session, name, capsys):
    session.create_table(table(name), 60.0)
    assert cli.main(["info", server.address, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["name"] == server.name
    assert figures["tables"][name]["items"] == 0
    assert cli.main(["info", server.address]) == 0
    assert f"  {name}:\n" in capsys.readouterr().out


def test_a_token_for_a_server_that_takes_none_is_told_apart_from_a_wrong_one(server):
    with pytest.raises(AuthenticationError, match="was started without --token-file and takes no token"):
        connect(server.address, "a-long-secret", 5.0)


def test_a_reader_that_hears_no_more_ends_the_command_quietly(server):
    """Origin: `gear info ADDRESS | head` showed a BrokenPipeError."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys; from gear.server.cli import main; sys.exit(main())", "info"]
    ended = subprocess.run([*command, server.address], stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_an_unknown_host_is_told_apart_from_a_silent_one(capsys):
    assert cli.main(["info", "no-such-host.invalid:7400", "--timeout", "0.1"]) == 1
    error = capsys.readouterr().err
    assert re.search("the host name 'no-such-host.invalid' of 'no-such-host.invalid:7400' is unknown", error)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("900TiB", r"--memory 900\.00 TiB \(\d+ bytes\): expected at most .* (/dev/shm|memory)"),
        ("10", "--memory 10 B: expected at least 1.00 MiB; a number without a unit is bytes, give a size like 10GiB"),
    ],
)
def test_a_memory_that_cannot_have_been_meant_is_refused_with_sizes(size, message, capsys):
    assert cli.server_main(["--memory", size, "--port", "0"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_help_says_what_each_option_is_when_it_is_not_given():
    for action in cli._server_parser()._actions:
        if action.nargs != 0 and action.default is not None:
            assert "(default" in action.help, action.option_strings


def test_gear_info_of_nobody_is_an_error(capsys):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        assert cli.main(["info", f"127.0.0.1:{port}", "--timeout", "0.2"]) == 1
    assert f"no gear-server answered at 127.0.0.1:{port}" in capsys.readouterr().err


def test_commands_show_their_help_and_version(capsys):
    for main in (cli.main, cli.server_main):
        for option in ("--help", "--version"):
            with pytest.raises(SystemExit) as ended:
                main([option])
            assert ended.value.code == 0
    assert "gear-server" in capsys.readouterr().out


def test_the_command_line_needs_no_kernels_to_say_what_is_wrong():
    code = (
        "import sys; from gear.server import cli; cli.server_main(['--devices', '97']); print('numba' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert ended.stdout == "False\n"
