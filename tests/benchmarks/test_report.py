"""The page made of the records: the last figure of each measurement, every bar, and who is missing."""

from __future__ import annotations

import json
import sys

from benchmarks import report
from benchmarks.bars import Bar, Within
from benchmarks.measure import Candidate, Finding, Measurement
from benchmarks.show import rate, span

FACTS = {
    "date": "2026-01-02T03:04:05+00:00", "python": "3.11", "numpy": "2", "numba": "0.6", "pyzmq": "26", "gear": "0.1",
    "cpu": "some", "cores": 2, "peers": {"other": "other 1.0"}, "missing": {"absent": "no wheel"}, "load": 0.5,
    "seconds": 1.0,
}  # fmt: skip


def records() -> list[dict]:
    made = []
    for ours in (9.0, 1.0):  # measured twice
        measurement = Measurement(
            "w1-uniform-256", "work", [Candidate("gear", lambda k, ours=ours: ours, timed=True)],
            [Candidate("take", lambda k: 0.5, timed=True)], per_call=2, unit="samples", calls=1,
            bars=[Bar(1.8, "peers"), Bar(1, "take"), Bar(1, "absent"), Within(20)],
        )  # fmt: skip
        measurement.peers = [Candidate("other", lambda k: 3.0, timed=True, counted=False)]
        measurement.run(5)
        made.append(FACTS | measurement.record())
    finding = Finding("memory-w2-uniform", "work", "bytes", lambda: ({"all": 1.2}, [("<= 1.1", 1.2, 1.1)]))
    finding.run(5)
    return [*made, FACTS | finding.record() | {"wrong": ["peer: rows differ"]}]


def test_the_page_says_what_was_found_and_what_was_asked(tmp_path, monkeypatch):
    (tmp_path / "records").write_text("\n".join(map(json.dumps, records())))
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "records"), "--out", str(page)])
    report.main()
    text = page.read_text()
    for line in (
        "- **absent is missing**: no wheel",
        "- other 1.0",
        "2 of 6 are held.",
        "| w1-uniform-256 | >= 1.8 x the best peer | 3 (3 to 3) | held |",
        "| w1-uniform-256 | >= 1 x take | 0.5 (0.5 to 0.5) | **missed** |",
        "| w1-uniform-256 | >= 1 x absent | not measured | - |",
        "| w1-uniform-256 | <= 20 s | 500 ms (500 ms to 500 ms) | held |",
        "| memory-w2-uniform | <= 1.1 | 1.2 | **missed** |",
        "| memory-w2-uniform | a right result | peer: rows differ | **wrong** |",
        "| other | 0.667 samples/s | 1.5 s (1.5 s to 1.5 s) | - | 3 (3 to 3) |",
        "## Log",
    ):
        assert line in text
    assert text.index("**wrong**") < text.index("0.5 (0.5 to 0.5)") < text.index("3 (3 to 3) | held")
    for plot in ("peers.svg", "limits.svg"):
        assert (tmp_path / "page" / plot).stat().st_size > 1000
        assert f"](page/{plot})" in text
    assert str(tmp_path) not in text


def test_times_are_said_in_the_unit_that_suits_them():
    assert [span(us) for us in (0.0123, 1, 1234.5, 2.5e6)] == ["12.3 ns", "1 us", "1.23 ms", "2.5 s"]
    assert (rate(1520.0, "MB"), rate(886.0, "MB"), rate(2500.0, "steps")) == ("1.52 GB/s", "886 MB/s", "2.5 ksteps/s")
