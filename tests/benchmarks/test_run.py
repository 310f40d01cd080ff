"""`make bench`: what is set up, what is written, how it ends."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import run
from benchmarks.measure import Candidate, Measurement, WrongResult
from benchmarks.peers.remote import Peers
from benchmarks.suite.groups import GROUPS


def test_a_run_ends_with_1_only_if_a_result_is_wrong_and_records_both(monkeypatch, capsys, tmp_path):
    def wrong() -> None:
        raise WrongResult("rows differ")

    for verify, code in ((lambda: None, None), (wrong, 1)):
        slow = Measurement("name", "work", [Candidate("gear", lambda k: 1e9, timed=True)], calls=2, verify=verify)
        monkeypatch.setattr(run, "wanted", lambda only, peers, one=slow: iter([one]))
        monkeypatch.setattr(sys, "argv", ["run", "--json", str(tmp_path / "records")])
        if code is None:
            run.main()
        else:
            with pytest.raises(SystemExit) as end:
                run.main()
            assert end.value.code == code
    assert "WRONG: gear: rows differ" in capsys.readouterr().out
    right, failed = map(json.loads, (tmp_path / "records").read_text().splitlines())
    assert (right["wrong"], right["candidates"][0]["us"], right["missing"]) == ([], 1e15, {})
    assert failed["wrong"] == ["gear: rows differ"]
    assert "candidates" not in failed


def test_only_what_was_asked_for_is_set_up(monkeypatch):
    set_up: list[str] = []

    def group(*names: str):
        def make(data):
            for name in names:
                set_up.append(name)
                yield Measurement(name, "work", [])

        return names, make

    monkeypatch.setattr(run, "GROUPS", [group("a-one", "b-one", "c-one"), group("a-two"), group("d")])
    monkeypatch.setattr(run, "transitions", lambda steps: {})
    assert [m.name for m in run.wanted("b,d", Peers([]))] == ["b-one", "d"]
    assert set_up == ["a-one", "b-one", "d"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "w1-unifrom"], "no such measurement; there are"),
        (["--peers", "reverb,dreverb"], "no such peer: dreverb; there are reverb"),
        (["--rounds", "2"], "fewer than 5 rounds make no figure"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    with pytest.raises(SystemExit):
        run.main()
    assert said in capsys.readouterr().err


def test_measurement_names_are_unique():
    names = [name for group, _ in GROUPS for name in group]
    assert len(set(names)) == len(names)
