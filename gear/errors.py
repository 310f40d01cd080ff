"""The one tree of exceptions that users of GEAR meet.

Every exception derives from `GearError` and from the built-in a caller would expect, so that
``except TimeoutError`` works as well as ``except gear.GearError``. A message says what was expected,
what came and what to do. The names travel in error replies; `by_name` turns one back into its class.
"""

from __future__ import annotations


class GearError(Exception):
    """Base of all exceptions raised by GEAR."""


class SchemaError(GearError, ValueError):
    """A table, column, item, sampler, limiter or query is declared in a way that cannot work."""


class DataError(GearError, ValueError):
    """A trajectory or a priority does not fit its table."""


class StaleItems(DataError):
    """Items that were asked for by their ids are not stored any more."""


class TableNotFound(GearError, KeyError):
    """The named table does not exist."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class TableMismatch(GearError, ValueError):
    """A table of this name exists and is declared differently."""


class DeadlineExceeded(GearError, TimeoutError):
    """A call did not finish within its timeout; nothing of it has happened unless the message says so."""


class ConnectionLost(GearError, ConnectionError):
    """The server is gone or cannot be reached."""


class ProtocolError(GearError, ConnectionError):
    """The other end speaks another protocol version or sent a message that is not one."""


class AuthenticationError(GearError, PermissionError):
    """The token is missing or wrong."""


class InsufficientMemory(GearError, MemoryError):
    """A table does not fit into the memory that is there or allowed."""


class CheckpointError(GearError, OSError):
    """A checkpoint could not be saved, or cannot be read: which file, and why."""


class DeviceError(GearError, RuntimeError):
    """A device that was asked for is not there or cannot be used."""


class PinLost(GearError, RuntimeError):
    """The rows of a selection may have been evicted: its deadline passed or its pin was revoked."""


class PartExpired(PinLost):
    """A rank's part of a draw has ended before the rank had it: it came too late, or the table took the rows back."""


class ServerConflict(GearError, OSError):
    """A server name, port or kept memory is already in use."""


class Closed(GearError, RuntimeError):
    """The client, writer or loader has been closed."""


_CLASSES = (
    GearError,
    SchemaError,
    DataError,
    StaleItems,
    TableNotFound,
    TableMismatch,
    DeadlineExceeded,
    ConnectionLost,
    ProtocolError,
    AuthenticationError,
    InsufficientMemory,
    CheckpointError,
    DeviceError,
    PinLost,
    PartExpired,
    ServerConflict,
    Closed,
)
by_name: dict[str, type[GearError]] = {c.__name__: c for c in _CLASSES}
