"""Figures: who takes turns, what a ratio is, which bars are held, and that a wrong batch is seen."""

from __future__ import annotations

import numpy as np
import pytest

import gear
from benchmarks import cpu
from benchmarks.bars import Bar, Growth, Within
from benchmarks.data import COLUMNS
from benchmarks.measure import Candidate, Finding, Measurement, WrongResult
from benchmarks.workloads import Expected, Frames, check_items, piece, trajectories, transitions


def measured(*candidates: Candidate, limits=(), **rest) -> Measurement:
    return Measurement(
        "name", "work", list(candidates), list(limits), per_call=10, unit="things", calls=2, budget=1e9, **rest
    )


def told(name: str, *seconds: float, **rest) -> Candidate:
    """A candidate whose rounds took so long; it is warmed up by three calls."""
    times = iter([0, 0, 0, *(second for second in seconds for _ in range(2))])
    return Candidate(name, lambda k: next(times), timed=True, **rest)


def test_candidates_take_turns_and_pieces_of_work_go_on_from_round_to_round():
    seen: list[tuple[str, int]] = []
    one = Candidate("one", lambda k: seen.append(("one", k)))
    two = Candidate("two", lambda k: seen.append(("two", k)))
    measured(one, limits=[two]).run(2)
    warm_up = [(name, k) for name in ("one", "two") for k in (0, 0, 1)]
    assert seen == warm_up + [(name, k) for turn in (0, 2) for name in ("one", "two") for k in (turn, turn + 1)]


def test_a_ratio_is_that_of_each_round_and_the_bar_is_held_by_its_median():
    measurement = measured(
        told("gear", 1, 6, 2), limits=[told("limit", 1, 2, 4)], bars=[Bar(1, "lim"), Bar(1.1, "lim")]
    )
    measurement.run(3)
    record = measurement.record()
    ours, limit = record["candidates"]
    assert (limit["ratio"], limit["ratio_range"]) == (1.0, [pytest.approx(1 / 3), 2.0])
    assert (ours["us"], ours["us_range"], record["rounds"]) == (2e5, [1e5, 6e5], 3)
    assert [bar["held"] for bar in record["bars"]] == [True, False]


def test_the_fastest_peer_counts_by_what_it_does_per_call():
    measurement = measured(told("gear", 1, 1), bars=[Bar(2, "peers")])
    measurement.peers = [told("slow", 30, 30), told("small calls", 0.3, 0.3, per_call=1)]
    measurement.run(2)
    (bar,) = measurement.record()["bars"]
    assert (bar["against"], bar["held"]) == ("small calls", True)
    assert bar["value"] == pytest.approx(3)


def test_a_bar_without_the_peer_is_not_held_but_not_measured():
    measurement = measured(told("gear", 1), bars=[Bar(2, "peers"), Bar(2, "Reverb")])
    measurement.run(1)
    assert [bar["held"] for bar in measurement.record()["bars"]] == [None, None]


def test_bars_in_seconds_and_of_growth():
    growth = Growth(1.2, ("gear", "gear, small"), ("take", "take, small"))
    measurement = measured(
        told("gear", 3, 3), told("gear, small", 1, 1), limits=[told("take", 5, 5), told("take, small", 2, 2)],
        bars=[Within(0.29), Within(0.31), growth],
    )  # fmt: skip
    measurement.run(2)
    bars = measurement.record()["bars"]
    assert [bar["held"] for bar in bars] == [False, True, True]
    assert bars[2]["value"] == pytest.approx(3 / 2.5)


def test_a_wrong_result_of_ours_raises_and_one_of_a_peer_costs_its_figure():
    def wrong() -> None:
        raise WrongResult("rows differ")

    measurement = measured(told("gear", 1, 1))
    measurement.peers = [told("peer", 1, 1, check=wrong)]
    measurement.run(2)
    assert measurement.record()["wrong"] == ["peer: rows differ"]
    assert len(measurement.record()["candidates"]) == 1
    with pytest.raises(WrongResult, match="rows differ"):
        measured(told("gear", 1, 1, check=wrong)).run(2)


def test_a_finding_says_which_of_its_values_are_too_large():
    finding = Finding("name", "work", "bytes", lambda: ({"all": 1.2}, [("<= 1.1", 1.2, 1.1), ("<= 1.3", 1.2, 1.3)]))
    finding.run(5)
    assert [bar["held"] for bar in finding.record()["bars"]] == [False, True]


def test_cpu_time_is_counted_where_time_goes_by_unused_too():
    import os
    import time

    before = cpu.spent([os.getpid()])
    start = time.process_time()
    while time.process_time() - start < 0.02:
        pass
    assert 0.02 <= cpu.spent([os.getpid()]) - before < 5
    assert os.getpid() in cpu.tree([os.getppid()])


@pytest.mark.parametrize("item", [gear.Step(), gear.Window(4)])
@pytest.mark.parametrize("column", ["obs", "action", "reward", "done"])
def test_a_batch_with_one_wrong_value_is_seen(item, column):
    data = transitions(60)
    with gear.embedded([gear.Table("t", COLUMNS, gear.Steps(100), item=item, mean_length=20)]) as client:
        for start in range(0, 60, 20):
            client.insert(piece(data, start, 20))
        batch = client.sample(8)
        Expected(data).check(batch)
        value = batch[column].reshape(-1)
        value[-1] = ~value[-1] if column == "done" else value[-1] + 1
        with pytest.raises(WrongResult, match="item 7 of a batch of 8"):
            Expected(data).check(batch)


def test_a_batch_of_the_wrong_shape_or_without_a_column_is_seen():
    data = transitions(60)
    batch = piece(data, 0, 8)
    Expected(data).rows(batch, 8)
    with pytest.raises(WrongResult, match="no 7 items"):
        Expected(data).rows(batch, 7)
    with pytest.raises(WrongResult, match="'done' is not in the batch"):
        Expected(data).rows({name: batch[name] for name in ("obs", "action", "reward")}, 8)


def test_frames_that_were_changed_swapped_or_never_stored_are_seen():
    stored = Frames(100)
    batch = stored.piece(40, 6)
    stored.check(batch, 6)
    changed = batch | {"obs": batch["obs"].copy()}
    changed["obs"][3, 50, 20, 1] ^= 1
    with pytest.raises(WrongResult, match="frame 3 of a batch of 6 is not frame 43"):
        stored.check(changed, 6)
    with pytest.raises(WrongResult, match="'reward' does not belong"):
        stored.check(batch | {"reward": batch["reward"][::-1]}, 6)
    with pytest.raises(WrongResult, match="never stored"):
        Frames(44).check(batch, 6)


def test_items_must_be_whole_and_in_order(monkeypatch):
    monkeypatch.setattr("benchmarks.workloads.ITEMS", {"64": 3, "frames": 2})
    for kind in ("64", "frames"):
        given = trajectories(kind)
        batch = {name: np.stack([one[name] for one in given]) for name in given[0]}
        check_items(kind, batch, len(given))
        for name, column in batch.items():
            batch[name] = np.ascontiguousarray(column[:, ::-1])
        with pytest.raises(WrongResult):
            check_items(kind, batch, len(given))
