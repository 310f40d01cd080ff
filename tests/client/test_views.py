"""Views of items: every one of them equals a plain NumPy composition of the trajectories that were stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gear

COLUMNS = [
    gear.Column("id", (), "int64"),
    gear.Column("frame", (2, 3), "uint8"),
    gear.Column("reward", (), "float32"),
    gear.Column("cost", (2,), "float64"),
    gear.Column("goal", (3,), "float32", per="trajectory"),
]
PER_STEP = ("id", "frame", "reward", "cost")


@dataclass
class Told:
    """A trajectory as it was inserted."""

    number: int
    columns: dict[str, np.ndarray]
    final: dict[str, np.ndarray] | None
    terminated: bool

    def __len__(self) -> int:
        return len(self.columns["id"])

    def column(self, name: str, position: int) -> np.ndarray | None:
        """Row at a position, the final one at the end or behind it, None where there is none."""
        if position < len(self):
            return self.columns[name][position]
        if self.final is None:
            return None
        return self.final.get(name, np.zeros_like(self.columns[name][0]))


def tell(rng: np.random.Generator, number: int, steps: int, final: bool, terminated: bool) -> Told:
    columns = {
        "id": number * 1000 + np.arange(steps),
        "frame": rng.integers(0, 256, (steps, 2, 3)).astype(np.uint8),
        "reward": rng.normal(size=steps).astype(np.float32),
        "cost": rng.normal(size=(steps, 2)),
        "goal": np.full(3, number, np.float32),
    }
    last = {"frame": rng.integers(0, 256, (2, 3)).astype(np.uint8), "id": np.int64(number * 1000 + steps)}
    return Told(number, columns, last if final else None, terminated)


@dataclass
class Expected:
    """What one view of one item should be: values, which of them are there, and what an n-step view adds."""

    values: list[Any]
    there: list[bool]
    discounts: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def compose(told: Told, view: Any, first: int, position: int, own: int, places: int) -> Expected:
    """`places` rows from position `first` on, by NumPy alone; the item's own are `own` from `position` on."""
    name, low, high = view.column, 0, len(told)
    begin = first + view.offset
    count = view.length or places
    positions = range(begin, begin + count)
    start, stop = (low, high) if view.offset or view.length else (position, position + own)
    shown = [p for p in positions if start <= p < stop]
    gap = {"tail": 0, "head": count - len(shown)}.get(view.pad, shown[0] - begin if shown else 0)
    result = Expected([None] * count, [False] * count, [0.0] * count, [0] * count)
    for place, p in enumerate(shown, gap):
        value = None
        if isinstance(view, gear.View):
            q = min(p + view.shift, high)
            last = told.column(name, q)
            if last is not None and view.stack:
                frames = []
                for f in range(q - view.stack + 1, q + 1):
                    frame = told.column(name, max(f, low))
                    frames.append(frame if f >= low or view.fill == "repeat" else np.zeros_like(frame))
                value = np.stack(frames)
            else:
                value = last
            if value is not None and view.dtype:
                value = (value.astype(np.float64) * view.scale).astype(view.dtype)
        elif isinstance(view, gear.NStep):
            k = min(view.n, high - p)
            rewards = told.columns[name][p : p + k].astype(np.float64)
            value = np.tensordot(view.gamma ** np.arange(k), rewards, 1)
            ended = told.terminated and p + k == high
            result.discounts[place] = 0.0 if ended else view.gamma**k
            result.steps[place] = k
        elif isinstance(view, gear.ReturnToGo):
            rewards = told.columns[name][p:high].astype(np.float64)
            value = np.tensordot(view.gamma ** np.arange(len(rewards)), rewards, 1)
        else:
            value = p
        result.values[place], result.there[place] = value, value is not None
    return result


placed = {
    "offset": st.sampled_from([0, 0, 0, -3, -1, 1, 4]),
    "length": st.sampled_from([0, 0, 1, 5]),
    "pad": st.sampled_from(["", "", "head", "tail"]),
}
in_place = {"offset": st.sampled_from([0, 0, -2, 3])}


