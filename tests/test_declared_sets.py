"""What a table may declare about late columns, open trajectories and versions."""

from __future__ import annotations

import pytest

import gear
from gear.errors import SchemaError
from gear.schema import from_bytes, to_bytes
from gear.storage.item_sets import item_sets, set_number
from gear.toml import from_toml, to_toml

COLUMNS = (gear.Column("x"), gear.Column("a", late=True), gear.Column("b", late=True), gear.Column("c", late=True))


def table(**fields) -> gear.Table:
    return gear.Table("t", fields.pop("columns", COLUMNS), gear.Steps(100), **{"item": gear.Whole(), **fields})


def test_requirements_come_in_the_order_of_the_columns_each_name_once():
    assert table(requirements=["b", ("c", "a", "c"), {"a"}]).requirements == (("b",), ("a", "c"), ("a",))


def test_sets_are_numbered_as_declared_and_told_by_the_bits_of_their_columns():
    one = table(requirements=["b", ("a", "c")], include_open=True)
    assert [(s.number, s.needs, s.with_open) for s in item_sets(one)] == [
        (0, 0, False), (1, 0b010, False), (2, 0b101, False), (3, 0, True),
    ]  # fmt: skip
    assert [set_number(one, *q) for q in (((), False), (("b",), False), (("c", "a"), False), ((), True))] == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"requirements": ["x"]}, r"requirements name 'x', expected late columns \(a, b, c\)"),
        ({"requirements": [()]}, "a requirement must name one or more late columns"),
        ({"requirements": "a"}, "requirements must be a sequence of sets"),
        ({"requirements": ["a", ("a",)]}, r"requirement \('a',\) is declared twice"),
        ({"columns": COLUMNS[1:]}, "columns has none with per='step' that comes with the insert"),
        ({"include_open": True, "sampler": gear.Prioritized()}, "expected sampler Uniform, Fifo or Lifo"),
        ({"include_open": True, "max_times_sampled": 1}, "expected limiter MinSize and max_times_sampled=0"),
        ({"include_open": True, "max_staleness": 1}, "leave max_staleness out"),
        ({"max_staleness": -1}, "max_staleness must be a whole number >= 0"),
        ({"max_staleness": 1, "item": gear.Step()}, "declare publish='end'"),
        ({"sampler": gear.Fresh(), "item": gear.Window(3), "publish": "rows"}, "declare publish='end'"),
        ({"remover": gear.Fresh()}, "remover must be one of"),
        ({"requirements": ["a"], "shards": 2}, "shards must be 1 where there are late columns"),
        ({"max_staleness": 1, "columns": COLUMNS[:1], "shards": 3}, "shards must be 1"),
    ],
)
def test_what_can_not_go_together_is_refused(fields, message):
    with pytest.raises(SchemaError, match=message):
        table(**fields)


def test_at_most_8_requirements():
    columns = (gear.Column("x"), *(gear.Column(f"c{n}", late=True) for n in range(9)))
    with pytest.raises(SchemaError, match="9 requirements, at most 8 are supported"):
        table(columns=columns, requirements=[f"c{n}" for n in range(9)])


@pytest.mark.parametrize("batch", [0, -1, 2.5])
def test_a_budget_is_of_whole_batches(batch):
    with pytest.raises(SchemaError, match="StalenessBudget: batch must be a whole number >= 1"):
        gear.StalenessBudget(batch)


@pytest.mark.parametrize(
    "fields",
    [
        {"requirements": ["b", ("a", "c")], "include_open": True},
        {"max_staleness": 0, "sampler": gear.Fresh(), "limiter": gear.StalenessBudget(64, eta=2)},
    ],
)
def test_they_travel_and_come_back_from_toml(fields):
    one = table(**fields)
    assert from_bytes(to_bytes(one)) == one
    assert from_toml(to_toml([one])) == [one]
