"""The plots of the report: GEAR against each peer, against the limits, and what clients and shards do together."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

matplotlib.use("Agg")
plt.rcParams["svg.hashsalt"] = "gear"  # the same records, the same file
plt.rcParams["svg.fonttype"] = "none"  # words as words: their outlines are most of the bytes


def draw(records: dict[str, dict], folder: Path) -> list[tuple[str, str]]:
    """Draw what there are records for; titles and file names."""
    wanted = (
        ("Time of peers as a multiple of GEAR's", "peers.svg", _ratios(records, "peer")),
        ("Time of limits as a multiple of GEAR's", "limits.svg", _ratios(records, "limit")),
        ("Writers and readers at once", "together.svg", _together(records)),
    )
    made = []
    for title, name, rows in wanted:
        if rows:
            (_bars if name != "together.svg" else _rates)(rows, title, folder / name)
            made.append((title, name))
    return made


def _ratios(records: dict[str, dict], role: str) -> list[tuple[str, float, float, float]]:
    rows = []
    for name, record in records.items():
        if name.startswith(("limit-", "import")):
            continue
        for row in record.get("candidates", ()):
            if row["role"] == role:
                rows.append((f"{name}: {row['candidate'].split(' (')[0]}", row["ratio"], *row["ratio_range"]))
    return rows


def _together(records: dict[str, dict]) -> list[tuple[str, float, float, float]]:
    rows = []
    for name, record in records.items():
        if name.startswith("together-"):
            for row in record.get("candidates", ()):
                low, high = row["us_range"]
                rows.append((f"{name[9:]}: {row['candidate']}", row["rate"], 1e6 / high, 1e6 / low))
    return rows


def _bars(rows: list[tuple[str, float, float, float]], title: str, path: Path) -> None:
    figure, axes = _horizontal(rows, title)
    axes.axvline(1, color="black", linewidth=0.8)
    _save(figure, path)


def _rates(rows: list[tuple[str, float, float, float]], title: str, path: Path) -> None:
    figure, axes = _horizontal(rows, title)
    axes.set_xlabel("per second, all clients")
    _save(figure, path)


def _horizontal(rows: list[tuple[str, float, float, float]], title: str) -> tuple[plt.Figure, plt.Axes]:
    figure, axes = plt.subplots(figsize=(9, 1 + 0.22 * len(rows)))
    names, middles, lows, highs = zip(*reversed(rows), strict=True)
    errors = [
        [middle - low for middle, low in zip(middles, lows, strict=True)],
        [high - middle for middle, high in zip(middles, highs, strict=True)],
    ]
    axes.barh(names, middles, xerr=errors, color="#4878a8", error_kw={"linewidth": 0.7, "ecolor": "#555555"})
    axes.set_xscale("log")
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=7)
    axes.margins(y=0.01)
    return figure, axes


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
