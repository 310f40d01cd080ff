"""Figures as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear.server.units import count, duration, nbytes, percent, seconds


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (count(0, "/s"), "0/s"),
        (count(0.25, "/s"), "0.25/s"),
        (count(999), "999"),
        (count(999.7), "1.00k"),
        (count(12_345), "12.3k"),
        (count(4.56e15, "/s"), "4560T/s"),
        (nbytes(1023), "1023 B"),
        (nbytes(1023.9), "1.00 KiB"),
        (nbytes(1000 * 1024), "0.98 MiB"),
        (nbytes(3 << 30, "/s"), "3.00 GiB/s"),
        (seconds(0.00001234), "12.3 µs"),
        (seconds(0.9996), "1.00 s"),
        (seconds(34.4), "34.4 s"),
        (duration(59.9), "59 s"),
        (duration(125), "2 min 05 s"),
        (duration(3600 * 25), "1 d 01 h"),
        (duration(7260), "2 h 01 min"),
        (percent(0.996), "100 %"),
    ],
)
def test_figures_have_three_digits_and_a_unit(shown, expected):
    assert shown == expected


def test_what_is_not_known_is_a_dash():
    assert {count(math.nan, "/s"), nbytes(math.nan), seconds(math.nan), percent(math.nan)} == {"–"}


@given(st.floats(0, 1e17), st.sampled_from([lambda v: count(v, "/s"), lambda v: nbytes(v, "/s"), seconds]))
def test_no_figure_is_longer_than_its_column(value, show):
    assert len(show(min(value, 1e6) if show is seconds else value)) <= 10
