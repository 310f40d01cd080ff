"""The tables of `--tables`: read and checked before anything starts, created before the server says it serves.

They are created as any client would, over the public port, so that they are exactly the tables a client gets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gear.errors import DeviceError, GearError, InsufficientMemory, SchemaError
from gear.parts import holders, part
from gear.schema import Table
from gear.storage.layout import Layout
from gear.storage.memory import size_text
from gear.toml import from_toml

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

MOST_BYTES = 1 << 24
"""Of a file: far more than 256 tables of 256 columns take."""

MOST_TABLES = 256


def read_tables(path: str, memory: int, shards: int = 1, device_memory: int = 0) -> list[Table]:
    """The tables that a TOML file declares, refused unless they can be served.

    Parameters
    ----------
    memory : int
        Bytes that all of them together may take.
    shards : int
        Of the server; the memory is divided among them equally.
    device_memory : int
        Bytes that they may take on the GPU of each shard; 0 where there is none.

    Raises
    ------
    SchemaError
        Naming file, table and field, what was expected and what came.
    DeviceError, InsufficientMemory
        If a column is placed on a device, or the tables take more than `memory`.
    """
    where = f"--tables {path}"
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise SchemaError(f"{where}: expected at most {MOST_BYTES} bytes, got more; declare fewer tables")
        text = content.decode()
    except OSError as error:
        raise SchemaError(f"{where}: expected a file of tables: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SchemaError(f"{where}: expected TOML in UTF-8, got a file whose byte {error.start} is none") from None
    tables = from_toml(text, where)
    if len(tables) > MOST_TABLES:
        raise SchemaError(f"{where}: expected at most {MOST_TABLES} tables, got {len(tables)}")
    budget, taken, on_devices = memory // shards, [0] * shards, [0] * shards
    for index, table in enumerate(tables):
        on_device = [c.name for c in table.columns if c.placement == "device"]
        if on_device and not device_memory:
            raise DeviceError(
                f'{where}: table {table.name!r}, columns {", ".join(on_device)}: expected placement = "host", as this '
                "server runs on the CPU, got 'device'; or start it with --devices 0"
            )
        there = holders(table, shards)
        try:
            for number, shard in enumerate(there):
                layout = Layout(part(table, number, len(there)), index, shard)
                taken[shard] += layout.nbytes
                on_devices[shard] += layout.device_bytes
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from None
        total = max(taken)
        if total > budget:
            on_one = "" if shards == 1 else f" on one of {shards} shards"
            raise InsufficientMemory(
                f"{where}: table {table.name!r} and those before it need {size_text(total)} ({total} bytes){on_one}, "
                f"but --memory allows {size_text(budget)} ({budget} bytes){on_one and ' there'}; lower a capacity or "
                "raise --memory"
            )
        if max(on_devices) > device_memory:
            raise InsufficientMemory(
                f"{where}: table {table.name!r} and those before it need {size_text(max(on_devices))} "
                f"({max(on_devices)} bytes) on a GPU, but --device-memory allows {size_text(device_memory)} "
                f"({device_memory} bytes); lower a capacity, raise --device-memory, or place columns on the host"
            )
    return tables


class Creation:
    """Creates tables in a thread, while the server answers it.

    Parameters
    ----------
    tables : sequence of Table
    address, token : str
        The server's own.
    wake : () -> None
        Called from the thread when it has ended.
    keys : ClientKeys, optional
        That the server lets in.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        address: str,
        token: str,
        wake: Callable[[], None],
        keys: ClientKeys | None = None,
    ) -> None:
        self._tables, self._address, self._token, self._wake, self._keys = tables, address, token, wake, keys
        self._error: GearError | None = None
        self._over = not tables
        if tables:
            threading.Thread(target=self._run, name="create tables", daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether it has ended.

        Raises
        ------
        GearError
            If a table could not be created.
        """
        if self._error is not None:
            raise self._error
        return self._over

    def _run(self) -> None:
        from gear.transport.negotiation import connect

        try:
            session = connect(self._address, self._token, curve_keys=self._keys or "")
            try:
                for table in self._tables:
                    session.create_table(table, None)
            finally:
                session.close()
        except GearError as error:
            self._error = error
        self._over = True
        self._wake()
