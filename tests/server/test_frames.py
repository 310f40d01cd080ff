"""Frames of `gear top`: they fit 80 columns, rates are of two measurements, every figure has a unit."""

from __future__ import annotations

import copy
import io
import re
import time

import pytest
from rich.console import Console

from gear.server.frames import Measurement, fitted, frame
from gear.server.latency import BUCKETS

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
