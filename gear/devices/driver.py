"""The CUDA driver, by ctypes: devices, host memory that kernels reach, memory of devices that processes share.

It needs `libcuda.so.1` alone, which comes with the driver, so that whoever only asks what there is imports no package.
Contexts are the primary ones, which Numba and torch use too. Addresses are integers. No device has run this yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.errors import DeviceError, InsufficientMemory
from gear.storage.memory import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libcuda.so.1"

OUT_OF_MEMORY, ALREADY_REGISTERED = 2, 712
"""Results of the driver's functions (cuda.h)."""

_REGISTER = 1 | 2
"""CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP: for every context, and mapped."""

_MAJOR, _MINOR, _UNIFIED, _GPUDIRECT = 75, 76, 41, 116
"""CU_DEVICE_ATTRIBUTE_*: COMPUTE_CAPABILITY_MAJOR and _MINOR, UNIFIED_ADDRESSING, GPU_DIRECT_RDMA_SUPPORTED."""

_DMA_BUF = 1
"""CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD."""

HANDLE_BYTES = 64

_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL."""

GRAIN = 2 << 20
"""Allocations are multiples of it: smaller ones the driver makes together with others, and shares with them."""


class Device(NamedTuple):
    """A device that this process may use.

    number : among those that CUDA_VISIBLE_DEVICES leaves; memory : bytes; unified : host and device share addresses.
    """

    number: int
    uuid: str
    name: str
    capability: tuple[int, int]
    memory: int
    unified: bool
    gpudirect: bool


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("octets", ctypes.c_ubyte * 16),)


class Driver:
    """The driver of this machine.

    Raises
    ------
    DeviceError
        If there is none, or it does not start.
    """

    simulated = False

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DeviceError(
                f"no CUDA driver is installed here ({error}); install NVIDIA's driver, in a container run it with "
                "--gpus, or use --devices cpu"
            ) from None
        self._call("cuInit", 0)
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        result = int(getattr(self._cuda, name)(*arguments))
        if result:
            raise DeviceError(f"{name}: the CUDA driver says {self._name(result)}")

    def _name(self, result: int) -> str:
        text = ctypes.c_char_p()
        if self._cuda.cuGetErrorName(result, ctypes.byref(text)) or not text.value:
            return f"error {result}"
        return text.value.decode()

    def version(self) -> tuple[int, int]:
        """The newest CUDA that the driver knows."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    # Devices

    def devices(self) -> list[Device]:
        """The devices that CUDA_VISIBLE_DEVICES leaves, by their numbers."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(number) for number in range(count.value)]

    def _device(self, number: int) -> Device:
        handle, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        uuid = _Uuid()
        self._call("cuDeviceGet", ctypes.byref(handle), number)
        self._call("cuDeviceGetName", name, 256, handle)
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), handle)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
        found = {attribute: ctypes.c_int() for attribute in (_MAJOR, _MINOR, _UNIFIED, _GPUDIRECT)}
        for attribute, value in found.items():
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
        return Device(
            number, self._named(handle, bytes(uuid.octets)), name.value.decode(errors="replace"),
            (found[_MAJOR].value, found[_MINOR].value), memory.value, bool(found[_UNIFIED].value),
            bool(found[_GPUDIRECT].value),
        )  # fmt: skip

    def _named(self, device: ctypes.c_int, octets: bytes) -> str:
        """The name of a device in CUDA_VISIBLE_DEVICES: GPU-..., or MIG-... of a part of a card."""
        text, card = octets.hex(), _Uuid()
        name = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        if f"MIG-{name}" in os.environ.get("CUDA_VISIBLE_DEVICES", "").lower().replace("mig-", "MIG-"):
            return f"MIG-{name}"
        with contextlib.suppress(AttributeError):  # the first version says the card's own, of a part too
            self._call("cuDeviceGetUuid", ctypes.byref(card), device)
            if bytes(card.octets) != octets:
                return f"MIG-{name}"
        return f"GPU-{name}"

    def use(self, number: int) -> None:
        """Let what follows on this thread happen on that device."""
        context = self._contexts.get(number)
        if context is None:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(handle), number)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._contexts[number] = context
        self._call("cuCtxSetCurrent", context)

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Let what is within happen on that device; the thread's own context, which torch goes by, comes back."""
        before = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(before))
        self.use(number)
        try:
            yield
        finally:
            self._call("cuCtxSetCurrent", before)

    # Memory

    def register(self, address: int, nbytes: int) -> int:
        """Page-lock and map memory of the host (whole pages); its address for kernels.

        Raises
        ------
        InsufficientMemory
            If a limit forbids to lock as much.
        """
        result = int(self._cuda.cuMemHostRegister_v2(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _REGISTER))
        if result not in (0, ALREADY_REGISTERED):
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            allowed = "unlimited" if limit == resource.RLIM_INFINITY else f"{size_text(limit)} ({limit} bytes)"
            error = InsufficientMemory if result == OUT_OF_MEMORY else DeviceError
            raise error(
                f"{size_text(nbytes)} ({nbytes} bytes) of host memory cannot be page-locked for the GPU: the CUDA "
                f"driver says {self._name(result)}; this process may lock {allowed} (memlock): raise that (ulimit -l "
                "unlimited; docker run --ulimit memlock=-1), or lower the capacity"
            )
        mapped = ctypes.c_uint64()
        try:
            self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), ctypes.c_void_p(address), 0)
        except DeviceError:
            if not result:
                self._cuda.cuMemHostUnregister(ctypes.c_void_p(address))  # what went wrong first is told
            raise
        return mapped.value

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def of(self, address: int) -> int:
        """The number of the device on which memory lies; 0 for memory that the driver does not know."""
        number = ctypes.c_int()
        asked = ctypes.byref(number), _ORDINAL, ctypes.c_uint64(address)
        if not self._cuda.cuPointerGetAttribute(*asked):
            return number.value
        with self.at(0):  # a thread without a context: any will do, as addresses are of all devices alike
            return 0 if self._cuda.cuPointerGetAttribute(*asked) else number.value

    def room(self) -> tuple[int, int]:
        """(free, all) bytes of the device in use."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int, owner: str) -> int:
        """Zeroed memory of the device in use, which other processes can open.

        Raises
        ------
        InsufficientMemory
            With the size needed and the size there.
        """
        address, whole = ctypes.c_uint64(), -(-max(1, nbytes) // GRAIN) * GRAIN
        result = int(self._cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(whole)))
        if result == OUT_OF_MEMORY:
            free = self.room()[0]
            raise InsufficientMemory(
                f"{owner} needs {size_text(nbytes)} ({nbytes} bytes) of device memory, of which {size_text(free)} "
                f"({free} bytes) are free; lower the capacity, or end what else runs there"
            )
        if result:
            raise DeviceError(f"cuMemAlloc: the CUDA driver says {self._name(result)}")
        try:
            self._call("cuMemsetD8_v2", address, 0, ctypes.c_size_t(whole))
            self.settle()  # it only begins by then, and others write there as soon as they have opened it
        except DeviceError:
            self._cuda.cuMemFree_v2(address)  # whatever it says: what went wrong first is told
            raise
        return address.value

    def free(self, address: int) -> None:
        """Undo `allocate`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def put(self, address: int, source: int, nbytes: int) -> None:
        """Copy to device memory, from memory of the host or of a device; `settle` says when it is there."""
        self._call("cuMemcpyAsync", ctypes.c_uint64(address), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), None)

    def get(self, target: int, address: int, nbytes: int) -> None:
        """Copy device memory to memory of the host; it is there afterwards."""
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def settle(self, stream: int = 0) -> None:
        """Wait until all that was put is there, or whatever is under way on another stream."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def export(self, address: int) -> bytes:
        """What another process of this machine opens allocated memory by."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES)

    def dmabuf(self, address: int, nbytes: int) -> int:
        """A descriptor by which an adapter registers allocated memory, in pages of the driver's; who has it closes it.

        Raises
        ------
        DeviceError
            If the driver exports none (before CUDA 11.7, or a kernel module without it).
        """
        descriptor = ctypes.c_int(-1)
        arguments = (
            ctypes.byref(descriptor),
            ctypes.c_uint64(address),
            ctypes.c_size_t(nbytes),
            _DMA_BUF,
            ctypes.c_ulonglong(0),
        )
        try:
            self._call("cuMemGetHandleForAddressRange", *arguments)
        except AttributeError:
            raise DeviceError("cuMemGetHandleForAddressRange: this CUDA driver is too old") from None
        return descriptor.value

    def open(self, handle: bytes, nbytes: int) -> int:
        """The address here of memory that another process has exported.

        Raises
        ------
        DeviceError
            If it cannot be reached.
        """
        if len(handle) != HANDLE_BYTES:
            raise DeviceError(f"expected a handle of {HANDLE_BYTES} bytes for device memory, got {len(handle)}")
        address = ctypes.c_uint64()
        value = _Handle.from_buffer_copy(handle)
        result = int(self._cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), value, 1))  # lazily with peer access
        if result:
            raise DeviceError(
                f"device memory of the server cannot be opened (CUDA IPC): the CUDA driver says {self._name(result)}; "
                "run both in one container (or with --ipc=host and the same GPU), as one user"
            )
        return address.value

    def close(self, address: int) -> None:
        """Undo `open`."""
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
