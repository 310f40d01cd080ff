"""Figures as people read them: three digits and a unit, never longer than ten characters."""

from __future__ import annotations

import math

NONE = "–"
"""What is not known."""


def _three(value: float) -> str:
    """Three significant digits, no exponent."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def count(value: float, unit: str = "") -> str:
    """A number with a decimal prefix: ``999``, ``12.3k``, ``4.56M/s``."""
    if math.isnan(value):
        return NONE
    if value < 999.5:
        return f"{value:.0f}{unit}" if value == int(value) or value >= 99.95 else f"{_three(value)}{unit}"
    for prefix in "kMGT":
        value /= 1000
        if value < 999.5 or prefix == "T":
            break
    return f"{_three(value)}{prefix}{unit}"


def nbytes(value: float, unit: str = "") -> str:
    """Bytes with a binary prefix: ``512 B``, ``1.50 GiB``, ``20.0 MiB/s``."""
    if math.isnan(value):
        return NONE
    if value < 1023.5:
        return f"{value:.0f} B{unit}"
    for prefix in "KMGTP":
        value /= 1024
        if value < 999.5 or prefix == "P":
            break
    return f"{_three(value)} {prefix}iB{unit}"


def seconds(value: float) -> str:
    """A short time: ``12.3 µs``, ``4.56 ms``, ``7.89 s``."""
    if math.isnan(value):
        return NONE
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if value * factor < 999.5:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value)} s"


def duration(value: float) -> str:
    """A long time in its two largest units: ``42 s``, ``3 min 05 s``, ``2 h 07 min``, ``5 d 03 h``."""
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def percent(share: float) -> str:
    """A share of 1 as per cent."""
    return NONE if math.isnan(share) else f"{100 * share:.0f} %"
