"""Groups: whole ones only, of exactly one key, whatever the order of arrival; late and degenerate ones are told of."""

from __future__ import annotations

import logging
import random
import threading

import numpy as np
import pytest

import gear
from tests.transport.helpers import eventually

from .served import numbers


def groups(**fields) -> dict:
    return {"sampler": gear.Groups(4, **fields)}


def test_three_of_four_are_not_returned(desk):
    """NeMo-RL#3238, SkyRL#1173: groups of 4, three members there: not returned."""
    client = desk.open(**groups())
    desk.insert(client, 1, 2, 3, group=7)
    with pytest.raises(gear.DeadlineExceeded, match="0 groups wait to be served, 1 were asked for; 1 groups are incom"):
        client.sample(1, desk.name, timeout=0.01)
    desk.insert(client, 4, group=7)
    assert numbers(client.sample(1, desk.name, timeout=60.0)) == [1, 2, 3, 4]


def test_interleaved_arrival_never_mixes_two_prompts(desk):
    """TransferQueue, observed: groups are by key, not by four neighbours."""
    client, order = desk.open(capacity=gear.Steps(4000), **groups()), random.Random(3)
    members = [prompt for prompt in range(25) for _ in range(4)]
    order.shuffle(members)
    for prompt in members:
        desk.insert(client, prompt, group=f"prompt-{prompt}")
    seen = []
    for size in (1, 4, 20):
        batch = np.array(numbers(client.sample(size, desk.name, timeout=60.0))).reshape(size, 4)
        assert (batch == batch[:, :1]).all()
        seen += batch[:, 0].tolist()
    assert sorted(seen) == list(range(25))
    assert desk.figures(client)["items"] == 0  # each is delivered once


def test_keys_of_any_kind_and_only_equal_ones_are_one_group(desk):
    client = desk.open(sampler=gear.Groups(2))
    for number, key in enumerate([1, "1", b"1", -1, "\u00e9" * 15, 1, "1", b"1", -1, "\u00e9" * 15]):
        desk.insert(client, number, group=key)
    assert numbers(client.sample(5, desk.name, timeout=60.0)) == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


def test_a_key_used_again_begins_a_new_group(desk):
    client = desk.open(sampler=gear.Groups(2))
    desk.insert(client, *range(6), group="same")
    assert numbers(client.sample(3, desk.name, timeout=60.0)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        (groups(), {}, "draws groups: expected group=key with every trajectory, got none"),
        ({}, {"group": 1}, "draws no groups: got group=1"),
        (groups(), {"group": "x" * 31}, "group: expected an int64, or str or bytes of at most 30 bytes"),
        (groups(), {"group": 2**63}, "group: expected an int64"),
        (groups(), {"group": True}, "group: expected an int64"),
    ],
)
def test_a_key_that_is_missing_or_no_key_is_refused(desk, fields, options, message):
    client = desk.open(**fields)
    with pytest.raises(gear.DataError, match=message):
        desk.insert(client, 1, **options)
    assert desk.figures(client)["items"] == 0


def test_a_group_that_is_late_is_dropped_and_reported(desk, caplog):
    """NeMo-RL#3238: a member that never comes: after the deadline the group is dropped and reported."""
    client = desk.open(**groups(deadline=0.05))
    with caplog.at_level(logging.WARNING, logger="gear.storage.groups"):
        desk.insert_together(client, ["slow"] * 3, 1, 2, 3)
        with pytest.raises(gear.DeadlineExceeded, match=r"1 were dropped as they were not complete in 0.05 s"):
            client.sample(1, desk.name, timeout=0.2)
    figures = desk.figures(client)
    assert (figures["late_groups"], figures["items"], figures["gathering_groups"]) == (1, 0, 0)
    if desk.path == "inproc":
        assert "1 groups were not complete after 0.05 s and are dropped: 'slow' (3 of 4)" in caplog.text
    # the straggler belongs to another group now
    desk.insert_together(client, ["slow"] + ["quick"] * 4, 4, *range(10, 14))
    assert numbers(client.sample(1, desk.name, timeout=60.0)) == [10, 11, 12, 13]


