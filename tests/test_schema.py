"""Tables and their rules: validated by field, equal by value, the same after msgpack."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear.errors import DataError, GearError, SchemaError
from gear.schema import (
    DTYPES,
    MAX_COLUMNS,
    Bytes,
    Column,
    Epochs,
    Fifo,
    Lifo,
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
    dtype_name,
    flatten,
    from_bytes,
    to_bytes,
)
from tests.strategies import tables

OBS = Column("obs", (4,), "float32")


def table(**fields):
    return Table(**{"name": "replay", "columns": [OBS], "capacity": Steps(1000), **fields})


# ---------------------------------------------------------------- validation names the field

BAD_RULES = [
    (lambda: Steps(0), "Steps: n must be a whole number >= 1, got 0"),
    (lambda: Steps(2.5), "Steps: n must be a whole number >= 1, got 2.5"),
    (lambda: Steps(True), "Steps: n .* got True"),
    (lambda: Steps("9"), "Steps: n .* got '9'"),
    (lambda: Steps(2**63), "Steps: n .* >= 1 and <= 9223372036854775807, got 9223372036854775808"),
    (lambda: Trajectories(-1), "Trajectories: n .* got -1"),
    (lambda: Bytes(None), "Bytes: n .* got None"),
    (lambda: Step(-1), "Step: n .* >= 0"),
    (lambda: Window(0), "Window: length .* >= 1"),
    (lambda: Window(2**31), "Window: length .* <= 2147483647"),
    (lambda: Window(4, stride=0), "Window: stride .* >= 1"),
    (lambda: Window(4, edge="middle"), "Window: edge must be 'inside', 'tail' or 'head', got 'middle'"),
    (lambda: Prioritized(alpha=-0.1), r"Prioritized: alpha must be a number in \[0, 4\], got -0.1"),
    (lambda: Prioritized(alpha=float("nan")), "Prioritized: alpha .* got nan"),
    (lambda: Prioritized(alpha="high"), "Prioritized: alpha .* got 'high'"),
    (lambda: Prioritized(eps=-1e-9), "Prioritized: eps .* got -1e-09"),
    (lambda: Prioritized(eps=float("inf")), "Prioritized: eps .* got inf"),
    (lambda: Uniform("rows"), "Uniform: over must be 'items' or 'trajectories', got 'rows'"),
    (lambda: Queue(0), "Queue: size .* >= 1 and <= 2147483647, got 0"),
    (lambda: Stack(2.5), "Stack: size .* got 2.5"),
    (lambda: MinSize(0), "MinSize: n .* >= 1"),
    (lambda: SampleToInsertRatio(0.0, 1, 10.0), "SampleToInsertRatio: samples_per_insert must be > 0"),
    (lambda: SampleToInsertRatio(float("inf"), 1, 10.0), "SampleToInsertRatio: samples_per_insert"),
    (lambda: SampleToInsertRatio(10**400, 1, 10.0), "SampleToInsertRatio: samples_per_insert"),
    (lambda: SampleToInsertRatio(1.0, 0, 10.0), "SampleToInsertRatio: min_size .* >= 1"),
    (lambda: SampleToInsertRatio(1.0, 1, 0.5), "SampleToInsertRatio: error_buffer .* span of 1; .* at least 2"),
    (lambda: SampleToInsertRatio(8.0, 1, 7.0), "SampleToInsertRatio: error_buffer .* at least 16"),
    (lambda: SampleToInsertRatio(1.0, 1, (5.0, 1.0)), "SampleToInsertRatio: error_buffer .* span of -4"),
    (
        lambda: SampleToInsertRatio(1.0, 1, (1.0, 2.0, 9.0)),
        r"SampleToInsertRatio: error_buffer as a pair is \(low, high",
    ),
    (lambda: SampleToInsertRatio(1.0, 1, (0.0, float("inf"))), "SampleToInsertRatio: error_buffer .* finite"),
    (lambda: SampleToInsertRatio(1.0, 1, "wide"), "SampleToInsertRatio: error_buffer .* got 'wide'"),
]


@pytest.mark.parametrize(("make", "message"), BAD_RULES, ids=[m[:40] for _, m in BAD_RULES])
def test_a_bad_rule_is_refused_naming_class_and_field(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


BAD_COLUMNS = [
    ({"name": ""}, "Column: name .* got ''"),
    ({"name": "obs image"}, "Column: name .* got 'obs image'"),
    ({"name": "/obs"}, "Column: name .* got '/obs'"),
    ({"name": "obs/"}, "Column: name .* got 'obs/'"),
    ({"name": "a//b"}, "Column: name .* got 'a//b'"),
    ({"name": "obs\n"}, "Column: name"),
    ({"name": "x" * 65}, "Column: name"),
    ({"name": 3}, "Column: name .* got 3"),
    ({"shape": (3, 0)}, "Column 'obs': shape must be a whole number >= 1, got 0"),
    ({"shape": (2.0,)}, "Column 'obs': shape .* got 2.0"),
    ({"shape": "3"}, "Column 'obs': shape must be a tuple, got '3'"),
    ({"shape": (1,) * 9}, "Column 'obs': shape has 9 axes"),
    ({"shape": (2**20, 2**20)}, r"Column 'obs': shape \(1048576, 1048576\) of float32 takes \d+ bytes per row"),
    ({"dtype": "complex64"}, "Column 'obs': dtype 'complex64' is not supported; use one of bool, int8"),
    ({"dtype": "flaot32"}, "Column 'obs': dtype 'flaot32' is not supported"),
    ({"dtype": object}, "Column 'obs': dtype <class 'object'> is not supported"),
    ({"dtype": None}, "Column 'obs': dtype None is not supported"),
    ({"dtype": {}}, "Column 'obs': dtype {} is not supported"),
    ({"dtype": "f4,i8"}, "Column 'obs': dtype 'f4,i8' is not supported"),
    ({"per": "episode"}, "Column 'obs': per must be 'step' or 'trajectory', got 'episode'"),
    ({"placement": "gpu"}, "Column 'obs': placement must be 'host' or 'device', got 'gpu'"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_COLUMNS, ids=[str(f)[:40] for f, _ in BAD_COLUMNS])
def test_a_bad_column_is_refused_naming_column_and_field(fields, message):
    with pytest.raises(SchemaError, match=message):
        Column(**{"name": "obs", "shape": (4,), "dtype": "float32", **fields})


BAD_TABLES = [
    ({"name": ""}, "Table: name .* got ''"),
    ({"name": "a/b"}, "Table: name .* got 'a/b'"),
    ({"name": None}, "Table: name .* got None"),
    ({"columns": []}, "Table 'replay': columns is empty"),
    ({"columns": None}, "Table 'replay': columns must be a sequence of Column, got None"),
    ({"columns": [("obs", (4,))]}, "Table 'replay': columns must be a sequence of Column"),
    ({"columns": [Column(f"c{i}") for i in range(MAX_COLUMNS + 1)]}, "Table 'replay': columns has 257 entries"),
    ({"columns": [OBS, OBS]}, "Table 'replay': columns are declared twice: obs"),
    ({"columns": [OBS, Column("obs/image")]}, r"Table 'replay': columns \['obs/image'\] lie under another"),
    ({"columns": [Column("goal", per="trajectory")]}, "Table 'replay': columns has none with per='step'"),
    ({"capacity": 1000}, "Table 'replay': capacity must be one of Steps, Trajectories, Bytes, got 1000"),
    ({"capacity": Bytes(15)}, "Table 'replay': capacity .* smaller than one step of 16 bytes"),
    ({"item": Uniform()}, "Table 'replay': item must be one of Whole, Step, Window"),
    ({"sampler": Window(3)}, "Table 'replay': sampler must be one of Uniform, Prioritized, Fifo"),
    ({"remover": "fifo"}, "Table 'replay': remover must be one of"),
    ({"sampler": Uniform, "limiter": MinSize(1)}, "Table 'replay': sampler must be one of Uniform, Prioritized, Fifo"),
    ({"remover": Epochs()}, r"Table 'replay': remover must be one of Uniform, .*, MinHeap, got Epochs\(\)"),
    ({"remover": Uniform("trajectories")}, "Table 'replay': remover .*a remover takes trajectories; use Uniform"),
    ({"limiter": Queue(9), "sampler": Lifo()}, r"limiter Queue\(size=9\) needs sampler=Fifo\(\), got Lifo\(\); leave"),
    ({"limiter": Queue(9), "sampler": Uniform()}, r"needs sampler=Fifo\(\), got Uniform\(over='items'\)"),
    ({"limiter": Queue(9), "remover": Lifo()}, r"needs remover=Fifo\(\), got Lifo\(\)"),
    ({"limiter": Stack(9), "sampler": Fifo()}, r"limiter Stack\(size=9\) needs sampler=Lifo\(\), got Fifo\(\)"),
    ({"limiter": Stack(9), "remover": Fifo()}, r"needs remover=Lifo\(\), got Fifo\(\)"),
    ({"limiter": Stack(9), "max_times_sampled": 2}, r"Stack\(size=9\) needs max_times_sampled=1, got 2"),
    ({"limiter": Queue(1001)}, r"capacity Steps\(n=1000\) never holds the 1001 items .*raise the capacity or lower"),
    ({"limiter": Queue(9), "capacity": Trajectories(8), "item": Whole()}, "never holds the 9 items"),
    ({"distinct": 1}, "Table 'replay': distinct must be True or False, got 1"),
    (
        {"limiter": None},
        "Table 'replay': limiter must be one of MinSize, SampleToInsertRatio, Queue, Stack, StalenessBudget, got None",
    ),
    ({"mean_length": -1}, "Table 'replay': mean_length .* >= 0"),
    ({"max_length": 1.5}, "Table 'replay': max_length .* got 1.5"),
    ({"max_length": 1001}, "Table 'replay': max_length 1001 is more than the capacity of 1000 steps"),
    ({"capacity": Bytes(160), "max_length": 11}, "Table 'replay': max_length 11 .* capacity of 10 steps"),
    ({"block_steps": 2**31}, "Table 'replay': block_steps .* <= 2147483647"),
    ({"max_times_sampled": 2**31}, "Table 'replay': max_times_sampled"),
    ({"publish": "now"}, "Table 'replay': publish must be 'end' or 'rows', got 'now'"),
    ({"item": Whole(), "publish": "rows"}, "Table 'replay': publish='rows' needs Step or Window items"),
    ({"seed": -1}, "Table 'replay': seed .* >= 0"),
    ({"seed": 2**63}, "Table 'replay': seed"),
    ({"open_ttl": 0}, "Table 'replay': open_ttl"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_TABLES, ids=[m[7:50] for _, m in BAD_TABLES])
def test_a_bad_table_is_refused_naming_table_and_field(fields, message):
    with pytest.raises(SchemaError, match=message):
        table(**fields)


def test_a_refusal_is_a_gear_error_and_a_value_error():
    with pytest.raises(ValueError, match="Steps") as info:
        Steps(0)
    assert isinstance(info.value, GearError)


def test_nothing_can_be_changed_after_construction():
    for value, field in ((table(), "name"), (OBS, "shape"), (Steps(1), "n"), (Window(2), "edge")):
        with pytest.raises(AttributeError):
            setattr(value, field, getattr(value, field))


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_may_be_given_as_name_numpy_dtype_scalar_type_or_torch_dtype(name):
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    spellings = [name, numpy_dtype, numpy_dtype.type]
    if hasattr(torch, name):
        spellings.append(getattr(torch, name))
    assert {dtype_name(s) for s in spellings} == {name}
    assert numpy_dtype.itemsize == DTYPES[name]


def test_python_and_short_spellings_have_one_canonical_name():
    assert [dtype_name(d) for d in (float, int, bool, "f4", "double", torch.float, torch.long)] == [
        "float64",
        "int64",
        "bool",
        "float32",
        "float64",
        "float32",
        "int64",
    ]


def test_the_schema_loads_neither_torch_nor_ml_dtypes_nor_numba():
    code = "import sys, gear.infer; print(sorted({'torch', 'ml_dtypes', 'numba', 'zmq'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------- equality and defaults


def test_tables_are_equal_by_value_whatever_spelling_declared_them():
    one = Table("t", [Column("x", 3, np.float32)], Steps(np.int64(100)), sampler=Prioritized(alpha=1))
    two = Table("t", (Column("x", (3,), "float32"),), Steps(100), sampler=Prioritized(alpha=1.0), publish=None)
    assert one == two
    assert hash(one) == hash(two)
    assert one.differences(two) == []


def test_capacities_of_different_kinds_differ_even_with_the_same_number():
    assert Steps(5) != Trajectories(5)
    assert Uniform() != Fifo()


def test_explicit_defaults_are_equal_to_omitted_ones():
    filled = table(item=Window(8))
    explicit = table(
        item=Window(8, 1, "inside"), sampler=Uniform(), remover=Fifo(), limiter=MinSize(1), mean_length=32,
        max_length=1000, block_steps=4, publish="end",
    )  # fmt: skip
    assert filled == explicit


@pytest.mark.parametrize(
    ("fields", "mean", "block", "longest"),
    [
        ({"item": Step(), "capacity": Steps(10**6)}, 256, 16, 10**6),
        ({"item": Window(64), "capacity": Steps(10**6)}, 256, 32, 10**6),
        ({"item": Window(2, edge="tail"), "capacity": Steps(10**6)}, 8, 1, 10**6),
        ({"item": Whole(), "capacity": Steps(10**6)}, 256, 32, 10**6),
        ({"item": Whole(), "capacity": Steps(10**6), "mean_length": 10_000}, 10_000, 256, 10**6),
        ({"item": Whole(), "capacity": Trajectories(50), "mean_length": 500}, 500, 64, 25_000),
        ({"item": Whole(), "capacity": Trajectories(50), "max_length": 100}, 100, 8, 100),
        ({"item": Whole(), "capacity": Steps(40)}, 40, 4, 40),
        ({"item": Whole(), "capacity": Bytes(16_000)}, 256, 32, 1000),
        ({"item": Window(64), "columns": [Column("frame", (84, 84, 4), "uint8")]}, 256, 8, 1000),
        ({"item": Window(64), "columns": [Column("scene", (1024, 1024), "uint8")]}, 256, 1, 1000),
    ],
)
def test_defaults_follow_item_capacity_and_row_size(fields, mean, block, longest):
    made = table(**fields)
    assert (made.mean_length, made.block_steps, made.max_length) == (mean, block, longest)


@pytest.mark.parametrize("mean", [1, 2, 5, 7, 20, 50, 333, 500, 5000])
@pytest.mark.parametrize("item", [Step(), Window(8), Whole()])
def test_default_blocks_are_a_power_of_two_and_at_most_0_15_of_the_mean_length(item, mean):
    steps = table(item=item, mean_length=mean, capacity=Steps(10**6)).block_steps
    assert steps & (steps - 1) == 0
    assert steps <= max(1, 0.15 * mean)


@pytest.mark.parametrize(("line", "order"), [(Queue(10), Fifo()), (Stack(10), Lifo())])
def test_a_queue_and_a_stack_say_how_they_are_drawn_from(line, order):
    """Origin: Reverb's Table.queue and Table.stack."""
    made = table(limiter=line)
    assert (made.sampler, made.remover, made.max_times_sampled) == (order, order, 1)
    assert made == table(limiter=line, sampler=order, remover=order, max_times_sampled=1)
    assert from_bytes(to_bytes(made)) == made
    assert (line.samples_per_insert, line.min_size, line.bounds) == (1.0, 1, (0.0, 10.0))
    assert Queue(10) != Stack(10)


