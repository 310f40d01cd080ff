"""The CUDA driver by ctypes, over a made-up library: what is asked of it, and what its refusals are told as."""

from __future__ import annotations

import numpy as np
import pytest

from gear.devices import memory, seam
from gear.devices.arena import device_value
from gear.devices.driver import Driver
from gear.devices.memory import DeviceMemory, MappedSegment
from gear.errors import DeviceError, InsufficientMemory


def test_memory_that_cannot_be_locked_names_the_limit(library):
    library.results["cuMemHostRegister_v2"] = 2
    with pytest.raises(InsufficientMemory, match=r"8\.00 KiB \(8192 bytes\).*OUT_OF_MEMORY.*memlock.*ulimit -l"):
        Driver().register(1 << 20, 8192)
    library.results["cuMemHostRegister_v2"] = 201
    with pytest.raises(DeviceError, match="INVALID_CONTEXT"):
        Driver().register(1 << 20, 8192)


def test_device_memory_that_is_not_there_is_refused_with_both_sizes(library):
    library.results["cuMemAlloc_v2"] = 2
    with pytest.raises(InsufficientMemory, match=r"table 't' needs 4\.00 MiB \(4194304 bytes\).*1\.00 MiB"):
        Driver().allocate(4 << 20, "table 't'")


def test_memory_of_another_process_that_cannot_be_opened_is_explained(library):
    library.results["cuIpcOpenMemHandle_v2"] = 201
    with pytest.raises(DeviceError, match=r"CUDA IPC.*INVALID_CONTEXT.*--ipc=host"):
        Driver().open(bytes(64), 4096)
    with pytest.raises(DeviceError, match="expected a handle of 64 bytes"):
        Driver().open(b"short", 4096)


def test_memory_that_the_driver_does_not_export_is_told_so(library):
    library.results["cuMemGetHandleForAddressRange"] = 201
    with pytest.raises(DeviceError, match=r"cuMemGetHandleForAddressRange.*INVALID_CONTEXT"):
        Driver().dmabuf(1 << 21, 1 << 21)


def test_a_segment_mapped_twice_is_unlocked_once_at_the_last_close(library):
    assert seam.driver() is seam.driver()
    segment = np.zeros(4096, np.uint8)
    one, two = memory.MappedSegment(segment, 0), memory.MappedSegment(segment, 0)
    assert one.address == two.address == segment.ctypes.data
    one.close()
    assert not [name for name, _ in library.calls if name == "cuMemHostUnregister"]
    two.close()
    assert len([name for name, _ in library.calls if name == "cuMemHostUnregister"]) == 1


def test_a_context_is_taken_once_and_made_current_every_time(library):
    driver = Driver()
    for _ in range(3):
        driver.use(1)
    names = [name for name, _ in library.calls]
    assert names.count("cuDevicePrimaryCtxRetain") == 1
    assert names.count("cuCtxSetCurrent") == 3


def test_the_callers_context_comes_back(library):
    """Torch takes the current context's device for its own: an insert must not move it."""
    library._cuCtxGetCurrent = lambda out: setattr(out._obj, "value", 42)
    driver = Driver()
    with driver.at(1):
        pass
    name, (context,) = library.calls[-1]
    assert (name, context.value) == ("cuCtxSetCurrent", 42)


def test_memory_to_be_shared_is_whole_grains_and_zeroed_before_anybody_knows_of_it(library):
    """Of smaller allocations CUDA IPC would show a neighbour's; a memset goes on after its call has returned."""
    Driver().allocate(5, "table 't'")
    calls = [(name, given) for name, given in library.calls if name.startswith(("cuMem", "cuStream"))]
    assert [name for name, _ in calls] == ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuStreamSynchronize"]
    assert calls[0][1][1].value == calls[1][1][2].value == 2 << 20


def test_a_value_comes_to_the_host_on_a_thread_that_has_used_no_device(library):
    """The copy, and the wait for a stream, need a context: that of the device on which the value lies."""

    class There:
        __cuda_array_interface__ = {
            "shape": (3,), "typestr": "<f4", "data": ((1 << 40) + 64, False), "version": 3, "stream": 7,
        }  # fmt: skip

    answers = iter([201, 0, 0])  # without a context, in any, and then again in one that the driver has by now

    def where(out, attribute, address):
        assert attribute == 9
        out._obj.value = address.value >> 40
        return next(answers)

    library.cuPointerGetAttribute = where
    device_value(There()).copy()
    used = [name for name, _ in library.calls if name in ("cuCtxSetCurrent", "cuStreamSynchronize", "cuMemcpyDtoH_v2")]
    there, back = ["cuCtxSetCurrent"], ["cuCtxSetCurrent"]
    assert used == [*there, *back, *there, "cuStreamSynchronize", *back, *there, "cuMemcpyDtoH_v2", *back]
    assert {given[1] for name, given in library.calls if name == "cuDeviceGet"} == {0, 1}


@pytest.mark.parametrize("call", ["cuMemsetD8_v2", "cuStreamSynchronize", "cuIpcGetMemHandle"])
def test_device_memory_that_cannot_be_made_ready_is_freed(library, call):
    """Origin: nobody knew of it, so nobody ever freed it."""
    library.results[call] = 201
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_CONTEXT"):
        DeviceMemory(0, 5, "table 't'")
    freed = [given[0].value for name, given in library.calls if name == "cuMemFree_v2"]
    assert freed == [1 << 40]


def test_a_segment_that_cannot_be_mapped_is_unlocked(library):
    library.results["cuMemHostGetDevicePointer_v2"] = 201
    with pytest.raises(DeviceError):
        MappedSegment(np.zeros(4096, np.uint8), 0)
    assert [name for name, _ in library.calls].count("cuMemHostUnregister") == 1
