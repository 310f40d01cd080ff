"""The service on a GPU end to end: `sample` from draw to tensors, and the same batches by the ways users have today.

Tables of windows of 64 steps, prioritized, served by `gear-server --devices 0` in a process of its own; the learner
draws 256 windows at a time. First every batch of a learner on the GPU is held against one of the host, of columns on
the host, on the device and both; also what a slow consumer reads of memory that is asked for again meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gear
from benchmarks.measure import WrongResult
from gear.kernels.cuda_seam import SIMULATED

COLUMNS = (("obs", (17,), "float32"), ("action", (6,), "float32"), ("reward", (), "float32"), ("done", (), "bool"))
WINDOW = 64


def table(name: str, placement: str, steps: int, length: int = WINDOW, **fields: Any) -> gear.Table:
    """Prioritized windows of a MuJoCo-like table; `placement`: of its columns, "both" of every other one."""
    places = ["host", "device"] * 2 if placement == "both" else [placement] * 4
    columns = [gear.Column(*column, placement=place) for column, place in zip(COLUMNS, places, strict=True)]
    return gear.Table(
        name, columns, gear.Steps(steps), item=gear.Window(length), sampler=gear.Prioritized(alpha=0.7),
        mean_length=min(500, steps // 4), **fields,
    )  # fmt: skip


def trajectories(rng: np.random.Generator, count: int, steps: int) -> list[dict[str, np.ndarray]]:
    made = []
    for _ in range(count):
        n = int(rng.integers(steps // 2, steps + 1))
        made.append({name: (rng.random((n, *shape)) * 2).astype(dtype) for name, shape, dtype in COLUMNS})
    return made


def checks(tiny: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what is checked, what checks it): a learner's batches on the GPU against those of the host."""
    for placement in ("host", "device", "both"):
        yield f"the service's batches, columns on {placement}", lambda p=placement: _batches(tiny, p)  # type: ignore[misc]
        yield f"memory used again, columns on {placement}", lambda p=placement: _hazards(tiny, p)  # type: ignore[misc]


@contextlib.contextmanager
def _pair(tiny: bool, placement: str, length: int) -> Iterator[tuple[gear.Client, gear.Client]]:
    """Two clients whose tables hold the same and draw the same: of the host, and with a GPU."""
    rng, steps = np.random.default_rng(), 200 if tiny else 20_000
    given = trajectories(rng, 6, 20 if tiny else 600)
    on_device = [table("t", placement, steps, length)]
    with (
        gear.embedded([table("t", "host", steps, length)]) as host,
        gear.embedded(on_device, device="cuda:0") as one,
    ):
        for client in (host, one):
            client.insert_many(given)
        yield host, one


def _batches(tiny: bool, placement: str) -> None:
    length = 4 if tiny else WINDOW
    views = ("obs", gear.n_step("reward", 3, 0.99), gear.View("obs", shift=1, name="next"))
    queries = (gear.Query(8), gear.Query(8, views=views), gear.Query(8, layout="packed"))
    with _pair(tiny, placement, length) as (host, one):
        for query in queries * (1 if tiny else 20):
            _alike(host.sample(query), one.sample(query), placement)


def _hazards(tiny: bool, placement: str) -> None:
    """A consumer that is slow, on a stream of its own, while the memory of its batch is asked for again.

    What it reads late must be the batch that it was given, not the next one; the loader gathers ahead meanwhile.
    """
    length, size = (4, 4) if tiny else (WINDOW, 64)
    device = torch.device("cpu" if SIMULATED else "cuda:0")
    stream = None if SIMULATED else torch.cuda.Stream(device)
    heavy = torch.ones((8, 8) if tiny else (4096, 4096), device=device)
    with _pair(tiny, placement, length) as (host, one), torch.cuda.stream(stream):  # type: ignore[arg-type]
        expected, seen, kept = [], [], None
        for _ in range(3 if tiny else 20):
            expected.append(host.sample(size))
            kept = one.sample(size, out=kept)
            _late(heavy, kept, seen)
        with one.loader(size, prefetch=2) as loader:
            for _ in range(3 if tiny else 20):
                expected.append(host.sample(size))
                _late(heavy, next(loader), seen)
        if stream is not None:
            stream.synchronize()
        for batch, got in zip(expected, seen, strict=True):
            _alike(batch, got, f"{placement}, read late")