def test_step_items_are_published_row_by_row_and_others_at_the_end():
    assert [table(item=i).publish for i in (Step(), Window(2), Whole())] == ["rows", "end", "end"]
    assert table(item=Window(2), publish="rows").publish == "rows"


def test_a_ratio_limiter_centres_a_single_buffer_on_the_first_sample():
    assert SampleToInsertRatio(2.0, 100, 50.0).bounds == (150.0, 250.0)
    assert SampleToInsertRatio(2.0, 100, (-10, 40)).bounds == (-10.0, 40.0)
    assert SampleToInsertRatio(2.0, 100, [-10, 40]) == SampleToInsertRatio(2.0, 100, (-10.0, 40.0))


def test_bytes_of_rows_and_steps_leave_out_per_trajectory_columns():
    columns = [Column("a", (17,), "float32"), Column("b", (3, 2), "bfloat16"), Column("goal", (9,), per="trajectory")]
    assert [c.row_bytes for c in columns] == [68, 12, 36]
    assert table(columns=columns).step_bytes == 80


def test_a_column_is_found_by_name_and_a_missing_one_lists_the_others():
    made = table(columns=[OBS, Column("reward")])
    assert made.column("obs") == OBS
    with pytest.raises(SchemaError, match="table 'replay' has no column 'rewards'; it has obs, reward"):
        made.column("rewards")


