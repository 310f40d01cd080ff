"""Hypothesis strategies that several test files draw from."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from gear.schema import (
    DTYPES,
    Bytes,
    Column,
    Epochs,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stack,
    Step,
    Steps,
    Table,
    Trajectories,
    Uniform,
    Whole,
    Window,
)

whole = st.integers(1, 10**6)
name = st.text("abcXYZ019_.-", min_size=1, max_size=8)
columns = st.lists(
    st.builds(
        lambda name, shape, dtype, where: Column(name, shape, dtype, *where),
        st.lists(name, min_size=1, max_size=3).map("/".join),
        st.lists(st.integers(1, 9), max_size=4).map(tuple),
        st.sampled_from(sorted(DTYPES)),
        st.sampled_from([("step", "host"), ("step", "device"), ("trajectory", "host")]),
    ),
    max_size=4,
)
removers = st.one_of(
    *(st.builds(kind) for kind in (Uniform, Fifo, Lifo, MaxHeap, MinHeap)),
    st.builds(Prioritized, st.floats(0, 4), st.floats(0, 1e30, exclude_max=True)),
)
samplers = st.one_of(removers, st.builds(Epochs), st.just(Uniform("trajectories")))
windows = st.builds(Window, st.integers(1, 300), st.integers(1, 99), st.sampled_from(["inside", "tail", "head"]))
limiters = st.one_of(
    st.builds(MinSize, whole),
    st.builds(lambda r, m, e: SampleToInsertRatio(r, m, 2 * max(1.0, r) + e), st.floats(0.01, 99), whole, whole),
    st.builds(lambda r, low, e: SampleToInsertRatio(r, 1, (low, low + 2 * r + 2 + e)), st.floats(1, 9), whole, whole),
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Any valid table of moderate size, with one to five columns."""
    item = draw(st.one_of(st.builds(Whole), st.builds(Step, st.integers(0, 9)), windows))
    # A prefix per column keeps names apart from each other and from being groups of one another.
    made = [msgspec.structs.replace(c, name=f"{i}{c.name}") for i, c in enumerate(draw(columns))]
    capacity = draw(
        st.one_of(st.builds(Steps, whole), st.builds(Trajectories, whole), st.builds(Bytes, st.just(10**9)))
    )
    limit = capacity.n if isinstance(capacity, Steps) else 1000
    line = draw(st.sampled_from([None, None, None, Queue(1), Stack(1)]))
    return Table(
        draw(name),
        [Column("first"), *made],
        capacity,
        item,
        None if line else draw(samplers),
        None if line else draw(removers),
        line or draw(limiters),
        mean_length=draw(st.integers(0, 2000)),
        max_length=draw(st.sampled_from([0, 1, limit // 2 if isinstance(capacity, Steps) else 1])),
        block_steps=draw(st.integers(0, 256)),
        max_times_sampled=0 if line else draw(st.integers(0, 9)),
        distinct=draw(st.booleans()),
        publish=draw(st.sampled_from(["", "end"])),
        seed=draw(st.integers(0, 2**63 - 1)),
        open_ttl=draw(st.floats(0.01, 1e9)),
    )
