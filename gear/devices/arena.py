"""The blocks of a table's columns on a device, and columns there that are written like arrays of the host.

Whoever writes needs the driver alone, no kernels: a run of rows is one copy, from the host's memory or, of values that
are on the device already (`DeviceValue`), within it. What is written is there when the assignment returns.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.devices import dlpack, seam
from gear.devices.blocks import Blocks
from gear.devices.memory import DeviceMemory
from gear.errors import DeviceError
from gear.storage import memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gear.storage.layout import Layout


class Arena:
    """Blocks on a device, `layout.device_block_bytes` each.

    Parameters
    ----------
    layout : Layout
    gpu : str
        UUID of the device.
    handle : bytes
        What another process exported; none: they are allocated here.

    Raises
    ------
    DeviceError, InsufficientMemory
    """

    def __init__(self, layout: Layout, gpu: str, handle: bytes = b"") -> None:
        self.layout, self.gpu = layout, gpu
        self._driver = seam.driver()
        self.number = number_of(gpu)
        self._shadow = memory.sparse(max(4096, layout.device_bytes))  # never touched: it only tells addresses apart
        self.memory = DeviceMemory(self.number, layout.device_bytes, f"table {layout.table.name!r}", handle)
        self.close = weakref.finalize(self, self.memory.close)

    @property
    def handle(self) -> bytes:
        """What other processes open it by."""
        return self.memory.handle

    def elsewhere(self, number: int) -> DeviceError:
        """The error for a learner on another device."""
        return DeviceError(
            f"table {self.layout.table.name!r} has columns on GPU {self.gpu} (here cuda:{self.number}), a batch was "
            f'asked for on cuda:{number}; ask for device="cuda:{self.number}"'
        )

    def strip(self, offset: int, stride: int, dtype: np.dtype, shape: tuple[int, ...]) -> Strip:
        """A column of all blocks, dtype[blocks, block_steps, *shape]."""
        layout = self.layout
        strides = (layout.device_block_bytes, stride, *_dense(shape, dtype.itemsize))
        return Strip(
            self, np.ndarray((layout.blocks, layout.block_steps, *shape), dtype, self._shadow, offset, strides)
        )

    @property
    def blocks(self) -> Blocks:
        """All blocks as bytes."""
        shape = self.layout.blocks, self.layout.device_block_bytes
        return Blocks(self._driver, self.number, self.memory.address, shape)

    def put(self, place: np.ndarray, value: Any) -> None:
        """Write where `place`, an array over the shadow, lies."""
        if isinstance(value, DeviceValue):
            source = value.address
        else:
            value = np.ascontiguousarray(np.broadcast_to(np.asarray(value, place.dtype), place.shape))
            source = int(value.ctypes.data)
        self.put_from((place, source))

    def put_from(self, *pieces: tuple[np.ndarray, int]) -> None:
        """The same, in each place, of what lies at an address of the host or of a device, without gaps."""
        with self._driver.at(self.number):
            for place, source in pieces:
                for address, nbytes in self._runs(place):
                    self._driver.put(address, source, nbytes)
                    source += nbytes
            self._driver.settle()

    def get(self, place: np.ndarray) -> np.ndarray:
        """What lies there, as an array of the host."""
        found = np.empty(place.shape, place.dtype)
        at = int(found.ctypes.data)
        with self._driver.at(self.number):
            for address, nbytes in self._runs(place):
                self._driver.get(at, address, nbytes)
                at += nbytes
        return found

    def _runs(self, place: np.ndarray) -> Iterator[tuple[int, int]]:
        """(address, bytes) of each run of bytes without a gap, in the order of the elements."""
        if not place.size:
            return
        size, axis = place.itemsize, place.ndim
        while axis and (place.shape[axis - 1] == 1 or place.strides[axis - 1] == size):
            size *= place.shape[axis - 1]
            axis -= 1
        base = self.memory.address + int(place.ctypes.data) - int(self._shadow.ctypes.data)
        for index in np.ndindex(place.shape[:axis]):
            yield base + sum(i * stride for i, stride in zip(index, place.strides, strict=False)), size


class Strip:
    """Elements on a device, indexed as an array is; an index gives what is there to write to, or to `copy`."""

    strides = (0,)
    """Nobody may look at its bytes."""

    def __init__(self, arena: Arena, place: np.ndarray) -> None:
        self._arena, self._place = arena, place
        self.shape, self.dtype = place.shape, place.dtype

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, key: Any) -> Strip:
        return Strip(self._arena, self._place[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        if _plain(key):
            place = self._place[key]
            if isinstance(place, np.ndarray):
                self._arena.put(place, value)
                return
        self._each(key, value)

    def write_from(self, pieces: Iterable[tuple[Any, int]]) -> None:
        """Write at each index what lies at an address."""
        self._arena.put_from(*((self._place[key], source) for key, source in pieces))

    def _each(self, key: Any, value: Any) -> None:
        """Elements that are picked, or one: NumPy would hand out copies of them."""
        keys = np.broadcast_arrays(*(key if isinstance(key, tuple) else (key,)))
        picked = [tuple(int(k.flat[i]) for k in keys) for i in range(keys[0].size)]
        rest = self._place.shape[len(keys) :]
        values = np.broadcast_to(np.asarray(value, self._place.dtype), (*keys[0].shape, *rest)).reshape(-1, *rest)
        for at, one in zip(picked, values, strict=True):
            slices = tuple(slice(k, k + 1) for k in at)
            self._arena.put(self._place[slices], one.reshape((1,) * len(at) + rest))

    def copy(self) -> np.ndarray:
        """As an array of the host."""
        return self._arena.get(self._place)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.copy()


def _plain(key: Any) -> bool:
    """Whether an index gives a view."""
    return all(isinstance(k, (int, slice)) for k in (key if isinstance(key, tuple) else (key,)))


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides of an array without gaps, whose elements take `size` bytes."""
    return tuple(math.prod(shape[axis + 1 :]) * size for axis in range(len(shape)))