# ---------------------------------------------------------------- differences


def test_differences_give_one_line_per_field_with_both_values():
    one, two = table(), table(capacity=Steps(2000), seed=3)
    assert one.differences(two) == [
        "capacity: Steps(n=1000) against Steps(n=2000)",
        "max_length: 1000 against 2000",
        "seed: 0 against 3",
    ]


def test_differences_name_the_columns_that_differ_and_no_others():
    one = table(columns=[OBS, Column("action"), Column("reward")])
    two = table(columns=[OBS, Column("action", (), "int64"), Column("done", (), "bool")])
    action, reward, done = one.differences(two)
    assert action.startswith("columns: 'action': Column(")
    assert "float32" in action
    assert "int64" in action
    assert reward.endswith("against none")
    assert done.startswith("columns: 'done': none against Column(")


def test_differences_tell_an_order_of_columns():
    a, b = Column("a"), Column("b")
    assert table(columns=[a, b]).differences(table(columns=[b, a])) == ["columns: the order a, b against b, a"]


# ---------------------------------------------------------------- msgpack


@given(tables())
def test_a_table_is_the_same_after_a_round_trip_through_msgpack(made):
    data = to_bytes(made)
    back = from_bytes(data)
    assert back == made
    assert hash(back) == hash(made)
    assert made.differences(back) == []
    assert to_bytes(back) == data


