"""Prometheus metrics of a real server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gear
from gear.server import cli
from gear.server.config import Options
from gear.server.figures import fill, total
from gear.server.metrics import OF_CONSUMERS, OF_SHARDS, OF_TABLES, Collector, Exporter
from gear.transport import messages as m
from tests.transport.helpers import Python, eventually, table

RDMA = ("queue_pairs", "dialed", "copied_bytes", "unloaded", "pushed_bytes", "staged_bytes")


def scrape(server, silent: bool = False) -> dict[tuple[str, frozenset], float]:
    """Every sample by its name and labels; until all shards have answered in time, but where one is silent."""
    for _ in range(20):
        samples = scrape_once(server)
        if silent or all(up for (name, _), up in samples.items() if name == "gear_shard_up"):
            break
    return samples


def scrape_once(server) -> dict[tuple[str, frozenset], float]:
    with urllib.request.urlopen(f"http://{server.fields['metrics']}/metrics", timeout=60.0) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture
def watched(start_server):
    return start_server("--metrics-port", "0", "--client-timeout", "0.5")


def test_a_scrape_shows_what_happened(watched):
    declared = table("t", sampler=gear.Prioritized(1.0), limiter=gear.MinSize(2))
    with gear.connect(watched.address) as client:
        client.create_table(declared)
        client.insert({"k": np.zeros(3, np.int64)}, priority=1.0)
        with pytest.raises(gear.DeadlineExceeded):
            client.sample(1, timeout=0.05)
        client.insert({"k": np.zeros(5, np.int64)}, priority=0.0)
        batch = client.sample(4)
        client.update_priorities([*batch.ids, int(batch.ids[0]) + 1], [2.0] * 5)
        samples = scrape(watched)
        figures = client.info()
    of_table = {"table": "t", "shard": "0"}
    expected = {
        "gear_inserted_trajectories_total": 2, "gear_inserted_steps_total": 8, "gear_inserted_items_total": 2,
        "gear_inserted_bytes_total": 64, "gear_drawn_items_total": 4, "gear_sampled_bytes_total": 4 * 3 * 8,
        "gear_updated_priorities_total": 4, "gear_stale_updates_total": 1, "gear_table_items": 2,
        "gear_table_steps": 8, "gear_table_payload_bytes": 64, "gear_table_fill_ratio": 8 / 4000,
        "gear_table_segment_bytes": figures["tables"]["t"]["segment_bytes"],
        "gear_evicted_early_trajectories_total": 0, "gear_table_quarantined_blocks": 0,
    }  # fmt: skip
    assert {name: value(samples, name, **of_table) for name in expected} == expected
    assert 0.05 <= value(samples, "gear_blocked_seconds_total", **of_table, side="reader") < 30
    assert value(samples, "gear_blocked_seconds_total", **of_table, side="writer") == 0
    assert value(samples, "gear_shard_up", shard="0") == 1
    assert value(samples, "gear_shard_clients", shard="0", state="connected") == 1  # who scrapes is not counted
    assert value(samples, "gear_shard_memory_limit_bytes", shard="0") == figures["memory_limit"]


def test_requests_are_counted_by_kind_with_their_waits(watched):
    declared = table("t", limiter=gear.MinSize(2))
    with gear.connect(watched.address) as client:
        client.create_table(declared)
        client.insert({"k": np.zeros(3, np.int64)})
        with pytest.raises(gear.DeadlineExceeded):
            client.sample(1, timeout=0.1)
        samples = scrape(watched)
    name, select = "gear_request_duration_seconds", {"shard": "0", "kind": "select"}
    assert value(samples, f"{name}_count", **select) == 1
    assert 0.1 <= value(samples, f"{name}_sum", **select) < 30
    buckets = sorted((float(dict(labels)["le"]), v) for (n, labels), v in samples.items()
                     if n == f"{name}_bucket" and dict(labels)["kind"] == "select")  # fmt: skip
    assert [v for bound, v in buckets if bound < 0.1] == [0.0] * sum(bound < 0.1 for bound, _ in buckets)
    assert buckets[-1] == (float("inf"), 1)
    assert value(samples, f"{name}_count", shard="0", kind="commit") == 1


def test_blocks_of_a_silent_client_are_seen_in_quarantine(watched):
    code = (
        "import gear, numpy, sys; client = gear.connect(sys.argv[1]); "
        "client.insert({'k': numpy.zeros(3, numpy.int64)}); print('inserted', flush=True); sys.stdin.read()"
    )
    with gear.connect(watched.address) as client:
        client.create_table(table("t"))
        other = Python(code, watched.address)
        assert other.read() == "inserted"
        os.kill(other.process.pid, signal.SIGSTOP)
        try:
            quarantined = lambda: value(scrape(watched), "gear_table_quarantined_blocks", table="t", shard="0")
            eventually(lambda: quarantined() > 0, "its leases were seen in quarantine", 20)
            assert value(scrape(watched), "gear_shard_clients", shard="0", state="silent") == 1
        finally:
            os.kill(other.process.pid, signal.SIGCONT)
        assert other.end() == 0


def test_a_silent_shard_is_down_and_its_figures_are_the_last_known(watched):
    with gear.connect(watched.address) as client:
        client.create_table(table("t"))
        client.insert({"k": np.zeros(3, np.int64)})
        pid = client.info()["pid"]
        before = scrape(watched)
        os.kill(pid, signal.SIGSTOP)
        try:
            during = scrape(watched, silent=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        after = scrape(watched)
    up = ("gear_shard_up", frozenset({("shard", "0")}))
    assert (before[up], during[up], after[up]) == (1, 0, 1)
    assert {**during, up: 1.0} == before


def test_without_the_option_nothing_listens_and_prometheus_is_not_imported(server):
    assert "metrics" not in server.fields
    code = "import gear.server.cli, gear.server.supervisor, sys; print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_metrics_port_in_use_is_refused_before_a_shard_starts(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.server_main(["--port", "0", "--metrics-port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use; choose another --metrics-port" in (
        capsys.readouterr().err
    )


def test_a_server_without_prometheus_client_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    options = Options("n", "127.0.0.1", 0, "cpu", 1, "", "info", True, 1.0, metrics_port=0)
    with pytest.raises(gear.ServerConflict, match=r"pip install 'gear-replay\[watch\]'"):
        Exporter(options, list)


def test_one_shard_of_two_is_silent():
    """Samples of both, labelled; the silent one's from before."""
    figures = {
        "lost_with_device": {"trajectories": 0},
        "uptime": 1.0, "restarts": 0, "segment_bytes": 2, "memory_limit": 3, "requests": {}, "tables": {},
        "clients": {"connected": 1, "silent": 0}, "messages": {"received": 1, "refused": 0, "dropped": 0},
        "rdma": dict.fromkeys(RDMA, 0),
    }  # fmt: skip
    shards = [m.Shard(0, 1, ""), m.Shard(1, 1, "")]
    answers = iter([{0: figures, 1: figures}, {1: {**figures, "uptime": 5.0}}])
    collector = Collector(lambda: shards, lambda _: next(answers))
    list(collector.collect())
    found = {family.name: {s.labels["shard"]: s.value for s in family.samples} for family in collector.collect()}
    assert found["gear_shard_up"] == {"0": 0.0, "1": 1.0}
    assert found["gear_shard_uptime_seconds"] == {"0": 1.0, "1": 5.0}


