"""Every kernel against the reference on the device: fresh random inputs, outputs that begin as poison."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numba import cuda

from benchmarks.measure import WrongResult
from gear.kernels import cuda as kernels
from gear.kernels import host, reference, reference_top, reference_views
from gear.kernels import records as r
from tests.kernels import cases, test_packed, test_views

POISON = 0xA5


def _same(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(got, expected, equal_nan=got.dtype.kind == "f"):
        raise WrongResult(f"{name}: {int((got != expected).sum())} of {got.size} values differ from the reference")


def _gathers(rng: np.random.Generator, count: int) -> None:
    for _ in range(count):
        widths = rng.choice([1, 2, 3, 4, 8, 12, 16, 24, 48, 68, 300], rng.integers(1, 6))
        shape = cases.Shape(
            steps=int(rng.integers(1, 20)),
            blocks=int(rng.integers(1, 9)),
            length=int(rng.choice([1, 1, 2, 7, 20])),
            items=int(rng.integers(0, 9)),
            head=bool(rng.integers(2)),
            mask=bool(rng.integers(2)),
            interleaved=bool(rng.integers(2)),
            columns=tuple((int(rng.integers(2)), int(w), bool(rng.integers(2))) for w in widths),
            hostile=bool(rng.integers(2)),
            seed=int(rng.integers(2**32)),
        )
        case = cases.gather_case(shape)
        _same(f"gather of {shape}", case.run(kernels), case.run(reference))
        _same(f"packed gather of {shape}", test_packed.run(case, kernels), test_packed.run(case, reference))


def _randoms(rng: np.random.Generator, count: int) -> None:
    for _ in range(count):
        seed, first = (int(v) for v in rng.integers(2**62, size=2))
        got, expected = np.full(100, np.nan), np.empty(100)
        kernels.uniforms(seed, first, got)
        reference.uniforms(seed, first, expected)
        _same("numbered random numbers", got, expected)
        if kernels.random_bits(seed, first, 3) != reference.random_bits(seed, first, 3):
            raise WrongResult("random bits differ from the reference")


def _views(rng: np.random.Generator, count: int) -> None:
    for _ in range(count):
        views = []
        for _ in range(int(rng.integers(1, 5))):
            view = {
                "op": int(rng.choice([r.COPY, r.COPY, r.STACK, r.N_STEP, r.TO_GO, r.TIMESTEP])),
                "source": int(rng.integers(13)),
                "result": int(rng.integers(13)),
                "elements": int(rng.choice([1, 3, 20])),
                "offset": int(rng.choice([0, 0, -4, 2])),
                "count": int(rng.choice([0, 0, 1, 6])),
                "side": int(rng.integers(3)),
                "shift": int(rng.integers(5)),
                "depth": int(rng.integers(1, 7)),
                "scale": float(rng.choice([1.0, 0.5, 1 / 255])),
                "gamma": float(rng.choice([0.0, 0.9, 1.0])),
            }
            views.append(view | {k: bool(rng.integers(2)) for k in ("cast", "repeat", "pad", "present")})
            views[-1]["per_trajectory"] = rng.random() < 0.15
        pieces = [rng.integers(1, 13, rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 5))]
        flags = {k: bool(rng.integers(2)) for k in ("interleaved", "head", "packed")}
        steps, length = int(rng.choice([1, 2, 5, 16])), int(rng.choice([1, 4, 9]))
        case = test_views.build(int(rng.integers(2**31)), steps, length, pieces, views, **flags)
        _same(f"views {views}", case.run(kernels), case.run(reference_views))


def _scatters(rng: np.random.Generator, count: int) -> None:
    for _ in range(count):
        widths, steps = [int(w) for w in rng.choice([1, 4, 16, 68, 300], 2)], int(rng.integers(1, 9))
        shape = cases.Shape(steps, 8, 1, 0, False, False, bool(rng.integers(2)), ((0, widths[0], False), (0, widths[1], False)), False, int(rng.integers(2**31)))  # fmt: skip  # noqa: E501
        case = cases.gather_case(shape)
        rows = int(rng.integers(1, 8 * steps + 1))
        values = [rng.integers(0, 256, rows * w, np.uint8) for w in widths]
        blocks, spans = rng.permutation(8).astype(np.int32), np.array([[0, rows, 0]])
        got, expected = case.segment.copy(), case.segment.copy()
        kernels.scatter_many(got, case.plan, [0, 1], blocks, spans, values)
        for c, column in enumerate(values):
            reference.scatter(expected, case.plan, c, blocks, spans, column)
        _same("scatter", got, expected)


def _trees(rng: np.random.Generator, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        leaves = rng.random(size) * (rng.random(size) < 0.7)
        got, expected = cases.tree_of(kernels, leaves), cases.tree_of(host, leaves)
        updates = kernels.Updates(max(sizes))
        for count in (1, size // 10 + 1, size):
            items, values = rng.integers(0, size, count), rng.random(count)
            status = np.full(1, 7)
            updates(*got, items, values, status)
            host.tree_update(*expected, items, values)
            if status[0] != -1:
                raise WrongResult(f"update of {count} of {size}: refused at {status[0]}")
            for name, one, other in zip(("sums", "minima"), got, expected, strict=False):
                _same(f"{name} after an update of {count} of {size}", one, other)
        masses, items, probabilities = np.empty(64), np.full(64, -7), np.full(64, np.nan)
        seed, first = (int(v) for v in rng.integers(2**62, size=2))
        kernels.tree_sample(got[0], got[2], seed, first, items, probabilities)
        host.uniforms(seed, first, masses)
        masses *= host.tree_total(expected[0], expected[2])
        at_masses = cases.drawn(kernels, got[0], got[2], masses)
        _same("draws at masses", at_masses, cases.drawn(host, expected[0], expected[2], masses))
        totals = [(one.tree_total(t[0], t[2]), one.tree_smallest(*t)) for one, t in ((kernels, got), (host, expected))]
        _same("total and smallest leaf", np.array(totals[0]), np.array(totals[1]))
        _same("draws, against the host's", items, cases.drawn(host, expected[0], expected[2], masses))


def _bests(rng: np.random.Generator, count: int, size: int) -> None:
    for _ in range(count):
        entries, keys, stamps = rng.permutation(size), rng.integers(0, 9, size) * 0.5, rng.permutation(size)
        got, expected = np.full(int(rng.integers(1, size)), -7), np.empty(0, np.int64)
        expected = got.copy()
        kernels.top(entries, keys, stamps, 1.0, got)
        reference_top.top(entries, keys, stamps, 1.0, expected)
        _same("the best", got, expected)


def _streams(rng: np.random.Generator, rounds: int) -> None:
    """Batches on a stream of their own, into buffers that are used again, while others are under way."""
    case = cases.gather_case(cases.Shape(4, 8, 6, 8, False, True, False, ((0, 68, True), (0, 4, False)), False, 5))
    ready = kernels.Gather(case.segment, case.plan, case.pads, 8, case.out)
    segment, streams = cuda.to_device(case.segment), [cuda.stream() for _ in range(2)]
    others = [kernels.Gather(case.segment, case.plan, case.pads, 8, case.out), ready]
    outs = [cuda.to_device(np.full_like(case.out, POISON)) for _ in streams]
    for number in range(rounds):
        one = number % 2
        case.starts, case.lengths = rng.integers(0, 32, 8), rng.integers(0, 8, 8).astype(np.int32)
        starts, lengths = (cuda.to_device(a, stream=streams[one]) for a in (case.starts, case.lengths))
        outs[one].copy_to_device(np.full_like(case.out, POISON), stream=streams[one])
        others[one](segment, starts, lengths, outs[one], stream=streams[one])
        got = outs[one].copy_to_host(stream=streams[one])
        streams[one].synchronize()
        case.out[:] = POISON
        _same("a batch on a stream", got, case.run(reference))


def checks(tiny: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """(what is checked, what checks it)"""
    rng = np.random.default_rng()
    yield "gather, padded and packed", lambda: _gathers(rng, 5 if tiny else 150)
    yield "views", lambda: _views(rng, 5 if tiny else 100)
    yield "scatter", lambda: _scatters(rng, 3 if tiny else 50)
    yield "random numbers", lambda: _randoms(rng, 2 if tiny else 20)
    yield "sum tree: build, update, draw", lambda: _trees(rng, (3, 100) if tiny else (3, 100, 5000, 300_000))
    yield "the best by key", lambda: _bests(rng, 2 if tiny else 20, 30 if tiny else 20_000)
    yield "batches on streams", lambda: _streams(rng, 4 if tiny else 200)
