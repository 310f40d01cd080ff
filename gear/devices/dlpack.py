"""DLPack (https://dmlc.github.io/dlpack/latest/c_api.html): arrays of other libraries on a device, by ctypes alone.

A capsule is looked into and kept, never consumed: when it goes, its own destructor gives the memory back.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

CUDA = 2
"""kDLCUDA."""

LEGACY = 1
"""How the array API names CUDA's default stream, on which rows are copied: whoever exports has it wait for his own."""

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Exported(NamedTuple):
    """What a capsule says; `strides`: in elements, None without gaps; `name`: of the dtype, "" if it is strange."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    name: str
    capsule: Any


def on_cuda(value: Any) -> bool:
    """Whether an object exports memory of a CUDA device."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) == CUDA


def exported(value: Any) -> Exported:
    """What an object on a CUDA device exports."""
    capsule = value.__dlpack__(stream=LEGACY)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    n = tensor.ndim
    strides = tuple(tensor.strides[:n]) if tensor.strides else None
    kind = _KINDS.get(tensor.code, "") if tensor.lanes == 1 else ""
    name = kind if kind in ("", "bool") else f"{kind}{tensor.bits}"
    return Exported((tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[:n]), strides, name, capsule)


def storage(name: str) -> np.dtype:
    """The dtype of NumPy whose bytes a dtype's are."""
    return np.dtype("uint16" if name == "bfloat16" else name)
