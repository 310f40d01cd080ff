"""Collect: run a plan on the host, by the kernel that it was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gear.kernels.host import gather
from gear.kernels.host_packed import gather_packed
from gear.kernels.host_views import gather_views

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gear.plan import Plan


def collect(
    segment: npt.NDArray[np.uint8],
    plan: Plan,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    neighbours: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint8],
) -> None:
    """Gather items into ``out``: uint8[plan.nbytes] or more.

    Parameters
    ----------
    starts, lengths : int64[B], int32[B]
        First row number and rows of each item.
    neighbours : int32[K]
        Slots of other pieces that views may read, in rising order.
    """
    if plan.viewed:
        gather_views(segment, plan.rows, plan.pads, starts, lengths, neighbours, out)
    elif plan.packed:
        gather_packed(segment, plan.rows, plan.pads, starts, lengths, out)
    else:
        gather(segment, plan.rows, plan.pads, starts, lengths, out)
