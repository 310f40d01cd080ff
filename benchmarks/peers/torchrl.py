"""TorchRL: transitions, slices and frames in process."""

from __future__ import annotations

import functools
import logging
import os

import numpy as np
import tensordict
import torch
import torchrl
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import (
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SliceSampler,
)

from benchmarks.measure import Candidate
from benchmarks.workloads import (
    FRAMES,
    LENGTH,
    STEPS,
    WINDOW,
    WINDOWS,
    Columns,
    Expected,
    Frames,
    Updates,
    piece,
    transitions,
)  # fmt: skip

NAME = "TorchRL"
logging.getLogger("torchrl").setLevel(logging.ERROR)
torch.set_num_threads(1)


def version() -> str:
    """What it is."""
    return f"TorchRL {torchrl.__version__}, tensordict {tensordict.__version__}, torch {torch.__version__}"


def tensors(part: Columns) -> TensorDict:
    return TensorDict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in part.items()}, [len(part["reward"])])


def columns(batch: TensorDict, names) -> Columns:
    return {name: batch[name].numpy() for name in names}


@functools.cache
def data() -> Columns:
    return transitions(STEPS)


def filled(sampler, batch: int, **more) -> TensorDictReplayBuffer:
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(STEPS), sampler=sampler, batch_size=batch, **more)
    for number, start in enumerate(range(0, STEPS, LENGTH)):
        part = tensors(piece(data(), start, LENGTH))
        part["episode"] = torch.full((LENGTH,), number)
        made.extend(part)
    return made


@functools.cache
def uniform() -> TensorDictReplayBuffer:
    return filled(RandomSampler(), 256)


@functools.cache
def prioritized() -> TensorDictReplayBuffer:
    made = filled(PrioritizedSampler(STEPS, alpha=0.6, beta=0.4), 256, priority_key="td_error")
    made.update_priority(torch.arange(STEPS), torch.from_numpy(np.random.default_rng(1).random(STEPS) + 0.01).float())
    return made


def threads(call, check) -> list[Candidate]:
    """With one thread of torch and with all: which is faster depends on the batch."""
    return [
        Candidate(NAME, call, check=check, before=lambda: torch.set_num_threads(1)),
        Candidate(f"{NAME}, all threads", call, check=check, before=lambda: torch.set_num_threads(os.cpu_count())),
    ]


def sample(made: TensorDictReplayBuffer, size: int, items: int | None = None) -> list[Candidate]:
    def check() -> None:
        Expected(data()).rows(columns(made.sample(size), data()), items or size)

    return threads(lambda k: made.sample(size), check)


def update(size: int) -> list[Candidate]:
    made, given = prioritized(), Updates(size, STEPS)
    ids = [torch.from_numpy(items) for items in given.items]
    given.values = [torch.from_numpy(values).float() for values in given.values]
    return [Candidate(NAME, lambda k: made.update_priority(ids[k % given.sets], given.value(k)))]


def insert() -> list[Candidate]:
    used = piece(data(), 0, 200_000)
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(200_000), sampler=RandomSampler(), batch_size=256)
    parts = [tensors(piece(used, start, 1000)) for start in range(0, 200_000, 1000)]

    def check() -> None:
        Expected(used).rows(columns(made.sample(), used), 256)

    return [Candidate(NAME, lambda k: made.extend(parts[k % len(parts)]), check=check)]


def windows(with_priorities: bool) -> list[Candidate]:
    kind = {"num_slices": WINDOWS, "traj_key": "episode", "cache_values": True}
    sampler = PrioritizedSliceSampler(STEPS, alpha=0.6, beta=0.4, **kind) if with_priorities else SliceSampler(**kind)
    return sample(filled(sampler, WINDOWS * WINDOW), WINDOWS * WINDOW, WINDOWS)


def frames() -> list[Candidate]:
    stored = Frames()
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(FRAMES), sampler=RandomSampler(), batch_size=256)
    for part in stored.pieces(500):
        made.extend(tensors(part))

    def check() -> None:
        stored.check(columns(made.sample(), ("obs", "action", "reward")), 256)

    return threads(lambda k: made.sample(), check)


CASES = {
    "w1-uniform-256": lambda: sample(uniform(), 256),
    "w1-uniform-4096": lambda: sample(uniform(), 4096),
    "w1-prioritized-256": lambda: sample(prioritized(), 256),
    "w1-prioritized-4096": lambda: sample(prioritized(), 4096),
    "w1-update-256": lambda: update(256),
    "w1-update-4096": lambda: update(4096),
    "w1-insert-1000": insert,
    "w2-uniform": lambda: windows(False),
    "w2-prioritized": lambda: windows(True),
    "w3-uniform": frames,
}
