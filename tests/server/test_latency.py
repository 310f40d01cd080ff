"""Latencies in power-of-two buckets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear.server.latency import BOUNDS, BUCKETS, Latencies, count, kind_of, quantile
from gear.transport import messages as m


def counted(*nanoseconds: int) -> list[int]:
    latencies = Latencies([m.Select])
    for number in nanoseconds:
        count(latencies.rows[m.Select], number)
    return latencies.figures()["select"]["buckets"]


@given(st.integers(0, 2**40))
def test_a_latency_lies_in_the_first_bucket_whose_bound_it_does_not_exceed(nanoseconds):
    expected = next((k for k, bound in enumerate(BOUNDS) if nanoseconds <= round(bound * 1e9)), BUCKETS)
    assert counted(nanoseconds).index(1) == expected


def test_figures_are_the_kinds_that_came_with_their_seconds():
    latencies = Latencies([m.Select, m.GiveBack])
    count(latencies.rows[m.GiveBack], 1_500_000)
    count(latencies.rows[m.GiveBack], 500_000)
    assert latencies.figures().keys() == {"give_back"}
    assert latencies.figures()["give_back"]["seconds"] == pytest.approx(0.002)
    assert kind_of(m.CreateTable) == "create_table"


def test_the_quantile_lies_within_the_bucket_that_holds_it():
    buckets = counted(*[1000] * 50, *[3_000_000] * 49, 10**10)
    assert quantile(0.5, buckets) == pytest.approx(BOUNDS[0])
    assert BOUNDS[11] <= quantile(0.75, buckets) <= BOUNDS[12]
    assert quantile(1.0, counted(2**50)) == BOUNDS[-1]
    assert math.isnan(quantile(0.5, counted(1)[:0]))
