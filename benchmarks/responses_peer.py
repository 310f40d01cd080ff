"""TransferQueue's part of W4; run by the Python of its own environment, knows nothing of GEAR.

One process each for the controller, two storage units, the producer and the consumer (actors of Ray). Commands come
line by line on standard input: ``put``, ``get N``; the answer is the seconds that it took.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default of 15 starves its workers on a busy machine

import ray
import transfer_queue as tq
from omegaconf import OmegaConf

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

    def get(self, part: str, count: int, total: int) -> tuple[float, int]:
        seconds, start, came, tokens = 0.0, time.perf_counter(), 0, 0
        while came < total:
            meta = self.client.get_meta(
                data_fields=FIELDS, batch_size=count, partition_id=part, task_name=f"task-{count}"
            )
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


def main() -> None:
    """Serve."""
    from benchmarks.responses_data import COUNT, checksum

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
             object_store_memory=2 * 2**30)  # fmt: skip
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 2}}
    tq.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": backend}))
    producer, consumer = Peer.remote(), Peer.remote()
    ray.get(producer.build.remote())
    total, number = checksum(), 0
    print("ready", flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "put":
            if number:
                ray.get(producer.clear.remote(f"part-{number}"))
            number += 1
            print(ray.get(producer.put.remote(f"part-{number}")), flush=True)
            continue
        seconds, came = ray.get(consumer.get.remote(f"part-{number}", int(rest[0]), COUNT))
        if came != total:
            sys.exit(f"TransferQueue brought tokens that sum to {came}, not {total}")
        print(seconds, flush=True)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
