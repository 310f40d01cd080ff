"""TransferQueue: responses from a producer to a consumer process.

One process each for the controller, two storage units, the producer and the consumer (actors of Ray).
"""

from __future__ import annotations

import functools
import os
import time
from importlib.metadata import version as installed

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 starves its workers on a busy machine

import ray
import transfer_queue as tq
from omegaconf import OmegaConf

from benchmarks.measure import Candidate, WrongResult
from benchmarks.responses_data import COUNT, GETS, checksum, nbytes

FIELDS = ["input_ids", "logprobs", "mask", "reward", "version"]


@ray.remote(num_cpus=0)
class Peer:
    """A producer or consumer."""

    def __init__(self) -> None:
        import torch
        import transfer_queue

        torch.set_num_threads(1)
        transfer_queue.init()
        self.client = transfer_queue.get_client()

    def build(self) -> None:
        import torch
        from tensordict import TensorDict

        from benchmarks.responses_data import batches

        self.made = []
        for batch in batches():
            bounds = batch["offsets"].tolist()

            def jagged(column, bounds=bounds):
                values = torch.from_numpy(column.view("int8") if column.dtype == bool else column)
                parts = [values[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
                return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

            columns = {name: jagged(batch[name]) for name in FIELDS[:3]}
            columns |= {name: torch.from_numpy(batch[name]) for name in FIELDS[3:]}
            self.made.append(TensorDict(columns, batch_size=[len(bounds) - 1]))

    def put(self, part: str) -> float:
        start = time.perf_counter()
        for one in self.made:
            self.client.put(one, partition_id=part)
        return time.perf_counter() - start

    def get(self, part: str, count: int, total: int, task: str) -> tuple[float, int]:
        seconds, start, came, tokens = 0.0, time.perf_counter(), 0, 0
        while came < total:
            meta = self.client.get_meta(data_fields=FIELDS, batch_size=count, partition_id=part, task_name=task)
            if meta.size == 0:
                time.sleep(0.001)
                continue
            taken = self.client.get_data(meta)
            seconds += time.perf_counter() - start
            came, tokens = came + taken.batch_size[0], tokens + int(taken["input_ids"].values().sum())
            start = time.perf_counter()
        return seconds, tokens

    def clear(self, part: str) -> None:
        self.client.clear_partition(part)


STACK = None
"""What ends with this process; set by `serve`."""


def version() -> str:
    """What it is."""
    return f"TransferQueue {installed('TransferQueue')}, Ray {ray.__version__}"


class Stage:
    """Producer and consumer, and the partition that holds all responses now."""

    def __init__(self) -> None:
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                 object_store_memory=2 * 2**30)  # fmt: skip
        STACK.callback(ray.shutdown)
        backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 2}}
        tq.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": backend}))
        STACK.callback(tq.close)
        self.producer, self.consumer = Peer.remote(), Peer.remote()
        ray.get(self.producer.build.remote())
        self.total, self.number, self.stored, self.tasks = checksum(), 0, False, 0

    def put(self) -> float:
        """All responses into a partition of their own."""
        self.drop()
        self.number, self.stored = self.number + 1, True
        return ray.get(self.producer.put.remote(f"part-{self.number}"))

    def drop(self) -> None:
        """What is stored."""
        if self.stored:
            ray.get(self.producer.clear.remote(f"part-{self.number}"))
            self.stored = False

    def get(self, count: int) -> float:
        """All of them, `count` at a time, for a task that has had none yet."""
        if not self.stored:
            self.put()
        self.tasks += 1
        task = f"task-{self.tasks}"
        seconds, came = ray.get(self.consumer.get.remote(f"part-{self.number}", count, COUNT, task))
        if came != self.total:
            raise WrongResult(f"gets of {count} brought tokens that sum to {came}, not {self.total}")
        return seconds


@functools.cache
def stage() -> Stage:
    return Stage()


def candidate(call, before=None) -> list[Candidate]:
    return [
        Candidate(
            "TransferQueue", call, timed=True, per_call=nbytes() / 1e6, processes=(os.getpid(),), here=False,
            before=before,
        )
    ]  # fmt: skip


CASES = {"w4-put": lambda: candidate(lambda k: stage().put(), stage().drop)}
CASES |= {f"w4-get-{count}": functools.partial(candidate, lambda k, count=count: stage().get(count)) for count in GETS}