def test_consumers_groups_versions_and_late_columns_are_told():
    columns = [gear.Column("x"), gear.Column("y", late=True), gear.Column("ok", per="trajectory")]
    rule = gear.Groups(2, filter=gear.NonzeroVariance("ok"))
    declared = gear.Table("t", columns, gear.Trajectories(20), item=gear.Whole(), mean_length=2, sampler=rule,
                          consumers=("a", "b"), max_staleness=1)  # fmt: skip
    with gear.embedded([declared]) as client:
        for number, group in enumerate(["kept", "kept", "same", "same", "half", "old"]):
            version = 0 if group == "old" else 5
            client.insert({"x": [0.0, 0.0], "ok": float(group == "kept" and number)}, group=group, version=version)
        client.set_version("t", 5)
        batch = client.sample(1, consumer="a")
        client.fill(batch.ids, {"y": [[0.0, 0.0]] * 2})
        client.ack(batch.ids[:1])
        figures = {"tables": client.info()["tables"], "requests": {}, "uptime": 1.0, "restarts": 0, "segment_bytes": 1,
                   "lost_with_device": {"trajectories": 0},
                   "memory_limit": 1, "clients": {"connected": 1, "silent": 0},
                   "messages": dict.fromkeys(("received", "refused", "dropped"), 0),
                   "rdma": dict.fromkeys(RDMA, 0)}  # fmt: skip
    collector = Collector(lambda: [m.Shard(0, 1, "")], lambda shards: {0: figures})
    found = {
        (s.name, *sorted(set(s.labels.values()) - {"t", "0"})): s.value for f in collector.collect() for s in f.samples
    }
    expected = {
        ("gear_completed_groups_total",): 2, ("gear_dropped_groups_total", "filtered"): 1,
        ("gear_gathering_groups",): 1,
        ("gear_dropped_trajectories_total", "expired"): 1, ("gear_table_version",): 5,
        ("gear_filled_trajectories_total",): 2, ("gear_consumer_waiting_items", "a"): 0,
        ("gear_consumer_waiting_items", "b"): 2, ("gear_consumer_claimed_items", "a"): 1,
        ("gear_consumer_acknowledged_items_total", "a"): 1, ("gear_consumer_served_items_total", "b"): 0,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected


def test_the_figures_of_two_shards_add_up():
    one = {"name": "x", "n": 1, "capacity": {"steps": 10}, "steps": 4, "buckets": [1, 2], "kinds": {"a": 1}}
    both = total([one, {**one, "kinds": {"a": 2, "b": 5}}])
    assert both == {
        "name": "x", "n": 2, "capacity": {"steps": 20}, "steps": 8, "buckets": [2, 4], "kinds": {"a": 3, "b": 5}
    }  # fmt: skip
    assert fill(both) == 0.4
    assert one["buckets"] == [1, 2], "the figures themselves were changed"


def test_names_and_units_follow_prometheus():
    for family in (*OF_TABLES, *OF_SHARDS, *OF_CONSUMERS):
        assert re.fullmatch(r"gear_[a-z_]+", family.name)
        assert not family.name.endswith("_total")  # the client library adds it
        assert family.help.endswith(".")
        if "byte" in family.help.lower():
            assert family.name.endswith("_bytes")
        if "seconds" in family.help.lower():
            assert family.name.endswith("_seconds")
