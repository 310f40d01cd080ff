"""How a client comes to be: connected to a server, or over tables of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gear.client.arguments import seconds
from gear.client.client import Client
from gear.client.kinds import batches
from gear.schema import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        None for NumPy arrays, ``"cpu"`` or ``"cuda:N"`` for torch tensors there. On the server's host a GPU's own
        kernels gather them from where rows are stored; from elsewhere they come to this host and are copied.
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
    batches(device, False)  # before anybody is asked: whether there is such a device
    timeout = seconds(timeout)
    from gear.transport.negotiation import connect as open_session

    session = open_session(address, token, timeout, path, curve_keys)
    try:
        return Client(session, batches(device, session.maps), device)
    except BaseException:
        session.close()
        raise


def embedded(tables: Table | Sequence[Table] = (), *, device: str | None = None) -> Client:
    """The same client over tables in this process, without a server.

    Parameters
    ----------
    tables : Table or sequence of Table
    device : str, optional
        None for NumPy arrays, ``"cpu"`` or ``"cuda:N"`` for torch tensors there; columns placed on a device lie there.
    """
    new_batch = batches(device, True)
    from gear.transport.inproc import InprocSession

    return Client(InprocSession((tables,) if isinstance(tables, Table) else tables, _gpu_of(device)), new_batch, device)


def _gpu_of(device: str | None) -> str:
    """The UUID of the device of a client, "" for the CPU."""
    if device is None or not str(device).startswith("cuda"):
        return ""
    from gear.devices import seam

    return seam.driver().devices()[int(str(device).partition(":")[2] or 0)].uuid
