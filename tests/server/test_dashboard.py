"""The dashboard for Grafana shows what there is: metrics by their names, each with its unit, and all trouble."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gear
from gear.server.metrics import OF_CONSUMERS, OF_SHARDS, OF_TABLES
from tests.server.test_metrics import scrape
from tests.transport.helpers import table

DASHBOARD = Path(gear.__file__).parent / "server" / "dashboard.json"

LEFT_OUT = {
    "gear_inserted_trajectories", "gear_inserted_steps", "gear_sampled_items", "gear_consumed_trajectories",
    "gear_updated_priorities", "gear_waiting_requests", "gear_table_items", "gear_table_trajectories",
    "gear_table_steps", "gear_table_segment_bytes", "gear_table_free_blocks", "gear_table_pins",
}  # fmt: skip
"""Metrics without a panel: others show the same, or nobody acts upon them."""


def panels() -> list[dict]:
    """Those that show figures; rows are headings."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def test_the_dashboard_uses_only_metrics_that_exist(start_server):
    watched = start_server("--metrics-port", "0")
    with gear.connect(watched.address) as client:
        client.create_table(table("t"))
        client.create_table(gear.Table("c", [gear.Column("x")], gear.Trajectories(9), item=gear.Whole(), mean_length=1,
                                       consumers=("trainer",)))  # fmt: skip
    samples = scrape(watched)
    names = {name for name, _ in samples}
    labels = {name: {key for n, pairs in samples if n == name for key, _ in pairs} for name in names}
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    text = DASHBOARD.read_text()
    used = {name for expression in expressions for name in re.findall(r"gear_\w+", expression)}
    assert used
    assert used <= names, f"the dashboard shows metrics that do not exist: {used - names}"
    for query in re.findall(r"label_values\((\w+), (\w+)\)", text):
        assert query[1] in labels[query[0]]
    for expression in expressions:
        for name, inside in re.findall(r"(gear_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)(?:=|!)", inside)) <= labels[name]


def test_every_panel_of_the_dashboard_has_a_title_a_unit_and_a_place_of_its_own():
    taken: set[tuple[int, int]] = set()
    everything = json.loads(DASHBOARD.read_text())["panels"]
    for panel in everything:
        assert panel["title"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in everything}) == len(everything)
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        # Grafana puts the space before `count:` itself and shortens large numbers, which it does not with `suffix:`
        assert re.fullmatch(r"count:\S.*|prefix:\S.* |s|bytes|binBps|reqps|percentunit|bool_yes_no", unit), unit


def test_legends_of_a_panel_tell_its_series_apart():
    for panel in panels():
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), panel["title"]
        for target in panel["targets"]:
            first = target["expr"].partition(" / ")[0].partition(" and ")[0]
            grouped = re.search(r"\bby \(([^)]*)\)", first)
            by = set(grouped[1].split(", ")) - {"le"} if grouped else set()
            if not re.search(r"\b(sum|max)\b", first):
                by = {"shard"}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == by, target["expr"]


def test_counters_are_shown_as_rates_and_gauges_as_they_are():
    for panel in panels():
        for target in panel["targets"]:
            shown = re.sub(r" and on .*", "", target["expr"])  # what says which series are there
            for before, name in re.findall(r"(rate\(|increase\(|)(gear_\w+)", shown):
                counter = re.search(r"_(total|bucket|count)$", name) is not None
                if panel["type"] == "stat":
                    assert not before, "a single figure is of the whole time"
                else:
                    assert bool(before) == counter, target["expr"]


def test_single_figures_say_when_they_are_alarming():
    """Without thresholds Grafana shows all that is 80 and more in red: an uptime, bytes."""
    single = [panel for panel in panels() if panel["type"] == "stat"]
    assert len(single) >= 6
    for panel in single:
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None, panel["title"]


def test_what_shards_allow_adds_up_as_what_they_take():
    memory = next(panel for panel in panels() if panel["title"] == "Memory of all tables")
    assert [target["expr"].split(" ")[0] for target in memory["targets"]] == ["sum", "sum"]


def test_every_metric_is_on_the_dashboard_or_left_out_on_purpose():
    used = set(re.findall(r"gear_\w+", " ".join(t["expr"] for panel in panels() for t in panel["targets"])))
    every = {f.name + "_total" * f.counter: f.name for f in (*OF_TABLES, *OF_SHARDS, *OF_CONSUMERS)}
    assert {name for full, name in every.items() if full not in used} == LEFT_OUT
    assert {"gear_shard_up", "gear_request_duration_seconds_bucket", "gear_request_duration_seconds_count"} <= used