def test_a_group_that_is_late_is_delivered_short_if_asked_and_wakes_its_reader(desk):
    client = desk.open(**groups(deadline=0.2, short="deliver"))
    desk.insert_together(client, ["slow"] * 3 + ["quick"] * 4, 1, 2, 3, *range(10, 14))
    assert numbers(client.sample(2, desk.name, timeout=30)) == [10, 11, 12, 13, 1, 2, 3]
    assert desk.figures(client)["short_groups"] == 1


def test_a_group_of_equal_rewards_is_filtered_and_the_batch_refilled(desk):
    """verl#7082: rewards [1,1,1,1] of a group: filtered, the batch refilled."""
    client = desk.open(**groups(filter=gear.NonzeroVariance("reward")))
    for prompt, rewards in enumerate([(1, 1, 1, 1), (0, 1, 0, 0), (0, 0, 0, 0), (1, 1, 1, 0)]):
        for reward in rewards:
            desk.insert(client, prompt, reward=reward, group=prompt)
    assert numbers(client.sample(2, desk.name, timeout=60.0)) == [1] * 4 + [3] * 4
    figures = desk.figures(client)
    assert (figures["completed_groups"], figures["filtered_groups"], figures["items"]) == (4, 2, 0)


def test_when_all_groups_are_degenerate_that_is_said(desk):
    """verl#7082: all groups degenerate: said, not a silent hang."""
    client = desk.open(**groups(filter=gear.MeanBetween("reward")))
    for prompt in range(3):
        for _ in range(4):
            desk.insert(client, prompt, reward=1.0, group=prompt)
    with pytest.raises(gear.DeadlineExceeded, match=r"3 of 3 were dropped by MeanBetween\(column='reward', low=0.0"):
        client.sample(1, desk.name, timeout=0.01)


def test_a_filter_looks_at_a_late_column_once_every_member_has_it(desk):
    """DAPO's dynamic sampling with rewards that come after the insert."""
    columns = [gear.Column("k", (), "int64"), gear.Column("reward", (), "float32", per="trajectory", late=True)]
    client = desk.open(
        columns=columns, consumers=("reward", "trainer"), **groups(filter=gear.NonzeroVariance("reward"))
    )
    for number in range(8):
        client.insert({"k": np.full(2, number)}, desk.name, group=number % 2, timeout=60.0)
    ids = np.concatenate([page.ids[np.argsort(page.trajectories)] for page in client.scan(desk.name)])
    with pytest.raises(gear.DeadlineExceeded, match="0 groups wait to be served"):
        client.sample(1, desk.name, consumer="trainer", timeout=0.01)
    client.fill(ids[:7], {"reward": [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]})
    assert desk.figures(client)["filtered_groups"] == 1  # the even ones are all there, and equal
    client.fill(ids[7:], {"reward": [1.0]})
    assert numbers(client.sample(1, desk.name, consumer="trainer", timeout=60.0)) == [1, 3, 5, 7]


def test_a_group_with_a_member_that_is_too_old_leaves_as_a_whole(desk):
    client = desk.open(max_staleness=1, **groups())
    for number in range(4):
        desk.insert(client, number, group="old", version=min(number, 1))
    desk.insert(client, *range(10, 14), group="new", version=2)
    client.set_version(desk.name, 2)
    figures = desk.figures(client)
    assert (figures["expired_trajectories"], figures["items"]) == (4, 4)
    assert numbers(client.sample(1, desk.name, timeout=60.0)) == [10, 11, 12, 13]


def test_removers_take_whole_groups(desk):
    client = desk.open(capacity=gear.Trajectories(9), **groups())
    for prompt in range(3):
        desk.insert(client, *[prompt] * (4 if prompt < 2 else 1), group=prompt)
    assert desk.figures(client)["items"] == 9
    desk.insert(client, 2, group=2)  # the first group goes as a whole
    assert desk.figures(client)["items"] == 6
    with pytest.raises(gear.DeadlineExceeded, match="1 groups wait to be served"):
        client.sample(2, desk.name, timeout=0.01)
    assert numbers(client.sample(1, desk.name, timeout=60.0)) == [1] * 4


