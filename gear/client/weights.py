"""A client's verbs for the weights of a model on their way from a trainer to its actors: publish and fetch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear.arrays import LONGEST_NAME, MOST_ENTRIES, Entry, Parcel, Published, lay_out
from gear.client import arguments as check
from gear.client.deadline import patiently
from gear.client.state import State
from gear.columns import DTYPES, flatten
from gear.errors import DataError
from gear.plan import numpy_dtype


class Weights(State):
    """Arrays by name of which only the latest version is kept."""

    def publish(
        self, name: str, arrays: Mapping[str, Any], *, version: int | None = None, timeout: float | None = None
    ) -> int:
        """Replace what is published under a name; whoever waits in `fetch` for a newer version gets it.

        Readers see the old version or the new one, never a mix. Until the new one is complete the old one stays, so
        the server needs memory for both (of what `--memory` allows).

        Parameters
        ----------
        name : str
        arrays : dict
            NumPy arrays or torch tensors of any shape, such as ``model.state_dict()``; nested dicts become ``a/b``.
        version : int, optional
            Number of this version, above the one there is. Default: one more than that, from 1 on.
        timeout : float, optional
            Seconds that the transfer may take.

        Returns
        -------
        int
            The version.

        Raises
        ------
        DataError
            If something is no array, or the version is not newer than the one there is.
        InsufficientMemory
            With the bytes needed and the bytes left; the old version stays.
        DeadlineExceeded
            The old version stays, unless the message says that the outcome is unknown.
        """
        name, timeout, parcel = _name(name), check.seconds(timeout), _parcel(arrays)
        number = 0 if version is None else _version("version", version, 1)
        return self._session.publish(name, parcel, number, timeout)

    def fetch(self, name: str, *, newer_than: int = 0, timeout: float | None = None) -> Published:
        """The latest version published under a name, once it is newer than `newer_than`.

        A waiting call is woken when such a version is there; nothing polls. Versions in between are skipped.

        Parameters
        ----------
        name : str
        newer_than : int
            The version that the caller has.
        timeout : float, optional
            Seconds to wait for a newer one.

        Returns
        -------
        Published
            ``version`` and ``arrays``: new arrays by their flat names, of the kind that batches of this client have.

        Raises
        ------
        DeadlineExceeded
            Saying which version is the latest.
        """
        name, timeout, than = _name(name), check.seconds(timeout), _version("newer_than", newer_than, 0)
        version, entries, buffer = patiently(self._session.fetch, name, than, timeout=timeout)
        return Published(version, self._unpack(entries, buffer))

    def _unpack(self, entries: tuple[Entry, ...], buffer: npt.NDArray[np.uint8]) -> dict[str, Any]:
        """The arrays as views of one buffer, on the client's device."""
        offsets, _ = lay_out(entries)
        if self._device is None:
            views = zip(entries, offsets, strict=True)
            return {e.name: np.ndarray(e.shape, numpy_dtype(e.dtype), buffer, at) for e, at in views}
        import torch

        memory = torch.from_numpy(buffer).to(self._device)
        parts = ((e, memory[at : at + e.nbytes]) for e, at in zip(entries, offsets, strict=True))
        return {e.name: part.view(getattr(torch, e.dtype)).view(e.shape) for e, part in parts}


def _name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise DataError(f"name: expected 1 to 128 characters, got {name!r}")
    return name


def _version(argument: str, value: int, least: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 2**63:
        raise DataError(f"{argument}: expected a whole number >= {least}, got {value!r}")
    return int(value)


def _parcel(arrays: Mapping[str, Any]) -> Parcel:
    """What is to be published, its bytes as they lie where that is one piece.

    Raises
    ------
    DataError
        Naming what is no array.
    """
    if not isinstance(arrays, Mapping):
        raise DataError(f"arrays: expected a dict of name to array, got {type(arrays).__name__}")
    flat = flatten(arrays)
    if not 0 < len(flat) <= MOST_ENTRIES:
        raise DataError(f"arrays: expected 1 to {MOST_ENTRIES} arrays, got {len(flat)}")
    entries, parts = [], []
    for name, value in flat.items():
        if len(name) > LONGEST_NAME:
            raise DataError(f"arrays: a name has {len(name)} characters, at most {LONGEST_NAME} are supported")
        entry, part = _bytes_of(name, value)
        entries.append(entry)
        parts.append(part)
    return Parcel(tuple(entries), *lay_out(entries), parts)


def _bytes_of(name: str, value: Any) -> tuple[Entry, npt.NDArray[np.uint8]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        entry = _entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        return entry, tensor.reshape(-1).view(torch.uint8).numpy()
    if not isinstance(value, (np.ndarray, np.generic)):
        raise DataError(f"array {name!r}: expected a NumPy array or a torch tensor, got {type(value).__name__}")
    array = np.asarray(value)
    entry = _entry(name, array.dtype.name, array.shape)
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return entry, np.ascontiguousarray(native).reshape(-1).view(np.uint8)


def _entry(name: str, dtype: str, shape: tuple[int, ...]) -> Entry:
    if dtype not in DTYPES:
        raise DataError(f"array {name!r}: dtype {dtype} is not supported; use one of {', '.join(DTYPES)}")
    return Entry(name, dtype, shape)
