"""Tables as TOML and back: plain data both ways, derived from the declarations themselves.

A file holds a ``[table.NAME]`` for each table. Its keys are the fields of `Table`; columns are an array of
tables with the fields of `Column`. A capacity, item, sampler, remover or limiter is named by its tag, as
``{ type = "prioritized", alpha = 0.6 }``, or by the tag alone, as ``"uniform"``, where its defaults will do.
Nothing here knows a single rule: fields, tags and defaults come from the structs of `gear.schema`, so a new
sampler needs no change. Nothing here opens a file or a socket.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gear.errors import SchemaError
from gear.schema import Table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CONTROL = re.compile(r'["\\\x00-\x1f\x7f]')
_EXPECTED = re.compile(r"Expected `(.*)`, got `.*?`(?: - at `\$(.*)`)?")
_KEYS = "[table.NAME]"
_LONGEST = 100
"""Characters of a refused value that an error shows."""


# From TOML


def from_toml(text: str, source: str = "tables.toml") -> list[Table]:
    """The tables that a TOML document declares, in its order.

    Parameters
    ----------
    text : str
    source : str
        Name of the document in errors.

    Raises
    ------
    SchemaError
        Naming source, table and field, what was expected and what came.
    """
    try:
        document = _parse(text)
    except RecursionError:
        raise SchemaError(f"{source}: expected TOML, got values nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one
        raise SchemaError(f"{source}: expected TOML: {error}") from None
    for key in document:
        if key != "table":
            raise SchemaError(f"{source}: expected nothing but {_KEYS}, got {key!r}")
    tables = document.get("table")
    if not isinstance(tables, dict) or not tables:
        got = "an array of tables: give each its name" if isinstance(tables, list) else _shown(tables)
        raise SchemaError(f"{source}: expected a {_KEYS} for each table, got {'none' if tables is None else got}")
    return [_table(name, fields, f"{source}: table {name!r}") for name, fields in tables.items()]


def _parse(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _table(name: str, fields: object, where: str) -> Table:
    if isinstance(fields, dict) and "name" in fields:
        raise SchemaError(f"{where}, name: expected no such field, as the name stands in {_KEYS}")
    table: Table = _struct(Table, fields, where, "", {"name": name})
    return table


def _struct(cls: Any, value: object, where: str, path: str, given: Mapping[str, object] | None = None) -> Any:
    """An instance of a struct from its fields; those `given` are not expected in `value`."""
    given = given or {}
    at = f"{where}, {path}" if path else where
    if not isinstance(value, dict):
        raise SchemaError(f"{at}: expected a table with the fields of {cls.__name__}, got {_shown(value)}")
    hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in cls.__struct_fields__}
    known = [name for name in hints if name not in given]
    for name in value:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SchemaError(f"{at}: expected fields of {cls.__name__} ({', '.join(known)}), got {name!r}{hint}")
    required = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    missing = [name for name in cls.__struct_fields__[:required] if name not in value and name not in given]
    if missing:
        raise SchemaError(
            f"{at}: expected field {missing[0]!r} of {cls.__name__}, got {', '.join(value) or 'no field'}"
        )
    prefix = f"{path}." if path else ""
    fields = {name: _value(hints[name], value[name], where, prefix + name) for name in value}
    try:
        return cls(**given, **fields)
    except SchemaError as error:
        raise SchemaError(f"{at}: {error}") from None


def _value(hint: Any, value: object, where: str, path: str) -> Any:
    kinds = tuple(kind for kind in typing.get_args(hint) if kind is not types.NoneType)  # TOML has no null
    if _is_union(hint) and len(kinds) == 1:
        return _value(kinds[0], value, where, path)
    if _is_struct(hint):
        return _struct(hint, value, where, path)
    if _is_union(hint) and all(map(_is_struct, kinds)):
        return _tagged(kinds, value, where, path)
    if kinds and _is_struct(kinds[0]):
        if not isinstance(value, list):
            raise SchemaError(f"{where}, {path}: expected an array of {kinds[0].__name__}, got {_shown(value)}")
        return [_struct(kinds[0], entry, where, f"{path}[{n}]") for n, entry in enumerate(value)]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if typing.get_origin(hint) is typing.Literal:
            expected, inner = " or ".join(repr(kind) for kind in kinds if kind != ""), ""
        else:
            match = _EXPECTED.match(str(error))
            expected, inner = (match[1], match[2] or "") if match else (str(error), "")
        raise SchemaError(f"{where}, {path}{inner}: expected {expected}, got {_shown(value)}") from None


def _tagged(kinds: tuple[Any, ...], value: object, where: str, path: str) -> Any:
    """One of several structs, by its tag."""
    by_tag = {kind.__struct_config__.tag: kind for kind in kinds}
    expected = " or ".join(repr(tag) for tag in by_tag)
    if not isinstance(value, (str, dict)):
        raise SchemaError(f"{where}, {path}: expected {expected}, or a table with such a type, got {_shown(value)}")
    if isinstance(value, str):
        tag, fields = value, {}
    else:
        fields = dict(value)
        tag = fields.pop("type", None)
        if tag is None:
            raise SchemaError(f"{where}, {path}: expected field 'type', one of {expected}, got {_shown(value)}")
        path_of_tag = f"{path}.type"
    if not isinstance(tag, str) or tag not in by_tag:
        raise SchemaError(
            f"{where}, {path if isinstance(value, str) else path_of_tag}: expected {expected}, got {_shown(tag)}"
        )
    return _struct(by_tag[tag], fields, where, path)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


# To TOML


def to_toml(tables: Iterable[Table]) -> str:
    """The tables as a TOML document that `from_toml` reads back to equal ones; defaults are left out."""
    return "\n".join(_lines(table) for table in tables)


def _lines(table: Table) -> str:
    lines = [f"[table.{_key(table.name)}]"]
    for name, value in _told(table).items():
        if name == "columns":
            lines += ["columns = [", *(f"  {_written(column)}," for column in value), "]"]
        elif name != "name":
            lines.append(f"{name} = {_written(value)}")
    return "\n".join(lines) + "\n"


def _told(value: msgspec.Struct) -> dict[str, Any]:
    """The fields without which the value would be another one; a default may follow from other fields."""
    cls: Any = type(value)
    told = {name: getattr(value, name) for name in value.__struct_fields__}
    required = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    for name in cls.__struct_fields__[required:]:
        fewer = {other: told[other] for other in told if other != name}
        try:
            if cls(**fewer) == value:
                told = fewer
        except SchemaError:
            pass
    return told


def _written(value: object) -> str:
    """A value on one line."""
    if isinstance(value, msgspec.Struct):
        fields = [f"{_key(name)} = {_written(field)}" for name, field in _told(value).items()]
        tag = value.__struct_config__.tag
        if tag is not None and not fields:
            return _written(tag)
        if tag is not None:
            fields.insert(0, f"type = {_written(tag)}")
        return f"{{ {', '.join(fields)} }}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return repr(value)  # digits enough for the same float; inf is TOML too
    if isinstance(value, str):
        return f'"{_CONTROL.sub(_escaped, value)}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(str(k))} = {_written(v)}' for k, v in value.items())} }}"
    raise SchemaError(f"expected a value that TOML can hold, got {value!r}")


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _written(name)