def test_consumers_are_served_whole_groups(desk):
    client = desk.open(consumers=("reward", "trainer"), **groups())
    for number in range(8):
        desk.insert(client, number, group=number % 2)
    trainer = client.sample(1, desk.name, consumer="trainer", timeout=60.0)
    assert numbers(trainer) == [0, 2, 4, 6]
    assert numbers(client.sample(2, desk.name, consumer="reward", timeout=60.0)) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert client.ack(trainer.ids, consumer="trainer").applied == 4
    assert numbers(client.sample(1, desk.name, consumer="trainer", timeout=60.0)) == [1, 3, 5, 7]


def test_what_was_not_delivered_comes_again_as_a_whole(desk):
    client = desk.open(**groups())
    for number in range(8):
        desk.insert(client, number, group=number % 2)
    selection = client.select(1, desk.name, timeout=60.0)
    client.release(selection, delivered=False)
    assert numbers(client.sample(2, desk.name, timeout=60.0)) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_a_full_queue_of_incomplete_groups_goes_on_after_their_deadline(desk):
    client = desk.open(limiter=gear.Queue(6), **groups(deadline=0.2))
    desk.insert_together(client, ["a"] * 3 + ["b"] * 3 + ["c"] * 4, 1, 2, 3, 4, 5, 6, *range(10, 14))
    assert numbers(client.sample(1, desk.name, timeout=60.0)) == [10, 11, 12, 13]


def test_a_waiting_sample_is_woken_by_the_last_member(desk):
    client, got = desk.open(**groups()), []
    thread = threading.Thread(target=lambda: got.append(numbers(client.sample(1, desk.name, timeout=30))))
    thread.start()
    eventually(lambda: desk.figures(client)["waiting_readers"] == 1, "the reader waits")
    desk.insert(client, 1, 2, 3, group=0)
    assert got == []
    desk.insert(client, 4, group=0)
    thread.join(60)
    assert got == [[1, 2, 3, 4]]


def test_insert_many_and_writers_name_groups(desk):
    client = desk.open(sampler=gear.Groups(2))
    rows = lambda n: {"k": np.full(2, n), "reward": np.float32(0)}
    client.insert_many([rows(0), rows(1), rows(2)], desk.name, groups=["a", "b", "a"])
    packed = {"k": np.repeat([3, 4], 2), "reward": np.zeros(2, np.float32)}
    client.insert_many(packed, desk.name, offsets=[0, 2, 4], groups=np.array([1, 2]))
    with client.writer(desk.name) as writer:
        for number, key in ((5, "b"), (6, 1), (7, 2)):
            writer.extend({"k": np.full(2, number)})
            writer.end(trajectory={"reward": np.float32(0)}, group=key)
    client.flush(5)
    assert numbers(client.sample(4, desk.name, timeout=60.0)) == [0, 2, 1, 5, 3, 6, 4, 7]
    with pytest.raises(gear.DataError, match="expected 2 keys of groups, one per trajectory, got 1"):
        client.insert_many([rows(0), rows(1)], desk.name, groups=["a"])


def test_members_are_not_stored_in_pieces(desk):
    client = desk.open(max_length=4, **groups())
    with pytest.raises(gear.DataError, match="not stored in pieces of max_length 4 steps"):
        client.insert({"k": np.zeros(6, np.int64), "reward": np.float32(0)}, desk.name, group=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"item": gear.Window(2)}, "needs item=Whole"),
        ({"limiter": gear.Queue(8)}, "give Groups a deadline"),
        ({"limiter": gear.SampleToInsertRatio(1.0, 1, 10.0)}, "limiter MinSize, Queue or StalenessBudget"),
        ({"max_times_sampled": 2}, "leave max_times_sampled out"),
        ({"sampler": gear.Groups(4, filter=gear.NonzeroVariance("nothing"))}, "no column 'nothing'"),
        ({"sampler": gear.Groups(4, filter=gear.NonzeroVariance("k"))}, "one number per trajectory"),
    ],
)
def test_a_table_that_cannot_draw_groups_is_refused(fields, message):
    columns = [gear.Column("k", (), "int64"), gear.Column("reward", (), per="trajectory")]
    with pytest.raises(gear.SchemaError, match=message):
        gear.Table("t", columns, **{"capacity": gear.Steps(100), "item": gear.Whole(), **groups(), **fields})