@given(tables(), st.data())
def test_damaged_bytes_raise_a_schema_error_or_are_another_valid_table(made, data):
    raw = bytearray(to_bytes(made))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        back = from_bytes(bytes(raw))
    except SchemaError:
        return
    assert from_bytes(to_bytes(back)) == back


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_no_table(raw):
    with pytest.raises(SchemaError, match="not a table"):
        from_bytes(raw)


def test_truncated_bytes_and_trailing_bytes_are_refused():
    raw = to_bytes(table())
    for bad in (raw[:-1], raw + b"\x00", b""):
        with pytest.raises(SchemaError, match="not a table"):
            from_bytes(bad)


def test_a_refusal_of_decoded_fields_names_the_field():
    fields = msgspec.msgpack.decode(to_bytes(table()))
    for change, message in (
        ({"seed": -1}, "seed"),
        ({"colour": "red"}, "colour"),
        ({"item": {"type": "window", "length": 0}}, "Window: length"),
        ({"capacity": {"type": "gallons", "n": 3}}, "gallons"),
        ({"columns": [{"name": "obs", "dtype": "f99"}]}, "Column 'obs': dtype 'f99'"),
    ):
        with pytest.raises(SchemaError, match=message):
            from_bytes(msgspec.msgpack.encode({**fields, **change}))


# ---------------------------------------------------------------- flatten


def test_nested_dicts_become_names_with_slashes():
    assert flatten({"obs": {"image": 1, "state": {"q": 2}}, "reward": 3}) == {
        "obs/image": 1,
        "obs/state/q": 2,
        "reward": 3,
    }


def test_two_values_of_one_name_are_refused():
    for tree in ({"a": {"b": 1}, "a/b": 2}, {"a/b": 2, "a": {"b": 1}}):
        with pytest.raises(DataError, match="two values are named 'a/b'"):
            flatten(tree)


def test_an_error_buffer_of_just_the_least_span_is_accepted_whatever_rounding_makes_of_its_bounds():
    limiter = SampleToInsertRatio(3.4165819432189304, 7, 3.4165819432189304)
    low, high = limiter.bounds
    assert high - low < 2 * limiter.samples_per_insert
