"""Messages to bytes and back: one decoder per direction, which validates everything before it is used.

Two protocol versions can tell each other apart and say so. Nothing here knows sockets or tables, and nothing
of a message is ever decoded by any other means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from gear.errors import AuthenticationError, ProtocolError
from gear.page import Page
from gear.storage.layout import COMMIT_ENTRY
from gear.transport.channel import Buffer
from gear.transport.messages import MAX_ENTRIES, MAX_ROWS, PROTOCOL, Answer, Envelope, Number, Scanned


class _Prefix(msgspec.Struct, array_like=True):
    """What the headers of all protocol versions have in common."""

    version: int
    request: Number


encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Envelope)
_answers = msgspec.msgpack.Decoder(Answer)
_prefixes = msgspec.msgpack.Decoder(_Prefix)


def request_number(header: Buffer) -> int | None:
    """The request number of a header whatever its version, None if the bytes are no header."""
    try:
        return _prefixes.decode(header).request
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode(decoder: Any, parts: Sequence[Buffer], sender: str) -> Any:
    if not parts:
        raise ProtocolError(f"expected a message from the {sender}, got an empty one")
    try:
        envelope = decoder.decode(parts[0])
    except (msgspec.DecodeError, RecursionError) as error:
        envelope, reason = None, error
    version = envelope.version if envelope is not None else _version(parts[0])
    if version is not None and version != PROTOCOL:
        raise ProtocolError(
            f"the {sender} speaks protocol version {version}, this end speaks {PROTOCOL}; "
            "install the same release of gear-replay at both ends"
        )
    if envelope is None:
        raise ProtocolError(f"expected a message of protocol version {PROTOCOL} from the {sender}: {reason}")
    expected, more = envelope.body.FRAMES, envelope.body.BULK
    if len(parts) - 1 != expected and not (more and len(parts) > expected):
        least = "at least " if more else ""
        raise ProtocolError(
            f"{type(envelope.body).__name__}: expected {least}{expected} buffers behind the header, "
            f"got {len(parts) - 1}"
        )
    return envelope


def _version(header: Buffer) -> int | None:
    try:
        return _prefixes.decode(header).version
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_request(parts: Sequence[Buffer]) -> Envelope:
    """The envelope of a client's message; its buffers are ``parts[1:]``.

    Raises
    ------
    ProtocolError
        If the bytes are no request of this protocol version.
    """
    envelope: Envelope = _decode(_requests, parts, "client")
    return envelope


def decode_answer(parts: Sequence[Buffer]) -> Answer:
    """The envelope of a server's message; its buffers are ``parts[1:]``.

    Raises
    ------
    ProtocolError
        If the bytes are no answer of this protocol version.
    """
    answer: Answer = _decode(_answers, parts, "server")
    return answer


def array(frame: Buffer, dtype: Any, most: int, what: str) -> np.ndarray:
    """A raw buffer as a new, writable array of at most `most` elements.

    Raises
    ------
    ProtocolError
        If the size does not fit.
    """
    size = np.dtype(dtype).itemsize
    count, rest = divmod(len(frame), size)
    if rest or count > most:
        raise ProtocolError(f"{what}: expected at most {most} elements of {size} bytes, got {len(frame)} bytes")
    return np.frombuffer(frame, dtype).copy()


def commit_arrays(parts: Sequence[Buffer]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries, blocks and priorities of a Commit; what they say is checked by the table.

    Raises
    ------
    ProtocolError
        If a size does not fit.
    """
    entries = array(parts[1], COMMIT_ENTRY, MAX_ENTRIES, "Commit entries")
    if not len(entries):
        raise ProtocolError("Commit: expected at least one entry, got none")
    blocks = array(parts[2], np.int32, MAX_ROWS, "Commit blocks")
    priorities = array(parts[3], np.float64, MAX_ROWS, "Commit priorities")
    return entries, blocks, priorities


def page_of(answer: Scanned, frame: Buffer) -> Page:
    """The page of a listing in its one buffer, arrays of its own.

    Raises
    ------
    ProtocolError
        If the size does not fit.
    """
    n, buffer = answer.count, bytearray(frame)
    expected = n * (36 if answer.prioritized else 28)
    if len(buffer) != expected:
        raise ProtocolError(f"Scanned: expected {expected} bytes for {n} items, got {len(buffer)}")
    ids, trajectories, positions = (np.frombuffer(buffer, np.int64, n, 8 * n * k) for k in range(3))
    priorities = np.frombuffer(buffer, np.float64, n, 24 * n) if answer.prioritized else None
    return Page(ids, trajectories, positions, np.frombuffer(buffer, np.int32, n, expected - 4 * n), priorities)


def wrong_token(token: str, wanted: str) -> AuthenticationError:
    """The error for a token that is missing, wrong, or not wanted."""
    if not wanted:
        return AuthenticationError(
            "this server was started without --token-file and takes no token, but one was given; leave token= away "
            "and GEAR_TOKEN unset, or start the server with --token-file"
        )
    problem = "the token is wrong" if token else "this server wants a token and none was given"
    return AuthenticationError(f"{problem}; pass token=... or set GEAR_TOKEN to what its --token-file holds")