class DeviceValue:
    """Rows on a device, without gaps, as somebody gives them: dtype[n, *shape].

    Parameters
    ----------
    address, shape, dtype : what and where.
    owner : keeps them there.
    name : of the dtype, where that is none of NumPy's.
    """

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype, owner: Any, name: str = "") -> None:
        self.address, self.shape, self.dtype, self._owner, self.name = address, shape, dtype, owner, name or dtype.name

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, key: slice) -> DeviceValue:
        first, stop, _ = key.indices(len(self))
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        return DeviceValue(
            self.address + first * row, (max(0, stop - first), *self.shape[1:]), self.dtype, self._owner, self.name
        )

    def reshape(self, *shape: int) -> DeviceValue:
        """The same rows."""
        return DeviceValue(self.address, shape, self.dtype, self._owner, self.name)

    def copy(self) -> np.ndarray:
        """As an array of the host."""
        found, driver = np.empty(self.shape, self.dtype), seam.driver()
        if found.nbytes:
            with driver.at(driver.of(self.address)):  # whose thread this is may have used no device yet
                driver.get(int(found.ctypes.data), self.address, self.nbytes)
        return found

    def tobytes(self) -> bytes:
        """As bytes of the host: rows that go to the shard with a message."""
        return self.copy().tobytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.copy()


def device_value(value: Any) -> DeviceValue | None:
    """A value that lies on a device (torch's and CuPy's do, and what speaks DLPack); None for all others.

    What is still being made on the caller's stream of torch, or on the stream that the value names, is waited for.

    Raises
    ------
    DeviceError
        If it has gaps, or a dtype that no column has.
    """
    torch = _torch()
    if torch is not None and isinstance(value, torch.Tensor):
        if not value.is_cuda:
            return None
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        torch.cuda.current_stream(value.device).synchronize()
        name = str(value.dtype).removeprefix("torch.")
        return DeviceValue(value.data_ptr(), tuple(value.shape), dlpack.storage(name), value, name)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return _exported(value) if dlpack.on_cuda(value) else None
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides, stream = interface.get("strides"), interface.get("stream")
    if strides is not None and tuple(strides) != _dense(shape, dtype.itemsize):
        raise DeviceError(f"expected an array without gaps, got strides {strides}; copy it first")
    address = int(interface["data"][0] or 0)
    if stream not in (None, dlpack.LEGACY):  # copies are made on the latter, behind all that is under way there
        driver = seam.driver()
        with driver.at(driver.of(address)):
            driver.settle(stream)
    return DeviceValue(address, shape, dtype, value)


def _exported(value: Any) -> DeviceValue:
    """The same of what DLPack exports, copies being behind what its producer has under way."""
    found = dlpack.exported(value)
    if not found.name:
        raise DeviceError("expected an array of numbers or bools, got another dtype by DLPack; convert it first")
    if found.strides is not None and 0 not in found.shape and found.strides != _dense(found.shape, 1):
        raise DeviceError(f"expected an array without gaps, got strides {found.strides}; copy it first")
    return DeviceValue(found.address, found.shape, dlpack.storage(found.name), found.capsule, found.name)


def _torch() -> Any:
    import sys

    return sys.modules.get("torch")


def number_of(gpu: str) -> int:
    """The number by which this process sees a device.

    Raises
    ------
    DeviceError
        If it does not.
    """
    there = seam.driver().devices()
    for device in there:
        if device.uuid == gpu:
            return device.number
    raise DeviceError(
        f"columns lie on GPU {gpu}, which this process does not see (it sees: "
        f"{', '.join(device.uuid for device in there) or 'none'}); set CUDA_VISIBLE_DEVICES so that it does, or "
        'connect with path="tcp"'
    )
