"""The best entries in plain NumPy: the order that heap samplers draw in, and what every implementation is tested by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def top(
    entries: npt.NDArray[np.int64],
    keys: npt.NDArray[np.float64],
    stamps: npt.NDArray[np.int64],
    sign: float,
    out: npt.NDArray[np.int64],
) -> None:
    """Find the best entries, the best first, in the order of `gear.selection.heap`.

    Parameters
    ----------
    entries : int64[N]
        Entries in any order, each once; negative ones are passed over.
    keys, stamps : float64[M], int64[M], by entry
        The best has the largest ``sign * key``; of equal ones the one with the smallest stamp, then number.
    sign : 1 or -1.
    out : int64[K]
        Receives the best K entries, -1 behind the last one if there are fewer.
    """
    live = entries[entries >= 0]
    order = np.lexsort((live, stamps[live], -sign * keys[live]))[: len(out)]
    out[:] = -1
    out[: len(order)] = live[order]
