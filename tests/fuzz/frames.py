"""Requests of every kind, from sound to garbled, with buffers that fit and buffers that do not.

What a field may hold is read from the message types themselves, so that a message added tomorrow is fuzzed tomorrow.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect

from gear.storage.layout import COMMIT_ENTRY
from gear.transport import messages as m

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


@dataclass
class Known:
    """What a client has heard from the server, for messages that are nearly right.

    Attributes
    ----------
    tables : numbers of tables that are there.
    names : of tables, consumers and columns.
    specs : declarations, sound ones.
    numbers : pins, tickets, trajectories, versions.
    ids, starts : of items drawn, int64.
    blocks, slots : leased, int32.
    """

    tables: tuple[int, ...] = (0, 1, 2, 3)
    names: tuple[str, ...] = _TEXTS
    specs: tuple[bytes, ...] = (b"",)
    numbers: list[int] = field(default_factory=lambda: [0, 1, 2])
    ids: np.ndarray = field(default_factory=lambda: np.arange(4))
    starts: np.ndarray = field(default_factory=lambda: np.arange(4))
    blocks: np.ndarray = field(default_factory=lambda: np.arange(4, dtype=np.int32))
    slots: np.ndarray = field(default_factory=lambda: np.arange(4, dtype=np.int32))
    sequence: int = 0

    def heard(self, answer: m.Answer, parts: list[Any]) -> None:
        """Take note of what an answer gives away."""
        body = answer.body
        if isinstance(body, m.Selected):
            n = min(len(parts[1]) // 36, 64)
            self.ids = np.frombuffer(bytes(parts[1]), np.int64, n)
            self.starts = np.frombuffer(bytes(parts[1]), np.int64, n, 16 * n)
            self._number(body.pin)
        elif isinstance(body, (m.Granted, m.Committed)):
            blocks, slots = (np.frombuffer(bytes(part), np.int32) for part in parts[1:3])
            self.blocks = blocks[:256] if len(blocks) else self.blocks
            self.slots = slots[:256] if len(slots) else self.slots
            self.sequence = max(self.sequence, getattr(body, "sequence", 0))
        elif isinstance(body, m.Begun):
            self._number(body.trajectory)
        elif isinstance(body, m.Staged):
            self._number(body.ticket)

    def _number(self, number: int) -> None:
        self.numbers.append(number)
        del self.numbers[:-32]


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
            return chance.choice(known.tables)
        pick = chance.random()
        if pick < 0.4:
            return max(low, min(high, chance.choice(known.numbers)))
        return chance.choice(_EDGES) if pick > 0.97 else max(low, min(high, chance.choice(_EDGES)))
    if isinstance(kind, inspect.FloatType):
        return chance.choice((0.0, 0.0, 0.001, 0.05, 1.0)) if chance.random() < 0.9 else chance.choice(_FLOATS)
    if isinstance(kind, inspect.BoolType):
        return chance.random() < 0.5
    if isinstance(kind, inspect.StrType):
        return chance.choice(known.names)
    if isinstance(kind, inspect.BytesType):
        if kind.min_length == 16:
            return _noise(chance, 2) * 16 if chance.random() < 0.2 else bytes(16)
        if kind.max_length == 1 << 20:
            return _damaged(chance, chance.choice(known.specs)) if chance.random() < 0.7 else chance.choice(known.specs)
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


def _damaged(chance: Random, data: bytes) -> bytes:
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


def _entries(chance: Random, known: Known) -> np.ndarray:
    """Commit entries that name leases, as a client's would, or do not."""
    entries = np.zeros(chance.choice((1, 1, 1, 2, 3)), COMMIT_ENTRY)
    for k, entry in enumerate(entries):
        known.sequence += 1
        entry["sequence"] = known.sequence if chance.random() < 0.9 else chance.choice((0, -1, 1, 2**31 - 1))
        entry["slot"] = known.slots[k % len(known.slots)]
        entry["blocks"], entry["length"], entry["flags"] = 1, chance.choice((1, 2, 4)), chance.choice((3, 7, 1, 2, 0))
        for name in entry.dtype.names:
            if chance.random() < 0.05:
                limits = np.iinfo(entry.dtype[name])
                entry[name] = max(limits.min, min(limits.max, int(chance.choice(_INT32))))
    return entries


