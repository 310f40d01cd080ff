"""`gear top`: frames that fit 80 columns, rates of two measurements, a server that comes and goes."""

from __future__ import annotations

import contextlib
import copy
import io
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
from rich.console import Console

import gear
from gear.server import cli, top
from gear.server.frames import Measurement, fitted, frame
from gear.server.latency import BUCKETS
from tests.transport.helpers import table

SHARD = {
    "pid": 5, "uptime": 7_260.0, "memory_limit": 8 << 30, "segment_bytes": 5 << 20,
    "clients": {"connected": 12, "silent": 1}, "messages": {"received": 900, "refused": 2, "dropped": 0},
    "requests": {"select": {"buckets": [0] * 6 + [99, 1] + [0] * (BUCKETS - 7), "seconds": 0.01}},
    "tables": {"replay": {
        "steps": 500, "capacity": {"steps": 1000}, "payload_bytes": 34_000, "inserted_items": 100,
        "inserted_bytes": 10_000, "draws": 300, "sampled_bytes": 40_000, "blocked_writer_seconds": 1.0,
        "blocked_reader_seconds": 0.0, "stale_updates": 7, "evicted_early": 0, "quarantined_blocks": 3,
        "block_bytes": 4096,
    }},
}  # fmt: skip


def shown(now: Measurement, before: Measurement | None, width: int = 80, trouble: str = "") -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(frame("localhost:7400", now, before, trouble))
    return console.file.getvalue()


def after(shard: dict, seconds: float = 2.0, **changed: float) -> Measurement:
    later = copy.deepcopy(shard)
    for name, value in changed.items():
        later["tables"]["replay"][name] += value
    later["requests"]["select"]["buckets"][6] += 100
    return Measurement(10.0 + seconds, "server", 1, {0: later})


BEFORE = Measurement(10.0, "server", 1, {0: SHARD})


def row(text: str, heading: str, name: str) -> list[str]:
    """The cells of the line that begins with `name` under a heading."""
    lines = text.partition(heading)[2].splitlines()
    return re.split(r"  +", next(line for line in lines if line.startswith(name)).strip())


def test_rates_are_differences_over_the_time_between():
    now = after(
        SHARD, 2.0, inserted_items=5000, inserted_bytes=4 << 20, draws=90, sampled_bytes=1024,
        blocked_writer_seconds=3.0, blocked_reader_seconds=0.5, stale_updates=4, evicted_early=1,
    )  # fmt: skip
    text = shown(now, BEFORE)
    assert row(text, "FLOW", "replay") == [
        "replay", "50 %", "33.2 KiB", "2.50k/s", "2.00 MiB/s", "45/s", "512 B/s"
    ]  # fmt: skip
    assert row(text, "WAIT", "replay") == ["replay", "1.50 s/s", "0.25 s/s", "2/s", "0.50/s", "12.0 KiB"]
    assert row(text, "REQUESTS", "select") == ["select", "50/s", "49.2 µs", "65.2 µs", "200"]


def test_of_one_measurement_what_is_per_second_is_not_known():
    text = shown(BEFORE, None)
    assert row(text, "FLOW", "replay") == ["replay", "50 %", "33.2 KiB", "–", "–", "–", "–"]
    assert row(text, "REQUESTS", "select")[1] == "–"


def test_a_restarted_shard_has_no_rates_rather_than_negative_ones():
    again = copy.deepcopy(SHARD)
    again["pid"] += 1
    again["tables"]["replay"]["inserted_items"] = 1
    assert row(shown(Measurement(12.0, "server", 1, {0: again}), BEFORE), "FLOW", "replay")[3] == "–"


def test_the_head_says_what_is_up():
    text = shown(Measurement(12.0, "server", 2, {0: SHARD}), BEFORE)
    assert "gear top localhost:7400  server\n1 of 2 shards up for 2 h 01 min  memory 5.00 MiB of 8.00 GiB\n" in text
    assert "clients 12 connected, 1 silent  messages refused 2\n" in text
    assert "restarted" not in text
    assert "checkpoint" not in text
    assert "what follows is of the shards that answer" in text
    assert "what follows" not in shown(after(SHARD), BEFORE)
    assert "0 of 2 shards up" in shown(Measurement(12.0, "server", 2), BEFORE)
    assert "the server is away" in shown(BEFORE, None, trouble="the server is away")


