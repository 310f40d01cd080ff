"""The simulated service against what can be worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.simulate import Load, Times, simulate

FREE = Times(insert=0, select=1e-9, select_item=0, update=1e-9, update_item=0, message=1e-9, item=0)


def changed(**times: float) -> Times:
    return Times(**(vars(FREE) | times))


def test_a_lonely_learner_waits_for_the_network_and_its_training():
    outcome = simulate(FREE, Load(shards=4, actors=0, learners=1, training=0.008, delay=0.0005), seconds=2)
    assert outcome.latency == pytest.approx(0.001, rel=1e-3)
    assert outcome.batches == pytest.approx(1 / 0.010, rel=0.02)  # two round trips and the training
    assert outcome.bottleneck == "training"


def test_a_shard_that_is_asked_for_more_than_it_can_do_is_the_bottleneck():
    load = Load(shards=2, actors=0, learners=8, training=0.0, delay=0.0, batch=200)
    outcome = simulate(changed(select=1e-3, select_item=1e-5), load, seconds=2)
    assert outcome.batches == pytest.approx(1 / 2e-3, rel=0.02)
    assert outcome.busiest_shard == pytest.approx(1, rel=0.02)
    assert outcome.bottleneck == "the control loops of the shards"


def test_a_client_that_handles_many_messages_is_the_bottleneck():
    load = Load(shards=64, actors=0, learners=1, training=0.0, delay=0.0)
    outcome = simulate(changed(message=1e-4), load, seconds=2)
    assert outcome.batches == pytest.approx(1 / (2 * 64 * 1e-4), rel=0.05)
    assert outcome.bottleneck == "the learners' clients"


def test_actors_load_the_shards_at_their_rate():
    outcome = simulate(changed(insert=1e-4), Load(shards=4, actors=100, learners=0, rate=50.0), seconds=4)
    assert outcome.inserts == pytest.approx(5000, rel=0.05)
    assert outcome.shard == pytest.approx(5000 * 1e-4 / 4, rel=0.05)
