"""Requests of every kind, from sound to garbled, with buffers that fit and buffers that do not.

What a field may hold is read from the message types themselves, so that a message added tomorrow is fuzzed tomorrow.
"""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect

from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m
from tests.fuzz.sound import SOUND, Known

KINDS: tuple[type[m.Message], ...] = m.Request.__args__  # type: ignore[attr-defined]
_TYPES = {kind: inspect.type_info(kind) for kind in KINDS}
_EDGES = (
    0,
    1,
    -1,
    2,
    3,
    255,
    256,
    4095,
    4096,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e10, 1e300, math.inf, -math.inf, math.nan)
_TEXTS = ("", "t", "nothing", "x", "y", "a/b", "\x00", "é" * 50, "policy", "trainer", "int64", "float32", "late")
_INT32 = np.array([0, 1, 2, 3, 7, 63, 64, 1000, -1, -2, 2**31 - 1, -(2**31)], np.int32)


def _junk(chance: Random, depth: int = 0) -> Any:
    """Any plain data."""
    kind = chance.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind in (1, 2):
        return chance.choice(_EDGES)
    if kind == 3:
        return chance.choice(_FLOATS)
    if kind == 4:
        return chance.choice(_TEXTS)
    if kind == 5:
        return _noise(chance, 40)
    if kind == 6:
        return {chance.choice(_TEXTS): _junk(chance, depth + 1) for _ in range(chance.randrange(3))}
    return [_junk(chance, depth + 1) for _ in range(chance.randrange(4))]


def _noise(chance: Random, most: int) -> bytes:
    n = chance.randrange(most)
    return chance.getrandbits(8 * n).to_bytes(n, "little") if n else b""


def _value(chance: Random, kind: Any, known: Known) -> Any:
    """Plain data that a field of that type takes, or nearly."""
    if isinstance(kind, inspect.IntType):
        low = kind.ge if kind.ge is not None else -(1 << 63)
        high = kind.le if kind.le is not None else kind.lt - 1 if kind.lt is not None else (1 << 63) - 1
        if high == 255 and chance.random() < 0.9:
            return chance.randrange(len(known.places))
        pick = chance.random()
        if pick < 0.4:
            return max(low, min(high, chance.choice((known.ticket, chance.choice(known.places).drawn.pin))))
        return chance.choice(_EDGES) if pick > 0.97 else max(low, min(high, chance.choice(_EDGES)))
    if isinstance(kind, inspect.FloatType):
        return chance.choice((0.0, 0.0, 0.001, 0.05, 1.0)) if chance.random() < 0.9 else chance.choice(_FLOATS)
    if isinstance(kind, inspect.BoolType):
        return chance.random() < 0.5
    if isinstance(kind, inspect.StrType):
        return chance.choice((*_TEXTS, *(place.table.name for place in known.places)))
    if isinstance(kind, inspect.BytesType):
        if kind.min_length == 16:
            return _noise(chance, 2) * 16 if chance.random() < 0.2 else bytes(16)
        if kind.max_length == 1 << 20:
            return damaged(chance, chance.choice(known.specs)) if chance.random() < 0.7 else chance.choice(known.specs)
        return _noise(chance, 65)
    if isinstance(kind, (inspect.ListType, inspect.VarTupleType)):
        n = (kind.min_length or 0) + (chance.randrange(4) if chance.random() < 0.95 else chance.randrange(300))
        return [_value(chance, kind.item_type, known) for _ in range(n)]
    if isinstance(kind, inspect.TupleType):
        return [_value(chance, one, known) for one in kind.item_types]
    if isinstance(kind, inspect.UnionType):
        return _value(chance, chance.choice(kind.types), known)
    if isinstance(kind, inspect.LiteralType):
        return chance.choice(kind.values)
    if isinstance(kind, inspect.StructType):
        return _struct(chance, kind, known)
    return None


def _struct(chance: Random, kind: inspect.StructType, known: Known) -> Any:
    values = [_value(chance, one.type, known) for one in kind.fields]
    if kind.array_like:
        return values if kind.tag is None else [kind.tag, *values]
    named = {
        one.encode_name: v for one, v in zip(kind.fields, values, strict=True) if one.required or chance.random() < 0.3
    }
    return named if kind.tag is None else {kind.tag_field: kind.tag, **named}


