"""Prometheus metrics: a supervisor's scrape asks its shards and turns their figures into families.

Shards count in plain integers and know nothing of this. A scrape costs a shard what an `info` costs it; one
that stays silent is reported as down, with the figures that were last known. `prometheus-client` is imported
when metrics are asked for and only then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.errors import GearError, ServerConflict
from gear.server.config import Options
from gear.server.figures import Figures, fill, measure
from gear.server.latency import BOUNDS
from gear.transport import messages as m

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

PATIENCE = 1.0
"""Seconds that a scrape waits for shards."""

_BESIDE = {
    "side": ("writer", "reader"),
    "state": ("connected", "silent"),
    "outcome": ("received", "refused", "dropped"),
    "reason": ("filtered", "late"),
    "kind": ("expired", "open"),
}
"""Labels beside table and shard, and their values in the order of the figures."""


class Family(NamedTuple):
    """A metric of each table or each shard: its name, its unit within, and the figures it shows."""

    name: str
    counter: bool
    help: str
    figures: Callable[[Figures], Sequence[float]]
    label: str = ""


def _of(*names: str) -> Callable[[Figures], Sequence[float]]:
    return lambda figures: [figures[name] for name in names]


def _saved(name: str) -> Callable[[Figures], Sequence[float]]:
    return lambda figures: [figures.get("checkpoint", {}).get(name, 0)]


OF_TABLES = (
    Family("gear_inserted_trajectories", True, "Trajectories committed.", _of("inserted_trajectories")),
    Family("gear_inserted_steps", True, "Steps committed.", _of("inserted_steps")),
    Family("gear_inserted_items", True, "Items committed since the last reset of the table.", _of("inserted_items")),
    Family("gear_inserted_bytes", True, "Payload bytes committed.", _of("inserted_bytes")),
    Family("gear_drawn_items", True, "Items drawn.", _of("draws")),
    Family("gear_sampled_items", True, "Items delivered since the last reset of the table.", _of("sampled_items")),
    Family("gear_sampled_bytes", True, "Payload bytes of the items drawn, every column.", _of("sampled_bytes")),
    Family("gear_evicted_trajectories", True, "Trajectories driven out.", _of("evicted_trajectories")),
    Family("gear_evicted_early_trajectories", True, "Trajectories driven out before the capacity was reached, as "
           "blocks had run out.", _of("evicted_early")),
    Family("gear_consumed_trajectories", True, "Trajectories used up.", _of("consumed_trajectories")),
    Family("gear_completed_groups", True, "Groups that were complete.", _of("completed_groups")),
    Family("gear_dropped_groups", True, "Groups that the filter dropped, or that were not complete in time.",
           _of("filtered_groups", "late_groups"), "reason"),
    Family("gear_gathering_groups", False, "Groups that wait for members.", _of("gathering_groups")),
    Family("gear_short_groups", True, "Groups that were delivered short, after their deadline.", _of("short_groups")),
    Family("gear_table_version", False, "Policy version that the table was told last.", _of("version")),
    Family("gear_dropped_trajectories", True, "Trajectories that were too old, and open ones that nobody went on "
           "with or that were dropped.", _of("expired_trajectories", "dropped_open_trajectories"), "kind"),
    Family("gear_open_trajectories", False, "Trajectories of the table that still grow.", _of("open_trajectories")),
    Family("gear_filled_trajectories", True, "Trajectories whose late columns were filled, once for each call.",
           _of("filled_trajectories")),
    Family("gear_stale_fills", True, "Fills of trajectories that had left.", _of("stale_fills")),
    Family("gear_lost_parts", True, "Parts of draws that ended before their rank had them.", _of("lost_parts")),
    Family("gear_updated_priorities", True, "Priorities updated.", _of("updated_priorities")),
    Family("gear_stale_updates", True, "Priority updates of items that had left.", _of("stale_updates")),
    Family("gear_blocked_seconds", True, "Seconds that parked requests waited, those that still wait included.",
           _of("blocked_writer_seconds", "blocked_reader_seconds"), "side"),
    Family("gear_waiting_requests", False, "Requests that wait.", _of("waiting_writers", "waiting_readers"), "side"),
    Family("gear_table_items", False, "Items stored.", _of("items")),
    Family("gear_table_trajectories", False, "Trajectories stored.", _of("trajectories")),
    Family("gear_table_steps", False, "Steps stored.", _of("steps")),
    Family("gear_table_fill_ratio", False, "Share of the capacity that is used.", lambda figures: [fill(figures)]),
    Family("gear_table_payload_bytes", False, "Bytes of the stored data without padding.", _of("payload_bytes")),
    Family("gear_table_used_bytes", False, "Bytes of the blocks that hold data.", _of("used_bytes")),
    Family("gear_table_segment_bytes", False, "Bytes of the table's memory.", _of("segment_bytes")),
    Family("gear_table_free_blocks", False, "Blocks that nobody has.", _of("free_blocks")),
    Family("gear_table_leased_blocks", False, "Blocks promised to writers.", _of("leased_blocks")),
    Family("gear_table_held_blocks", False, "Blocks of evicted data that is still read.", _of("held_blocks")),
    Family("gear_table_quarantined_blocks", False, "Blocks leased to silent clients.", _of("quarantined_blocks")),
    Family("gear_table_pins", False, "Selections that are read.", _of("pins")),
)  # fmt: skip

OF_CONSUMERS = (
    Family("gear_consumer_waiting_items", False, "Items that wait to be served to a consumer.", _of("waiting")),
    Family("gear_consumer_claimed_items", False, "Items served to a consumer and not acknowledged.", _of("claimed")),
    Family("gear_consumer_served_items", True, "Items served to a consumer, again ones included.", _of("served")),
    Family("gear_consumer_acknowledged_items", True, "Items that a consumer has acknowledged.", _of("acknowledged")),
    Family("gear_consumer_dropped_items", True, "Items that left before a consumer had acknowledged them.",
           _of("dropped")),
)  # fmt: skip

OF_SHARDS = (
    Family("gear_shard_uptime_seconds", False, "Seconds since the shard started.", _of("uptime")),
    Family("gear_shard_restarts", True, "How often the shard was started again over the same memory.", _of("restarts")),
    Family("gear_lost_with_device_trajectories", True, "Trajectories that ended with a shard, as device memory does.",
           lambda shard: [shard["lost_with_device"]["trajectories"]]),
    Family("gear_shard_segment_bytes", False, "Bytes of all tables' memory.", _of("segment_bytes")),
    Family("gear_shard_memory_limit_bytes", False, "Bytes that tables may take.", _of("memory_limit")),
    Family("gear_checkpoint_timestamp_seconds", False, "When the shard saved its part of one last, 0: never.",
           _saved("last_time")),
    Family("gear_checkpoint_bytes", False, "Bytes of the shard's part of the last checkpoint.",
           _saved("bytes")),
    Family("gear_checkpoint_written_bytes", False, "Bytes of it that were not in an earlier one.",
           _saved("written_bytes")),
    Family("gear_checkpoint_seconds", False, "Seconds that it took.", _saved("last_seconds")),
    Family("gear_checkpoint_failures", True, "Saves that failed.", _saved("failures")),
    Family("gear_checkpoint_running", False, "Whether the shard is saving.", _saved("running")),
    Family("gear_shard_clients", False, "Clients.", lambda s: [s["clients"][k] for k in _BESIDE["state"]], "state"),
    Family("gear_shard_messages", True, "Messages.", lambda s: [s["messages"][k] for k in _BESIDE["outcome"]],
           "outcome"),
    Family("gear_shard_rdma_queue_pairs", False, "Clients that read and write rows by RDMA.",
           lambda s: [s["rdma"]["queue_pairs"]]),
    Family("gear_shard_rdma_dialed", True, "Queue pairs made; those of one client replace each other after a failure.",
           lambda s: [s["rdma"]["dialed"]]),
    Family("gear_shard_rdma_copied_bytes", True, "Bytes of rows that the shard copied for such clients.",
           lambda s: [s["rdma"]["copied_bytes"]]),
    Family("gear_shard_rdma_unloaded", True, "Messages of commits whose rows the shard copied from an inbox.",
           lambda s: [s["rdma"]["unloaded"]]),
    Family("gear_shard_rdma_pushed_bytes", True, "Bytes of rows that were written to readers' memory.",
           lambda s: [s["rdma"]["pushed_bytes"]]),
    Family("gear_shard_rdma_staged_bytes", False, "Bytes of memory from which they are written that is in use.",
           lambda s: [s["rdma"]["staged_bytes"]]),
)  # fmt: skip


class Collector:
    """The families of a server, made at each scrape.

    Parameters
    ----------
    shards : () -> list of Shard
        Those that live.
    ask : (shards) -> dict
        Figures by shard; silent ones are left out.
    count : int
        How many shards the server was started with.
    """

    def __init__(
        self, shards: Callable[[], list[m.Shard]], ask: Callable[[list[m.Shard]], dict[int, Figures]], count: int = 1
    ) -> None:
        self._shards, self._count, self._ask = shards, count, ask
        self._last: dict[int, Figures] = {}
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        """Nothing: registering asks no shard."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family; of a shard that is silent what was last known."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with self._lock:
            shards = self._shards()
            try:
                up = self._ask(shards)
            except GearError as error:
                logger.warning("no metrics of the shards: %s", error)
                up = {}
            self._last.update(up)
            last = dict(sorted(self._last.items()))
        answering = GaugeMetricFamily("gear_shard_up", "Whether the shard answers.", labels=["shard"])
        for index in sorted({*range(self._count), *(shard.index for shard in shards), *last}):
            answering.add_metric([str(index)], float(index in up))
        yield answering
        for of_tables, families in ((False, OF_SHARDS), (True, OF_TABLES)):
            for family in families:
                kind: Any = CounterMetricFamily if family.counter else GaugeMetricFamily
                labels = ["table"] * of_tables + ["shard"] + [family.label] * bool(family.label)
                metric = kind(family.name, family.help, labels=labels)
                for index, figures in last.items():
                    for name, one in figures["tables"].items() if of_tables else [("", figures)]:
                        where = [name] * of_tables + [str(index)]
                        for beside, value in zip(_BESIDE.get(family.label, ("",)), family.figures(one), strict=True):
                            metric.add_metric(where + [beside] * bool(family.label), value)
                yield metric
        for family in OF_CONSUMERS:
            kind = CounterMetricFamily if family.counter else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=["table", "shard", "consumer"])
            for index, figures in last.items():
                for name, one in figures["tables"].items():
                    for consumer, line in one.get("consumers", {}).items():
                        metric.add_metric([name, str(index), consumer], family.figures(line)[0])
            yield metric
        help_ = "Seconds from reading a request to its answer, waits included."
        latency = HistogramMetricFamily("gear_request_duration_seconds", help_, labels=["shard", "kind"])
        for index, figures in last.items():
            for kind_of_request, row in figures["requests"].items():
                latency.add_metric([str(index), kind_of_request], _cumulated(row["buckets"]), row["seconds"])
        yield latency


def _cumulated(buckets: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus' buckets: how many took at most that long."""
    bounds, sums, below = [*map(repr, BOUNDS), "+Inf"], [], 0
    for count in buckets:
        below += count
        sums.append(below)
    return list(zip(bounds, sums, strict=True))


class Exporter:
    """An HTTP server, in threads of its own, that answers scrapes.

    Parameters
    ----------
    options : Options
        `metrics_port` (0: any free one) on the server's own host.
    shards : () -> list of Shard

    Raises
    ------
    ServerConflict
        If the port is in use, or `prometheus-client` is not installed.
    """

    def __init__(self, options: Options, shards: Callable[[], list[m.Shard]], count: int = 1) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            raise ServerConflict(
                "--metrics-port needs the package prometheus-client; pip install 'gear-replay[watch]'"
            ) from None
        host, token, port = options.host, options.token, options.metrics_port
        assert port is not None
        registry = CollectorRegistry()
        registry.register(Collector(shards, lambda there: measure(there, host, token, PATIENCE), count))  # type: ignore[arg-type]
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ServerConflict(f"cannot listen on {host}:{port}: {reason}; choose another --metrics-port") from None
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)
