"""How a client comes to be: connected to a server, or over tables of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gear.batch import Batch
from gear.client.arguments import seconds
from gear.client.client import Client
from gear.schema import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gear.batch import NewBatch
    from gear.transport.keys import KeyPath


def connect(
    address: str,
    *,
    token: str | None = None,
    device: str | None = None,
    timeout: float | None = 10.0,
    path: Literal["shm", "rdma", "tcp"] | None = None,
    curve_keys: KeyPath | None = None,
) -> Client:
    """Connect to a `gear-server`.

    Parameters
    ----------
    address : str
        ``host:port``.
    token : str, optional
        What the server's ``--token-file`` holds. Default: the variable ``GEAR_TOKEN``.
    device : str, optional
        None for NumPy arrays, ``"cpu"`` or ``"cuda:N"`` for torch tensors there.
    timeout : float, optional
        Seconds to wait for the server.
    path : {"shm", "rdma", "tcp"}, optional
        How rows travel: in memory that is shared with the server, by RDMA (see docs/rdma.md), or over TCP. Default: the
        best that works, but never unencrypted by RDMA where there are `curve_keys`.
    curve_keys : str or os.PathLike, optional
        Directory of this client's `client.key` and the server's `server.pub`, for a server with ``--curve-keys``; all
        that goes over the network is encrypted then, except the rows that ``path="rdma"`` moves. Default: the variable
        ``GEAR_CURVE_KEYS``, else none.

    Raises
    ------
    ConnectionLost, AuthenticationError, ProtocolError, DeviceError
    """
    new_batch, timeout = _batches(device), seconds(timeout)
    from gear.transport.negotiation import connect as open_session

    return Client(open_session(address, token, timeout, path, curve_keys), new_batch, device)


def embedded(tables: Table | Sequence[Table] = (), *, device: str | None = None) -> Client:
    """The same client over tables in this process, without a server.

    Parameters
    ----------
    tables : Table or sequence of Table
    device : str, optional
        None for NumPy arrays, ``"cpu"`` or ``"cuda:N"`` for torch tensors there.
    """
    new_batch = _batches(device)
    from gear.transport.inproc import InprocSession

    return Client(InprocSession((tables,) if isinstance(tables, Table) else tables), new_batch, device)


def _batches(device: str | None) -> NewBatch:
    if device is None:
        return Batch
    from gear.client.tensors import tensor_batches

    return tensor_batches(str(device))
