"""Kernels on a GPU, compiled by Numba CUDA: the same functions as `reference`, and objects that make them ready once.

The functions take NumPy arrays, which are copied to the device and back, or arrays on the device, for which nothing is
copied and nothing waits. Small arrays that describe others (`plan`, `pads`, the `starts` of a tree's levels) are always
NumPy arrays. ``stream`` is a stream of Numba. A sampler or a learner makes the objects once and calls them.
"""

from __future__ import annotations

from gear.kernels.cuda_gather import Gather, gather, gather_packed
from gear.kernels.cuda_gather_views import GatherViews
from gear.kernels.cuda_gather_views import gather as gather_views
from gear.kernels.cuda_insert import scatter, scatter_many
from gear.kernels.cuda_priorities import (
    Updates,
    random_bits,
    tree_build,
    tree_draw,
    tree_sample,
    tree_smallest,
    tree_total,
    tree_update,
    uniforms,
)
from gear.kernels.cuda_top import Top, top

__all__ = [
    "Gather",
    "GatherViews",
    "Top",
    "Updates",
    "gather",
    "gather_packed",
    "gather_views",
    "random_bits",
    "scatter",
    "scatter_many",
    "top",
    "tree_build",
    "tree_draw",
    "tree_sample",
    "tree_smallest",
    "tree_total",
    "tree_update",
    "uniforms",
]
