"""The kernels of the storage that are compiled together: what commits and removes, and what draws and finds.

A first start compiles the two beside each other, see `gear.server.warm`.
"""

from __future__ import annotations

import numba
import numpy as np

from gear.kernels.program import Program
from gear.storage.entry import COMMIT_ENTRY

ENTRIES = numba.typeof(np.empty(0, COMMIT_ENTRY))

_COMMIT = ("acknowledge", "blocks", "commit", "evict", "items", "late", "opened", "room", "settle", "versions")
_DRAW = ("acknowledge", "draw", "draw_claimed", "lines", "pick", "sample", "scan", "seams", "settle")

COMMIT = Program("commit", *(f"gear.storage.{name}" for name in _COMMIT))
DRAW = Program("draw", *(f"gear.storage.{name}" for name in _DRAW))
