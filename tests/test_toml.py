"""Tables as TOML: what is written is read back equal, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gear
from gear import toml
from gear.schema import Table
from tests.strategies import tables

REPLAY = """
[table.replay]
columns = [{ name = "obs", shape = [17] }, { name = "done", dtype = "bool" }]
capacity = { type = "steps", n = 1_000_000 }
item = { type = "window", length = 64 }
sampler = { type = "prioritized", alpha = 0.7 }
"""


@given(st.lists(tables(), max_size=4, unique_by=lambda table: table.name))
def test_what_is_written_is_read_back_equal(declared):
    text = toml.to_toml(declared)
    assert (toml.from_toml(text) if declared else []) == declared


@given(tables())
def test_what_is_written_leaves_out_what_a_table_has_anyway(table):
    """Leaving out any one more field gives another table, or none."""
    told = toml._told(table)
    for name in set(told) - {"name"}:
        try:
            assert Table(**{k: v for k, v in told.items() if k != name}) != table
        except (gear.SchemaError, TypeError):
            pass


def test_a_table_is_read_as_one_would_write_it_in_python():
    assert toml.from_toml(REPLAY) == [
        Table(
            "replay",
            [gear.Column("obs", (17,)), gear.Column("done", (), "bool")],
            gear.Steps(1_000_000),
            gear.Window(64),
            gear.Prioritized(0.7),
        )
    ]


def test_a_table_is_written_as_one_would_read_it():
    table = Table(
        "a.b",
        [gear.Column("obs/image", (84, 84), "uint8"), gear.Column("reward")],
        gear.Bytes(10**9),
        sampler=gear.Fifo(),
        limiter=gear.SampleToInsertRatio(1.5, 2, (0, 5)),
        seed=7,
    )
    assert toml.to_toml([table]) == (
        '[table."a.b"]\n'
        "columns = [\n"
        '  { name = "obs/image", shape = [84, 84], dtype = "uint8" },\n'
        '  { name = "reward" },\n'
        "]\n"
        'capacity = { type = "bytes", n = 1_000_000_000 }\n'
        'sampler = "fifo"\n'
        'limiter = { type = "sample_to_insert_ratio", samples_per_insert = 1.5, min_size = 2, '
        "error_buffer = [0.0, 5.0] }\n"
        "seed = 7\n"
    )


def test_tables_keep_their_order_and_sub_tables_say_the_same():
    text = '[table.b]\ncapacity.type = "steps"\ncapacity.n = 9\n[[table.b.columns]]\nname = "x"\n'
    text += REPLAY
    assert [table.name for table in toml.from_toml(text)] == ["b", "replay"]
    assert toml.from_toml(text)[0] == Table("b", [gear.Column("x")], gear.Steps(9))


class _Newest(msgspec.Struct, frozen=True, tag="newest"):
    share: float = 0.5


class _Oldest(msgspec.Struct, frozen=True, tag="oldest"):
    pass


class _Made(msgspec.Struct, frozen=True):
    name: str
    order: _Newest | _Oldest
    label: str = ""


@pytest.mark.parametrize("order", [_Newest(), _Newest(0.25), _Oldest()])
def test_a_rule_that_nobody_told_this_file_about_comes_back(order):
    made = _Made("x", order)
    fields = toml._parse("made = " + toml._written(made))["made"]
    assert toml._struct(_Made, fields, "file", "") == made


@given(st.text())
def test_any_text_comes_back(text):
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        return  # no Unicode text
    assert toml._parse(f"x = {toml._written(text)}\n{toml._key(text)} = 1" if text != "x" else "x = 'x'")["x"] == text


@given(st.floats(allow_nan=False))
def test_any_float_comes_back(number):
    assert repr(toml._parse(f"x = {toml._written(number)}")["x"]) == repr(number)


WRONG = {
    "": "expected a [table.NAME] for each table, got none",
    "table = 3": "expected a [table.NAME] for each table, got 3",
    "[[table]]\nname = 'x'": "expected a [table.NAME] for each table, got an array of tables: give each its name",
    "[tables.x]": "expected nothing but [table.NAME], got 'tables'",
    "[table.x\n": "expected TOML: Expected ']' at the end of a table declaration (at line 1, column 9)",
    "[table.x]\n[table.x]": "expected TOML: Cannot declare",
    "table.x = 1": "table 'x': expected a table with the fields of Table, got 1",
    "[table.x]\nname = 'x'": "table 'x', name: expected no such field, as the name stands in [table.NAME]",
    "[table.x]\ncolums = []": "got 'colums'; did you mean 'columns'?",
    "[table.x]\ncolumns = []": "table 'x': expected field 'capacity' of Table, got columns",
    "[table.x]\ncolumns = {}\ncapacity = 1": "table 'x', columns: expected an array of Column, got {}",
    "[table.x]\ncolumns = ['obs']": "table 'x': expected field 'capacity'",
    "[table.'x y']\ncolumns = [{name='a'}]\ncapacity = {type='steps', n=1}": "name must be 1 to 128 letters",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_a_document_that_declares_no_tables_is_refused(text, message):
    with pytest.raises(gear.SchemaError) as refused:
        toml.from_toml(text, "my.toml")
    assert str(refused.value).startswith("my.toml: ")
    assert message in str(refused.value)


FIELDS = {
    "columns = ['obs']": "columns[0]: expected a table with the fields of Column, got 'obs'",
    "columns = [{name='a'}, {shape=[1]}]": "columns[1]: expected field 'name' of Column, got shape",
    "columns = [{name='a', shape=['b']}]": "columns[0].shape[0]: expected int, got ['b']",
    "columns = [{name='a', shape=[0]}]": "columns[0]: Column 'a': shape must be a whole number >= 1, got 0",
    "columns = [{name='a', dtype='float23'}]": "columns[0]: Column 'a': dtype 'float23' is not supported",
    "columns = [{name='a', per='trajectory'}]": "columns has none with per='step'",
    "columns = [{name='a', per='steps'}]": "columns[0].per: expected 'step' or 'trajectory', got 'steps'",
    "columns = [{name='a'}, {name='a'}]": "columns are declared twice: a",
    "capacity = 1000": "capacity: expected 'steps' or 'trajectories' or 'bytes', or a table with such a type, got 1000",
    "capacity = {n = 3}": "capacity: expected field 'type', one of 'steps' or 'trajectories' or 'bytes', got {'n': 3}",
    "capacity = {type = 'step', n = 3}": "capacity.type: expected 'steps' or 'trajectories' or 'bytes', got 'step'",
    "capacity = {type = 'steps'}": "capacity: expected field 'n' of Steps, got no field",
    "capacity = 'steps'": "capacity: expected field 'n' of Steps, got no field",
    "capacity = {type = 'steps', n = '3'}": "capacity.n: expected int, got '3'",
    "capacity = {type = 'steps', n = true}": "capacity.n: expected int, got True",
    "capacity = {type = 'steps', n = 0}": "capacity: Steps: n must be a whole number >= 1, got 0",
    "capacity = {type = 'steps', m = 1}": "capacity: expected fields of Steps (n), got 'm'",
    "capacity = {type = 3, n = 3}": "capacity.type: expected 'steps' or 'trajectories' or 'bytes', got 3",
    "sampler = 'unifrom'": "sampler: expected 'uniform' or",
    "sampler = {type = 'prioritized', alpha = nan}": "sampler: Prioritized: alpha must be a number in [0, 4], got nan",
    "sampler = {type = 'prioritized', alpha = '1'}": "sampler.alpha: expected float, got '1'",
    "publish = 'row'": "publish: expected 'end' or 'rows', got 'row'",
    "seed = 1.5": "seed: expected int, got 1.5",
    "seed = 1979-05-27": "seed: expected int, got datetime.date(1979, 5, 27)",
    "open_ttl = 0": "Table 'x': open_ttl must be a number in [0.001, inf], got 0",
    f"publish = '{'x' * 5000}'": "... (5002 characters)",
}


@pytest.mark.parametrize(("line", "message"), FIELDS.items(), ids=lambda text: text[:50])
def test_a_wrong_field_is_refused_naming_file_table_field_and_both_values(line, message):
    fields = {"columns": "columns = [{name='a'}]", "capacity": "capacity = {type='steps', n=100}"}
    fields[line.partition(" = ")[0]] = line
    with pytest.raises(gear.SchemaError) as refused:
        toml.from_toml("[table.x]\n" + "\n".join(fields.values()), "my.toml")
    assert str(refused.value).startswith("my.toml: table 'x'")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 500


def test_values_nested_without_end_are_refused():
    with pytest.raises(gear.SchemaError, match="expected TOML"):
        toml.from_toml("x = " + "[" * 100_000, "my.toml")


def test_the_documented_file_is_one():
    text = (Path(__file__).parent.parent / "docs" / "tables.md").read_text()
    documented = text.partition("```toml\n")[2].partition("```")[0]
    tables = toml.from_toml(documented)
    assert [table.name for table in tables] == ["replay", "rollouts"]
    assert toml.to_toml(tables) == documented