def _late(heavy: torch.Tensor, batch: Any, seen: list[dict[str, torch.Tensor]]) -> None:
    """Queue work, then copies of the batch behind it, and go on."""
    for _ in range(3):
        heavy = heavy @ heavy * 0.0 + 1.0
    seen.append({name: batch[name] + 0 if batch[name].dtype != torch.bool else batch[name].clone() for name in batch})


def _alike(expected: gear.Batch, got: Any, what: str) -> None:
    for name in expected:
        if not np.array_equal(expected[name], np.asarray(got[name].cpu())):
            raise WrongResult(f"{name} of columns on {what} differs from the host's")


@contextlib.contextmanager
def served(tiny: bool) -> Iterator[str]:
    """The address of a server with a GPU."""
    memory = "64MiB" if tiny else f"{_shared() >> 20}MiB"
    command = [sys.executable, "-m", "gear.server", "--devices", "0", "--port", "0", "--discard", "--memory", memory]
    command += ["--device-memory", memory, "--name", f"bench-{uuid.uuid4().hex[:12]}"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=os.environ)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            if "address=" not in line:
                log.seek(0)
                raise RuntimeError(f"gear-server --devices 0 did not start: {line!r} {log.read().decode()[-2000:]}")
            yield line.partition("address=")[2].split()[0]
        finally:
            process.terminate()
            process.communicate()


def _shared() -> int:
    """Bytes of shared memory that the server may take: containers have little unless they are given more."""
    there = os.statvfs("/dev/shm")
    return min(4 << 30, there.f_bavail * there.f_frsize * 8 // 10)


def samples(tiny: bool) -> Iterator[tuple[str, Callable[[int], object], float]]:
    """(name, call, bytes of a batch): `sample` by the service, and by NumPy and a copy, and by TorchRL."""
    size, length, steps = (4, 4, 200) if tiny else (256, WINDOW, min(1_000_000, _shared() // 500))
    given = trajectories(np.random.default_rng(0), 8 if tiny else max(1, steps // 500), 20 if tiny else 500)
    nbytes = float(size * length * sum(int(np.prod(s)) * np.dtype(d).itemsize for _, s, d in COLUMNS))
    with served(tiny) as address:
        for placement in ("host", "device"):
            with gear.connect(address, device="cuda:0") as learner:
                learner.create_table(table(placement, placement, steps, length))
                learner.insert_many(given, placement)
                batch = learner.sample(size, placement)
                name = f"sample {size} windows of {length}, columns on the {placement}"
                yield name, lambda k, b=batch, p=placement, c=learner: c.sample(size, p, out=b), nbytes
                if placement == "host":
                    with gear.connect(address) as plain:
                        yield "the same gathered by the host, and copied", _by_copy(plain, size), nbytes
    yield from _torchrl(given, size, length, nbytes)


def _by_copy(client: gear.Client, size: int) -> Callable[[int], object]:
    """A batch of NumPy arrays, and a copy of each to the device."""
    batch = client.sample(size, "host")
    device = "cpu" if SIMULATED else "cuda:0"

    def call(k: int) -> object:
        client.sample(size, "host", out=batch)
        return {name: torch.from_numpy(batch[name]).to(device) for name in batch}

    return call


def _torchrl(
    given: list[dict[str, np.ndarray]], size: int, length: int, nbytes: float
) -> Iterator[tuple[str, Callable[[int], object], float]]:
    """TorchRL's prioritized buffer with its storage on the device, which holds each window as an item of its own."""
    try:
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
    except ImportError:
        return
    device = "cpu" if SIMULATED else "cuda:0"
    windows = [
        {name: torch.from_numpy(values[at : at + length]) for name, values in one.items()}
        for one in given
        for at in range(0, len(one["reward"]) - length + 1, length)
    ]
    stacked = {name: torch.stack([window[name] for window in windows]) for name in windows[0]}
    storage = LazyTensorStorage(len(windows), device=device)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=storage, batch_size=size)
    buffer.extend(TensorDict(stacked, batch_size=[len(windows)], device=device))
    yield "the same by TorchRL, storage on the device", lambda k: buffer.sample(), nbytes
