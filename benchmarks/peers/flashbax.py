"""flashbax: transitions, windows and frames in process, compiled by JAX for the CPU."""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import version as installed

import flashbax
import jax
import jax.numpy as jnp
import numpy as np

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

NAME = "flashbax"
KEYS = 512
CHUNK = 50_000
warnings.filterwarnings("ignore")


def version() -> str:
    """What it is."""
    return f"flashbax {installed('flashbax')}, JAX {jax.__version__} ({jax.default_backend()})"


def first(part: Columns) -> dict:
    return {name: jnp.asarray(column[0]) for name, column in part.items()}


def keys() -> list:
    return jax.block_until_ready(list(jax.random.split(jax.random.PRNGKey(0), KEYS)))


def sampled(buffer, state) -> tuple:
    """A function that samples, and one that samples and gives NumPy columns."""
    draw, some = jax.jit(buffer.sample), keys()

    def call(k: int = 0):
        return jax.block_until_ready(draw(state, some[k % KEYS]))

    return call, lambda: {name: np.asarray(column) for name, column in call().experience.items()}


def filled(buffer, parts) -> object:
    """The state after adding all parts."""
    state, add = None, jax.jit(buffer.add, donate_argnums=0)
    for part in parts:
        if state is None:
            state = jax.jit(buffer.init)(first(part))
        state = add(state, {name: jnp.asarray(column) for name, column in part.items()})
    return jax.block_until_ready(state)


@functools.cache
def data() -> Columns:
    return transitions(STEPS)


def item_buffer(prioritized: bool, size: int):
    if prioritized:
        return flashbax.make_prioritised_item_buffer(
            STEPS, 256, size, add_batches=True, priority_exponent=0.6, device="cpu"
        )
    return flashbax.make_item_buffer(STEPS, 256, size, add_batches=True)


@functools.cache
def state(prioritized: bool):
    made = item_buffer(prioritized, 256)
    whole = filled(made, (piece(data(), start, CHUNK) for start in range(0, STEPS, CHUNK)))
    if prioritized:
        change = jax.jit(made.set_priorities, donate_argnums=0)
        rng = np.random.default_rng(1)
        for start in range(0, STEPS, CHUNK):
            ids = jnp.arange(start, start + CHUNK)
            whole = change(whole, ids, jnp.asarray(rng.random(CHUNK, np.float32) + np.float32(0.01)))
    return jax.block_until_ready(whole)


def sample(prioritized: bool, size: int) -> list[Candidate]:
    call, batch = sampled(item_buffer(prioritized, size), state(prioritized))
    return [Candidate(NAME, call, check=lambda: Expected(data()).rows(batch(), size))]


def update(size: int) -> list[Candidate]:
    box = [jax.tree.map(jnp.copy, state(True))]
    change = jax.jit(item_buffer(True, 256).set_priorities, donate_argnums=0)
    given = Updates(size, STEPS)
    ids, values = [jnp.asarray(items) for items in given.items], jnp.asarray(given.values, jnp.float32)
    given.values = jax.block_until_ready(list(values))

    def call(k: int) -> None:
        box[0] = jax.block_until_ready(change(box[0], ids[k % given.sets], given.value(k)))

    return [Candidate(NAME, call)]


def insert() -> list[Candidate]:
    made, size = flashbax.make_item_buffer(200_000, 256, 256, add_batches=True), 200_000
    used = piece(data(), 0, size)
    parts = [piece(used, start, 1000) for start in range(0, size, 1000)]
    given = jax.block_until_ready([{name: jnp.asarray(column) for name, column in part.items()} for part in parts])
    add, box = jax.jit(made.add, donate_argnums=0), [filled(made, parts)]

    def call(k: int) -> None:
        box[0] = jax.block_until_ready(add(box[0], given[k % len(given)]))

    def check() -> None:
        Expected(used).rows(sampled(made, box[0])[1](), 256)

    return [Candidate(NAME, call, check=check)]


@functools.cache
def windows(prioritized: bool) -> list[Candidate]:
    """One row per trajectory, its time axis as long as they are: the layout it suits."""
    more = {"priority_exponent": 0.6, "device": "cpu"} if prioritized else {}
    make = flashbax.make_prioritised_trajectory_buffer if prioritized else flashbax.make_trajectory_buffer
    made = make(
        add_batch_size=STEPS // LENGTH, sample_batch_size=WINDOWS, sample_sequence_length=WINDOW, period=1,
        min_length_time_axis=WINDOW, max_length_time_axis=LENGTH, **more,
    )  # fmt: skip
    rows = {name: column.reshape(-1, LENGTH, *column.shape[1:]) for name, column in data().items()}
    whole = jax.jit(made.init)({name: jnp.asarray(column[0]) for name, column in data().items()})
    add = jax.jit(made.add, donate_argnums=0)
    for start in range(0, LENGTH, 100):
        whole = add(whole, {name: jnp.asarray(column[:, start : start + 100]) for name, column in rows.items()})
    call, batch = sampled(made, jax.block_until_ready(whole))
    return [Candidate(NAME, call, check=lambda: Expected(data()).rows(batch(), WINDOWS))]


@functools.cache
def frames():
    stored, made = Frames(), flashbax.make_item_buffer(FRAMES, 256, 256, add_batches=True)
    return stored, made, filled(made, stored.pieces(500))


def sample_frames() -> list[Candidate]:
    stored, made, whole = frames()
    call, batch = sampled(made, whole)
    return [Candidate(NAME, call, check=lambda: stored.check(batch(), 256))]


CASES = {
    "w1-uniform-256": lambda: sample(False, 256),
    "w1-uniform-4096": lambda: sample(False, 4096),
    "w1-prioritized-256": lambda: sample(True, 256),
    "w1-prioritized-4096": lambda: sample(True, 4096),
    "w1-update-256": lambda: update(256),
    "w1-update-4096": lambda: update(4096),
    "w1-insert-1000": insert,
    "w2-uniform": lambda: windows(False),
    "w2-prioritized": lambda: windows(True),
    "w3-uniform": sample_frames,
}