def _buffer(chance: Random, known: Known) -> bytes:
    kind = chance.randrange(8)
    if kind == 0:
        return b""
    if kind == 1:
        return _noise(chance, 200)
    if kind == 2:
        return _entries(chance, known).tobytes()
    n = chance.choice((1, 1, 2, 3, 4, 17))
    if kind == 3:
        return np.array([chance.choice(_FLOATS) for _ in range(n)]).tobytes()
    if kind == 4:
        return np.array([chance.choice(_INT32) for _ in range(n)], np.int32).tobytes()
    if kind == 5:
        return np.resize(known.blocks if chance.random() < 0.6 else known.slots, n).tobytes()
    ids = np.resize(known.ids if kind == 6 else known.starts, n).astype(np.int64)
    if n > 1 and chance.random() < 0.2:
        ids[chance.randrange(n)] ^= 1 << chance.randrange(63)
    return ids.tobytes()


def _buffers(chance: Random, kind: type[m.Message], known: Known) -> list[bytes]:
    if kind is m.Commit and chance.random() < 0.8:
        entries = _entries(chance, known)
        blocks = np.resize(known.blocks, max(0, int(entries["blocks"].clip(0, 64).sum())))
        return [entries.tobytes(), blocks.tobytes(), np.ones(int(entries["priorities"].clip(0, 64).sum())).tobytes()]
    if kind is m.Collect and chance.random() < 0.8:
        n = chance.choice((1, 2, 4))
        starts = np.resize(known.starts, n).astype(np.int64)
        if chance.random() < 0.3:
            starts[0] = chance.choice(_EDGES[:-1])
        return [starts.tobytes(), np.resize(_INT32, n).tobytes()]
    if kind is m.Update and chance.random() < 0.7:
        n = chance.choice((1, 2, 4))
        return [np.resize(known.ids, n).tobytes(), np.array([chance.choice(_FLOATS) for _ in range(n)]).tobytes()]
    more = chance.randrange(4) if kind.BULK else 0
    return [_buffer(chance, known) for _ in range(kind.FRAMES + more)]


def request(chance: Random, number: int, known: Known, kind: type[m.Message] | None = None) -> list[bytes]:
    """The parts of a request numbered `number`: sound, nearly sound or garbled."""
    kind = chance.choice(KINDS) if kind is None else kind
    body = _struct(chance, _TYPES[kind], known)
    envelope: list[Any] = [m.PROTOCOL, number, max(0, number - chance.choice((0, 0, 1, 50))), [], body]
    if chance.random() < 0.1:
        envelope[3] = [[chance.choice(known.tables), chance.choice(known.numbers), chance.random() < 0.5]]
    luck = chance.random()
    if luck < 0.12:
        _disturb(chance, body)
    elif luck < 0.16:
        _disturb(chance, envelope)
    header = msgspec.msgpack.encode(envelope)
    if 0.16 < luck < 0.24:
        header = _damaged(chance, header)
    elif 0.24 < luck < 0.26:
        header = _noise(chance, 60)
    buffers = _buffers(chance, kind, known)
    if 0.26 < luck < 0.30:
        buffers = buffers[1:] if chance.random() < 0.5 else [*buffers, _buffer(chance, known)]
    elif 0.30 < luck < 0.34 and buffers:
        at = chance.randrange(len(buffers))
        buffers[at] = _damaged(chance, buffers[at])
    return [header, *buffers]


def framing(chance: Random) -> bytes:
    """What is no message of a lane, or only the beginning of one."""
    count = chance.choice((0, 1, 2, 3, 1 << 13, (1 << 13) + 1, (1 << 32) - 1))
    sizes = [chance.choice((0, 1, 5, 1 << 16, 1 << 27, (1 << 27) + 1, (1 << 32) - 1)) for _ in range(min(count, 4))]
    total = sum(sizes) if chance.random() < 0.5 else chance.choice((0, 1, 1 << 40, (1 << 64) - 1))
    head = struct.pack(f"<QI{len(sizes)}I", total, count, *sizes)
    return head[: chance.randrange(1, len(head) + 1)] + _noise(chance, 50)
