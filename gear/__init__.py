"""GEAR: a GPU-centric, distributed experience replay service.

The public names, and nothing else. Importing it loads NumPy, msgspec and what declares a table; the rest, and above
all what needs sockets, kernels or torch, is imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gear.errors import (
    AuthenticationError,
    CheckpointError,
    Closed,
    ConnectionLost,
    DataError,
    DeadlineExceeded,
    DeviceError,
    GearError,
    InsufficientMemory,
    PartExpired,
    PinLost,
    ProtocolError,
    SchemaError,
    ServerConflict,
    StaleItems,
    TableMismatch,
    TableNotFound,
)
from gear.grouping import Groups, MeanBetween, NonzeroVariance
from gear.schema import (
    Bytes,
    Column,
    Epochs,
    Fifo,
    Fresh,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    Queue,
    SampleToInsertRatio,
    Stack,
    StalenessBudget,
    Step,
    Steps,
    Table,
    Trajectories,
    Uniform,
    Whole,
    Window,
)

if TYPE_CHECKING:
    from gear.arrays import Published
    from gear.batch import Batch, Selection, Update
    from gear.checkpoint import Checkpoint
    from gear.client import Client, connect, embedded
    from gear.client.autoreset import final_observation
    from gear.client.loader import Loader
    from gear.client.vector import VectorWriter
    from gear.client.writer import Writer
    from gear.infer import table_like
    from gear.page import Page
    from gear.query import Query
    from gear.views import NStep, ReturnToGo, Timestep, View
    from gear.views import NStep as n_step
    from gear.views import ReturnToGo as return_to_go
    from gear.views import Timestep as timestep

__version__ = "0.1.0.dev0"

__all__ = [
    "AuthenticationError", "Batch", "Bytes", "Checkpoint", "CheckpointError", "Client", "Closed", "Column",
    "ConnectionLost", "DataError", "DeadlineExceeded", "DeviceError", "Epochs", "Fifo", "Fresh", "GearError",
    "Groups", "InsufficientMemory", "Lifo", "Loader", "MaxHeap", "MeanBetween", "MinHeap", "MinSize", "NStep",
    "NonzeroVariance", "Page", "PartExpired", "PinLost", "Prioritized", "ProtocolError", "Published", "Query",
    "Queue", "ReturnToGo", "SampleToInsertRatio", "SchemaError", "Selection", "ServerConflict", "Stack",
    "StaleItems", "StalenessBudget", "Step", "Steps", "Table", "TableMismatch", "TableNotFound", "Timestep",
    "Trajectories", "Uniform", "Update", "VectorWriter", "View", "Whole", "Window", "Writer", "connect", "embedded",
    "final_observation", "n_step", "return_to_go", "table_like", "timestep",
]  # fmt: skip

_LAZY = {
    "Batch": "gear.batch",
    "Checkpoint": "gear.checkpoint",
    "Client": "gear.client",
    "Loader": "gear.client.loader",
    "NStep": "gear.views",
    "Page": "gear.page",
    "Published": "gear.arrays",
    "Query": "gear.query",
    "ReturnToGo": "gear.views",
    "Selection": "gear.batch",
    "Timestep": "gear.views",
    "Update": "gear.batch",
    "VectorWriter": "gear.client.vector",
    "View": "gear.views",
    "Writer": "gear.client.writer",
    "connect": "gear.client",
    "embedded": "gear.client",
    "final_observation": "gear.client.autoreset",
    "n_step": "gear.views:NStep",
    "return_to_go": "gear.views:ReturnToGo",
    "table_like": "gear.infer",
    "timestep": "gear.views:Timestep",
}
"""Where each name that is imported at its first use comes from, and what it is called there if that differs."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gear' has no attribute {name!r}")
    module, _, there = _LAZY[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), there or name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
