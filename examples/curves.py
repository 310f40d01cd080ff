"""The plot of a learning curve for each seed, as the examples save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def smooth(values: Sequence[float], width: int) -> np.ndarray:
    """Mean of the last `width` values (of as many as there are before) at each of them; float64[N]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (sums[ends] - sums[starts]) / (ends - starts)


def save(path: Path, title: str, xlabel: str, ylabel: str, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw each curve, (x, y) by its label, into one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for label, (x, y) in curves.items():
        axes.plot(x, y, label=label)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
