"""Where arrays lie that a launch on a device is given; of the launches themselves nothing runs without a device."""

from __future__ import annotations

import numpy as np
import pytest

from gear.kernels.cuda_launch import place


class Array:
    """What CuPy, torch and Numba say of their arrays."""

    def __init__(self, shape: tuple[int, ...], kind: str, strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": kind, "data": (4096, False), "strides": strides}


@pytest.mark.parametrize(
    ("array", "nbytes"),
    [
        (Array((3, 4), "<i8"), 96),
        (Array((3, 4), "<i8", (32, 8)), 96),
        (Array((1, 4), "<f4", (99, 4)), 16),
        (Array((0,), "|u1"), 0),
    ],
)
def test_arrays_on_a_device_say_where_they_are(array, nbytes):
    assert place(array) == (4096, nbytes)


def test_an_array_with_gaps_is_refused():
    with pytest.raises(ValueError, match="without gaps, got strides"):
        place(Array((3, 4), "<i8", (64, 8)))


def test_an_array_of_the_host_among_those_of_a_device_is_refused():
    with pytest.raises(TypeError, match="expected an array on a device .* got ndarray"):
        place(np.zeros(3))