def damaged(chance: Random, data: bytes) -> bytes:
    """Some bytes flipped, lost or added."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        kind, at = chance.randrange(4), chance.randrange(len(out) + 1)
        if kind == 0 or not out:
            out[at:at] = _noise(chance, 9)
        elif kind == 1:
            del out[at : at + 1 + chance.randrange(8)]
        else:
            out[at % len(out)] ^= 1 << chance.randrange(8)
    return bytes(out)


def _disturb(chance: Random, fields: list[Any]) -> None:
    """Make one field something else, or one more or fewer of them."""
    if not fields or chance.random() < 0.15:
        fields.append(_junk(chance))
    elif chance.random() < 0.15:
        fields.pop(chance.randrange(len(fields)))
    else:
        fields[chance.randrange(len(fields))] = _junk(chance)


def _buffer(chance: Random, known: Known) -> bytes:
    kind, n = chance.randrange(6), chance.choice((1, 1, 2, 3, 4, 17))
    place = chance.choice(known.places)
    if kind == 0:
        return _noise(chance, 200)
    if kind == 1:
        return np.array([chance.choice(_FLOATS) for _ in range(n)]).tobytes()
    if kind == 2:
        return np.array([chance.choice(_INT32) for _ in range(n)], np.int32).tobytes()
    if kind == 3:
        return np.zeros(n, COMMIT_ENTRY).tobytes()
    if kind == 4:
        return np.array([chance.choice(_EDGES[:-1]) for _ in range(n)], np.int64).tobytes()
    return np.resize(chance.choice((place.drawn.ids, place.drawn.starts)), n).tobytes()


def _disturb_buffer(chance: Random, buffers: list[bytes]) -> None:
    """Make one number in one buffer something else."""
    at = chance.randrange(len(buffers))
    data = bytearray(buffers[at])
    width = chance.choice((4, 8))
    if len(data) < width or chance.random() < 0.2:
        buffers[at] = damaged(chance, buffers[at])
        return
    place = width * chance.randrange(len(data) // width)
    value = chance.choice((*_EDGES[:-1], chance.getrandbits(31))) & ((1 << 8 * width) - 1)
    data[place : place + width] = value.to_bytes(width, "little")
    buffers[at] = bytes(data)


def request(chance: Random, number: int, known: Known, kind: type[m.Message] | None = None) -> list[bytes]:
    """The parts of a request numbered `number`: sound, nearly sound or garbled."""
    kind = chance.choice(KINDS) if kind is None else kind
    if kind in SOUND and chance.random() < 0.75:
        made, buffers = SOUND[kind](chance, known)
        body = msgspec.msgpack.decode(msgspec.msgpack.encode(made))
    else:
        body = _struct(chance, _TYPES[kind], known)
        buffers = [_buffer(chance, known) for _ in range(kind.FRAMES + (chance.randrange(4) if kind.BULK else 0))]
    envelope: list[Any] = [m.PROTOCOL, number, max(0, number - chance.choice((0, 0, 1, 50))), [], body]
    if chance.random() < 0.2:
        index = chance.randrange(len(known.places))
        envelope[3] = [[index, known.places[index].drawn.pin, chance.random() < 0.5]]
    luck = chance.random()
    if luck < 0.12:
        _disturb(chance, body)
    elif luck < 0.14:
        _disturb(chance, envelope)
    elif luck < 0.40 and buffers:
        _disturb_buffer(chance, buffers)
    elif luck < 0.43:
        buffers = buffers[1:] if chance.random() < 0.5 else [*buffers, _buffer(chance, known)]
    header = msgspec.msgpack.encode(envelope)
    if luck > 0.97:
        header = damaged(chance, header) if chance.random() < 0.8 else _noise(chance, 60)
    return [header, *buffers]


def framing(chance: Random) -> bytes:
    """What is no message of a lane, or only the beginning of one."""
    count = chance.choice((0, 1, 2, 3, 1 << 13, (1 << 13) + 1, (1 << 32) - 1))
    sizes = [chance.choice((0, 1, 5, 1 << 16, 1 << 27, (1 << 27) + 1, (1 << 32) - 1)) for _ in range(min(count, 4))]
    total = sum(sizes) if chance.random() < 0.5 else chance.choice((0, 1, 1 << 40, (1 << 64) - 1))
    head = struct.pack(f"<QI{len(sizes)}I", total, count, *sizes)
    return head[: chance.randrange(1, len(head) + 1)] + _noise(chance, 50)
