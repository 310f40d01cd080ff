"""`gear top` as a command: in a terminal and out of one, of a server that comes and goes."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

import gear
from gear.server import cli, top
from gear.server.frames import Measurement
from tests.server.test_frames import SHARD, row
from tests.transport.helpers import table


def test_once_prints_one_frame_without_control_characters(server, capsys):
    with gear.connect(server.address) as client:
        client.create_table(table("top"))
        client.insert({"k": np.zeros(3, np.int64)}, "top")
        assert cli.main(["top", server.address, "--once", "--interval", "0.05"]) == 0
    text = capsys.readouterr().out
    assert row(text, "FLOW", "top")[3] == "0/s"
    assert "clients 1 connected, 0 silent" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_top_of_nobody_is_an_error(capsys):
    assert cli.main(["top", "127.0.0.1:1", "--once", "--timeout", "0.2"]) == 1
    assert "no gear-server answered at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon", "1e9"])
def test_a_wrong_interval_is_refused(interval, capsys):
    with pytest.raises(SystemExit):
        cli.main(["top", "127.0.0.1:1", f"--interval={interval}"])
    assert f"expected 0.01 to 3600 seconds, got '{interval}'" in capsys.readouterr().err


def test_without_rich_it_says_what_to_install(server, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert cli.main(["top", server.address, "--once"]) == 1
    assert "pip install 'gear-replay[watch]'" in capsys.readouterr().err


class Terminal:
    """`gear top` in a terminal of its own."""

    def __init__(self, address: str, before: str = "") -> None:
        code = before + "import sys; from gear.server.cli import main; sys.exit(main(sys.argv[1:]))"
        self.descriptor, inner = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "top", address, "--interval", "0.1"],
            stdin=inner, stdout=inner, stderr=inner, env=environment,
        )  # fmt: skip
        os.close(inner)
        self.text = ""

    def wait_for(self, pattern: str, seconds: float = 30.0) -> None:
        """Read until the pattern comes, in what has not been read before."""
        text, deadline = "", time.monotonic() + seconds
        while not re.search(pattern, text, re.S):
            assert time.monotonic() < deadline, f"no {pattern} in {text!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # its end is closed
                    text += os.read(self.descriptor, 65536).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.descriptor)


def test_it_goes_on_when_the_server_restarts_and_ends_clean_on_ctrl_c(start_server):
    server = start_server("--client-timeout", "0.5")
    port = server.address.rpartition(":")[2]
    terminal = Terminal(server.address)
    try:
        terminal.wait_for(r"1 of 1 shard up")
        server.stop()
        terminal.wait_for(r"the server does not answer")
        again = start_server("--port", port)
        with gear.connect(again.address) as client:
            client.create_table(table("fresh"))
        terminal.wait_for(r"1 of 1 shard up.*fresh")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for(r"\x1b\[\?1049l")  # the screen from before is back
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


def test_ctrl_c_ends_it_where_it_began_with_the_signal_ignored(server):
    """As shells without job control start what goes on in the background."""
    terminal = Terminal(server.address, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); ")
    try:
        terminal.wait_for(r"1 of 1 shard up")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for(r"\x1b\[\?1049l")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()


def test_a_ctrl_c_that_comes_in_a_callback_is_not_lost(monkeypatch):
    """Python reports what is raised in the callback of a weakref, and goes on."""
    handler, looked, lost = signal.getsignal(signal.SIGINT), [], []

    def look(address: str, token: str, timeout: float, keys: None) -> Measurement:
        looked.append(address)
        assert len(looked) < 5, "it went on"
        if len(looked) == 3:
            dying = {0}
            reference = weakref.ref(dying, lambda _: signal.raise_signal(signal.SIGINT))
            del dying
            assert reference() is None
        return Measurement(float(len(looked)), "server", 1, {0: SHARD})

    monkeypatch.setattr(top, "look", look)
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    assert cli.main(["top", "localhost", "--interval", "0.01"]) == 0
    assert (lost, len(looked)) == ([KeyboardInterrupt], 3)
    assert signal.getsignal(signal.SIGINT) is handler
