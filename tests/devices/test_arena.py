"""Columns on a device are written like arrays of the host."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear
from gear.devices import seam
from gear.devices.arena import Arena, DeviceValue, device_value, number_of
from gear.errors import DeviceError
from gear.storage.layout import Layout


@pytest.fixture(scope="module")
def arena():
    columns = [gear.Column("a", (3,), "int16", placement="device"), gear.Column("b", placement="device")]
    table = gear.Table("t", [*columns, gear.Column("c")], gear.Steps(40), item=gear.Window(4), block_steps=4)
    made = Arena(Layout(table), "GPU-simulated-0")
    yield made
    made.close()


def strip_of(arena: Arena, name: str, dtype: str, shape: tuple[int, ...]):
    place = arena.layout.placements[name]
    return arena.strip(place.offset, place.stride, np.dtype(dtype), shape)


index = st.integers(0, 3)
part = st.tuples(index, index).map(lambda pair: slice(min(pair), max(pair) + 1))


@settings(max_examples=60, deadline=None)
@given(key=st.one_of(index, part, st.tuples(index, index), st.tuples(index, part), st.tuples(part, part)), seed=index)
def test_what_is_written_is_what_an_array_would_hold(arena, key, seed):
    for name, dtype, shape in (("a", "int16", (3,)), ("b", "float32", ())):
        strip, before = strip_of(arena, name, dtype, shape), strip_of(arena, name, dtype, shape).copy()
        value = np.random.default_rng(seed).integers(1, 99, before[key].shape).astype(dtype)
        strip[key] = value
        before[key] = value
        np.testing.assert_array_equal(strip.copy(), before)


def test_rows_are_picked_by_arrays_and_zeroed_by_a_number(arena):
    strip = strip_of(arena, "a", "int16", (3,))
    expected = strip.copy()
    blocks, rows = np.array([3, 0], np.int32), np.array([1, 2])
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    strip[blocks, rows] = expected[blocks, rows] = values
    strip[2, 1] = 0
    expected[2, 1] = 0
    np.testing.assert_array_equal(strip.copy(), expected)


def test_another_process_opens_it_by_its_handle_and_a_strange_one_is_refused(arena):
    other = Arena(arena.layout, arena.gpu, arena.handle)
    strip_of(other, "b", "float32", ())[1, 2] = np.float32(7)
    assert strip_of(arena, "b", "float32", ()).copy()[1, 2] == 7
    other.close()
    with pytest.raises(DeviceError, match="cannot be opened"):
        Arena(arena.layout, arena.gpu, b"/dev/shm/other")
    with pytest.raises(DeviceError, match="which this process does not see"):
        number_of("GPU-elsewhere")


class OnCard:
    """An array that lies on a device, as far as it says."""

    def __init__(self, array: np.ndarray, **more: int) -> None:
        self.array = array
        interface = {"shape": array.shape, "typestr": array.dtype.str, "data": (array.ctypes.data, False), "version": 3}
        interface["strides"] = None if array.flags.c_contiguous else array.strides
        self.__cuda_array_interface__ = interface | more


def test_values_on_a_device_are_copied_there_and_never_seen_by_the_host(arena, monkeypatch):
    array = np.arange(24, dtype=np.int16).reshape(8, 3)
    value = device_value(OnCard(array))
    assert isinstance(value, DeviceValue)
    assert (len(value), value.shape, value.nbytes) == (8, (8, 3), 48)
    monkeypatch.setattr(DeviceValue, "copy", lambda self: pytest.fail("it came to the host"))
    strip, driver, sources = strip_of(arena, "a", "int16", (3,)), seam.driver(), []
    monkeypatch.setattr(driver, "put", lambda to, source, n: sources.append((source - array.ctypes.data, n)))
    strip[0:2] = value.reshape(2, 4, 3)
    strip[2, :2] = value[6:8]
    assert sources == [(0, 24), (24, 24), (36, 12)]
    assert device_value(array) is None
    with pytest.raises(DeviceError, match="without gaps"):
        device_value(OnCard(array[:, :2]))


def test_of_no_rows_there_are_no_rows():
    none = DeviceValue(64, (0, 3), np.dtype(np.int16), None)[0:5]
    assert (none.address, none.shape, none.nbytes) == (64, (0, 3), 0)


def test_the_stream_that_makes_a_value_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(seam.driver(), "settle", waited.append)
    array = np.zeros(4)
    device_value(OnCard(array))
    device_value(OnCard(array, stream=1))  # copies are made on this one
    assert waited == []
    device_value(OnCard(array, stream=0xABC))
    assert waited == [0xABC]


class Exports:
    """An array that DLPack says is on a device; whoever takes it must look on the default stream."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int) -> object:
        assert stream == 1
        return self.array.__dlpack__()


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
def test_what_speaks_dlpack_alone_is_taken_where_it_lies(dtype):
    array = np.arange(24).reshape(8, 3).astype(dtype)
    value = device_value(Exports(array[2:]))
    assert (value.address, value.shape, value.name) == (array[2:].ctypes.data, (6, 3), dtype)
    np.testing.assert_array_equal(value.copy(), array[2:])
    kept = weakref.ref(array)
    del array
    assert kept() is not None
    del value
    assert kept() is None
    array = np.arange(24).reshape(8, 3).astype(dtype)
    with pytest.raises(DeviceError, match=r"without gaps, got strides \(3, 1\)"):
        device_value(Exports(array[:, :2]))
    with pytest.raises(DeviceError, match="another dtype by DLPack"):
        device_value(Exports(array.astype(np.complex64)))