@pytest.mark.parametrize("width", [80, 120])
def test_a_frame_fits_its_terminal_and_cuts_nothing_but_long_names(width):
    shard = copy.deepcopy(SHARD)
    shard["tables"]["x" * 128] = {**SHARD["tables"]["replay"]}
    grown = copy.deepcopy(shard)
    for figures in grown["tables"].values():
        figures.update(
            {name: value + 999 * 2**40 for name, value in figures.items() if isinstance(value, (int, float))}
        )
    before, now = (Measurement(at, "s", 1, {0: one}) for at, one in ((0.0, shard), (1.0, grown)))
    text = shown(now, before, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("…") == 2, "something but the long name in two tables was cut"


def test_every_figure_has_a_unit_or_is_a_plain_count():
    text = shown(after(SHARD, 2.0, inserted_items=5), BEFORE)
    for heading in ("FLOW", "WAIT"):
        for cell in row(text, heading, "replay")[1:]:
            assert re.search(r"(%|B|/s)$", cell), cell
    assert [cell[-1] for cell in row(text, "REQUESTS", "select")[1:4]] == ["s", "s", "s"]


def test_the_head_tells_of_mishaps_and_of_the_last_checkpoint():
    shard = SHARD | {
        "restarts": 3, "lost_with_device": {"trajectories": 12_345},
        "checkpoint": {"failures": 2, "last_time": time.time() - 65, "bytes": 3 << 20},
    }  # fmt: skip
    text = shown(Measurement(12.0, "server", 1, {0: shard}), None)
    assert "messages refused 2\nshards restarted 3  checkpoints failed 2\n" in text
    assert "lost with the memory of a device 12.3k trajectories\n" in text
    assert re.search(r"checkpoint 3.00 MiB 1 min 0\d s ago\n", text)


def test_a_server_without_tables_says_so():
    text = shown(*[Measurement(at, "server", 1, {0: SHARD | {"tables": {}, "requests": {}}}) for at in (12.0, 10.0)])
    assert "no tables" in text
    assert "FLOW" not in text
    assert "REQUESTS" not in text


def test_requests_of_those_who_watch_are_left_out():
    rows = dict.fromkeys(("attach", "goodbye", "measure", "select"), SHARD["requests"]["select"])
    text = shown(Measurement(12.0, "server", 1, {0: SHARD | {"requests": rows}}), None)
    assert [line.split()[0] for line in text.partition("REQUESTS")[2].splitlines()[2:]] == ["select"]


def test_long_names_of_consumers_cut_no_figures():
    shard = copy.deepcopy(SHARD)
    line = {"waiting": 999_000_000, "claimed": 999_000_000, "acknowledged": 999_000_000, "dropped": 999_000_000}
    shard["tables"] = {"t" * 128: shard["tables"]["replay"] | {"consumers": {"c" * 128: line}}}
    text = shown(Measurement(12.0, "server", 1, {0: shard}), None)
    found = next(one for one in text.partition("CONSUMERS")[2].splitlines() if one.startswith("ttt"))
    assert re.fullmatch(r"t+…  +c+…" + r"  +999M" * 4, found)


def test_a_long_name_takes_room_that_the_other_leaves():
    shard, line = copy.deepcopy(SHARD), dict.fromkeys(("waiting", "claimed", "acknowledged", "dropped"), 0)
    shard["tables"]["replay"]["consumers"] = {"c" * 26: line}
    assert row(shown(Measurement(12.0, "server", 1, {0: shard}), None), "CONSUMERS", "replay")[1] == "c" * 26


def test_in_a_wide_terminal_figures_stay_near_the_names():
    assert max(map(len, shown(after(SHARD), BEFORE, 300).splitlines())) == 80
    named = copy.deepcopy(SHARD)
    named["tables"]["n" * 128] = named["tables"]["replay"]
    assert "…" not in shown(Measurement(12.0, "server", 1, {0: named}), None, 300)


def test_a_terminal_too_low_for_a_frame_says_how_much_is_missing():
    picture = frame("localhost:7400", after(SHARD), BEFORE)
    heights = {}
    for height in (8, 30):
        console = Console(width=80, height=height, file=io.StringIO())
        console.print(fitted(picture, console))
        heights[height] = console.file.getvalue().splitlines()
    assert len(heights[8]) == 8
    assert heights[8][:7] == heights[30][:7]
    missing = len(heights[30]) - 7
    assert heights[8][7] == f"{missing} more lines: make the terminal higher, or use --once"


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
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()


def test_ctrl_c_ends_it_where_it_began_with_the_signal_ignored(server):
    """As shells without job control start what goes on in the background."""
    terminal = Terminal(server.address, "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); ")
    try:
        terminal.wait_for(r"1 of 1 shard up")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for(r"\x1b\[\?1049l")
        assert terminal.process.wait(10) == 0
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


def test_what_comes_after_the_insert_is_shown_where_there_is_any():
    shard = copy.deepcopy(SHARD)
    assert "CONSUMERS" not in shown(after(shard), BEFORE)
    assert "AFTER THE INSERT" not in shown(after(shard), BEFORE)
    line = {"waiting": 5, "claimed": 4, "served": 9, "acknowledged": 3, "dropped": 2}
    shard["tables"]["replay"] |= {
        "consumers": {"trainer": line}, "version": 7, "expired_trajectories": 3, "filled_trajectories": 100,
        "gathering_groups": 6, "filtered_groups": 1, "late_groups": 1, "completed_groups": 8, "open_trajectories": 2,
    }  # fmt: skip
    text = shown(after(shard, 2.0, filled_trajectories=10), Measurement(10.0, "server", 1, {0: shard}))
    assert row(text, "CONSUMERS", "replay") == ["replay", "trainer", "5", "4", "3", "2"]
    assert row(text, "AFTER THE INSERT", "replay") == ["replay", "7", "3", "5/s", "6", "2", "2"]
    assert max(map(len, text.splitlines())) <= 80
