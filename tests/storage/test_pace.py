"""The pace of a save: rest follows from the time in the queue for a processor."""

from __future__ import annotations

import pytest

from gear.storage.pace import MOST, REST, Pace


@pytest.fixture
def paced():
    """A pace, the seconds it has queued so far (to be changed), and the rests that it took."""
    queued, rests = [0.0], []
    return Pace(lambda: queued[0], rests.append), queued, rests


def test_where_cores_are_free_nothing_is_waited_for(paced):
    pace, _, rests = paced
    pace.rest()
    assert rests == []


def test_the_rest_is_a_multiple_of_the_time_in_the_queue_since_the_last(paced):
    pace, queued, rests = paced
    queued[0] = 0.01
    pace.rest()
    queued[0] = 0.03
    pace.rest()
    pace.rest()
    assert rests == pytest.approx([REST * 0.01, REST * 0.02])


def test_there_is_no_rest_in_a_hurry_and_none_is_made_up_for(paced):
    pace, queued, rests = paced
    queued[0] = 0.01
    pace.rest(hurry=True)
    pace.rest()
    assert rests == []


def test_a_rest_is_bounded(paced):
    pace, queued, rests = paced
    queued[0] = 100.0
    pace.rest()
    assert rests == [MOST]


def test_what_it_queued_for_after_a_rest_is_not_counted():
    queued, rests = [0.0], []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        queued[0] += 0.05

    pace = Pace(lambda: queued[0], sleep)
    queued[0] = 0.01
    pace.rest()
    pace.rest()
    assert rests == pytest.approx([REST * 0.01])


def test_the_kernel_is_asked_where_it_says_anything():
    pace = Pace()
    pace.rest()
    assert pace._queued() >= 0.0