def views_of(places: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    value = st.sampled_from([0, 7])
    plain = st.builds(gear.View, st.sampled_from(["id", "frame", "reward", "cost"]), value=value, **places)
    shifted = st.builds(gear.View, st.sampled_from(["frame", "id"]), shift=st.integers(1, 4), value=value, **places)
    stacked = st.builds(
        gear.View,
        st.sampled_from(["frame", "reward"]),
        stack=st.integers(1, 5),
        shift=st.integers(0, 2),
        fill=st.sampled_from(["repeat", "zero"]),
        **places,
    )
    cast = st.builds(
        gear.View,
        st.sampled_from(["frame", "reward", "cost", "id"]),
        dtype=st.sampled_from(["float32", "float64", "float16"]),
        scale=st.sampled_from([1.0, 1 / 255]),
        stack=st.sampled_from([0, 2]),
        **places,
    )
    gamma = st.sampled_from([0.0, 0.5, 0.9, 1.0])
    n_step = st.builds(gear.n_step, st.sampled_from(["reward", "cost"]), st.integers(1, 7), gamma, **places)
    to_go = st.builds(gear.return_to_go, st.sampled_from(["reward", "cost"]), gamma, **places)
    time = st.builds(gear.timestep, **places)
    return st.lists(st.one_of(plain, shifted, stacked, cast, n_step, to_go, time), min_size=1, max_size=4)


items = st.sampled_from(
    [
        gear.Whole(),
        gear.Step(0),
        gear.Step(2),
        gear.Window(1),
        gear.Window(4),
        gear.Window(9),
        gear.Window(4, stride=3),
        gear.Window(6, edge="tail"),
        gear.Window(6, edge="head"),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    item = draw(items)
    packed = draw(st.booleans())
    return {
        "item": item,
        "layout": "packed" if packed else "padded",
        "views": draw(views_of(in_place if packed else placed)),
        "max_length": draw(st.sampled_from([3, 8, 200])),
        "block_steps": draw(st.sampled_from([1, 2, 4, 16])),
        "lengths": draw(st.lists(st.integers(1, 40), min_size=1, max_size=5)),
        "finals": draw(st.lists(st.booleans(), min_size=5, max_size=5)),
        "terminated": draw(st.lists(st.booleans(), min_size=5, max_size=5)),
        "seed": draw(st.integers(0, 99)),
    }


def named(views: list[Any]) -> list[Any]:
    """The views under names of their own."""
    return [msgspec.structs.replace(v, name=f"v{i}") for i, v in enumerate(views)]


def check(batch: Any, views: list[Any], told: list[Told], item: Any, packed: bool) -> None:
    """Compare every item of a batch with the composition."""
    ids, lengths = np.asarray(batch["id"]), np.asarray(batch.lengths)
    step = isinstance(item, gear.Step)
    head = isinstance(item, gear.Window) and item.edge == "head"
    longest = 1 if step else item.length if isinstance(item, gear.Window) else int(lengths.max())
    at = 0
    for k, own in enumerate(lengths.tolist()):
        if packed:
            key = int(ids[at])
        else:
            key = int(ids[k] if step else ids[k, longest - own if head else 0])
        one, position = told[key // 1000], key % 1000
        first = position - (longest - own) if head and not packed else position
        places = own if packed else longest
        np.testing.assert_array_equal(batch["goal"][k], one.columns["goal"])
        for view in views:
            want = compose(one, view, first, position, own, places)
            where = slice(at, at + own) if packed else k
            compare(batch, view, want, where, step and not view.length and not packed)
        if not packed and not step:
            gap = longest - own if head else 0
            assert batch.mask[k].tolist() == [gap <= j < gap + own for j in range(longest)]
        at += own
    if packed:
        assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths).tolist()]
        assert batch.cu_seqlens.dtype == np.int32
        assert len(ids) == lengths.sum()


def compare(batch: Any, view: Any, want: Expected, where: Any, single: bool) -> None:
    n_step = isinstance(view, gear.NStep)
    name = f"{view.key}/return" if n_step else view.key
    got = batch[name][where]
    there = batch.mask_of(name)[where]
    if single:
        got, there = got[None], np.array([there])
    assert len(got) == len(want.values)
    if view.moved or getattr(view, "shift", 0):
        assert there.tolist() == want.there, (view, want)
    for j, value in enumerate(want.values):
        if value is None:
            assert (got[j] == np.asarray(view.value).astype(got.dtype)).all(), (view, j, got)
        elif isinstance(view, (gear.NStep, gear.ReturnToGo)):
            np.testing.assert_allclose(got[j], value, rtol=1e-4, atol=1e-5, err_msg=str(view))
        else:
            np.testing.assert_array_equal(got[j], value, err_msg=str(view))
    if n_step:
        discounts, steps = (np.atleast_1d(batch[f"{view.key}/{part}"][where]) for part in ("discount", "steps"))
        np.testing.assert_allclose(discounts, want.discounts, rtol=1e-5)
        assert steps.tolist() == want.steps


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_every_view_of_every_item_in_every_layout_equals_a_composition_of_the_trajectories(case):
    """Length 1, windows longer than the trajectory, many blocks, pieces split at `max_length`."""
    table = gear.Table(
        "t",
        COLUMNS,
        gear.Steps(400),
        item=case["item"],
        mean_length=10,
        max_length=case["max_length"],
        block_steps=case["block_steps"],
        seed=case["seed"],
    )
    rng = np.random.default_rng(case["seed"])
    views = named(case["views"])
    with gear.embedded([table]) as client:
        told = []
        for number, steps in enumerate(case["lengths"]):
            told.append(tell(rng, number, steps, case["finals"][number], case["terminated"][number]))
            one = told[-1]
            client.insert(one.columns, final=one.final, terminated=one.terminated)
        packed = case["layout"] == "packed"
        query = gear.Query(13, views=["id", "goal", *views], layout=case["layout"])
        batch = client.sample(query)
        check(batch, views, told, case["item"], packed)
        selection = client.select(query)
        for k in range(12):  # what was selected leaves the table before it is collected
            client.insert(tell(rng, 90 + k, 35, False, False).columns)
        batch = client.collect(selection, query.views, layout=case["layout"])
        check(batch, views, told, case["item"], packed)
        client.release(selection)
        assert client.info()["tables"]["t"]["held_blocks"] == 0
