"""What other replay systems got wrong about windows, next observations and returns; each case names its origin."""

from __future__ import annotations

import numpy as np
import pytest

import gear

OBS = gear.Column("obs", (), "int64")
REWARD = gear.Column("reward")


def table(*columns, **fields):
    declared = {"capacity": gear.Steps(1000), "item": gear.Step(0), "publish": "end", **fields}
    return gear.Table("t", columns or (OBS, REWARD), **declared)


def every(client, views, **query):
    """A batch of many draws, and which of its items begins at each observation (or the last draw of it)."""
    batch = client.sample(gear.Query(400, views=["obs", *views], **query))
    return batch, {int(k): i for i, k in enumerate(batch["obs"])}


def test_the_next_observation_of_the_last_step_is_the_final_one():  # origin: SB3#934, cleanrl#460
    with gear.embedded([table(OBS)]) as client:
        client.insert({"obs": np.array([0, 1, 2])}, final={"obs": 3})
        client.insert({"obs": np.array([10, 11])})
        batch, at = every(client, [gear.View("obs", name="next", shift=1)])
        assert [int(batch["next"][at[k]]) for k in (0, 1, 2, 10)] == [1, 2, 3, 11]
        there = batch.mask_of("next")
        assert [bool(there[at[k]]) for k in (2, 10, 11)] == [True, True, False]  # 11 has no final: nothing follows
        assert int(batch["next"][at[11]]) == 0


@pytest.mark.parametrize(("terminated", "factor"), [(False, 0.81), (True, 0.0)])
def test_an_n_step_return_ends_with_its_episode(terminated, factor):  # origin: tf-agents#939, FastTD3#6
    with gear.embedded([table()]) as client:
        ones = np.ones(3, np.float32)
        client.insert({"obs": np.arange(3), "reward": ones}, terminated=terminated, final={"obs": 3})
        client.insert({"obs": 10 + np.arange(8), "reward": np.full(8, 100, np.float32)})
        views = [gear.n_step("reward", 5, 0.9), gear.View("obs", name="then", shift=5)]
        batch, at = every(client, views)
        i = at[1]
        assert batch["reward/return"][i] == pytest.approx(1.9)
        assert batch["reward/steps"][i] == 2
        assert batch["reward/discount"][i] == pytest.approx(factor)
        assert batch["then"][i] == 3
        assert batch["reward/discount"][at[10]] == pytest.approx(0.9**5)
        assert batch["then"][at[10]] == 15


def test_exactly_n_steps_before_a_terminal_state_do_not_bootstrap():
    with gear.embedded([table()]) as client:
        client.insert({"obs": np.arange(3), "reward": np.ones(3, np.float32)}, terminated=True, final={"obs": 3})
        batch, at = every(client, [gear.n_step("reward", 2, 0.5)])
        assert [float(batch["reward/discount"][at[k]]) for k in range(3)] == [0.25, 0.0, 0.0]


def test_a_stack_holds_frames_of_its_own_episode_alone():  # origin: dopamine#213
    with gear.embedded([table(OBS)]) as client:
        client.insert({"obs": np.array([1, 2, 3, 4])})
        client.insert({"obs": np.array([11, 12, 13])})
        stacks = [gear.View("obs", name="repeat", stack=3), gear.View("obs", name="zero", stack=3, fill="zero")]
        batch, at = every(client, stacks)
        assert batch["repeat"][at[11]].tolist() == [11, 11, 11]
        assert batch["zero"][at[11]].tolist() == [0, 0, 11]
        assert batch["repeat"][at[12]].tolist() == [11, 11, 12]
        assert batch["zero"][at[13]].tolist() == [11, 12, 13]


def test_a_short_trajectory_is_padded_at_the_head():  # origin: decision-transformer#36, #30
    item = gear.Window(5, edge="head")
    with gear.embedded([table(item=item, sampler=gear.Prioritized(alpha=1.0))]) as client:
        client.insert({"obs": np.array([7, 8, 9]), "reward": np.array([1, 2, 4], np.float32)}, priority=[0, 0, 1])
        views = [gear.View("obs", value=-7), gear.timestep(), gear.return_to_go("reward")]
        batch = client.sample(gear.Query(2, views=views))
        assert batch.mask[0].tolist() == [False, False, True, True, True]
        assert batch["timestep"][0].tolist() == [0, 0, 0, 1, 2]
        assert batch["obs"][0].tolist() == [-7, -7, 7, 8, 9]
        assert batch["reward/return_to_go"][0].tolist() == [0, 0, 7, 6, 4]


def test_no_window_crosses_an_episode_after_many_wraps():  # origin: rl#1969, #2193
    with gear.embedded([table(OBS, item=gear.Window(4), mean_length=999)]) as client:
        for number in range(6):
            client.insert({"obs": number * 10_000 + np.arange(999)})
            batch = client.sample(gear.Query(200, views=["obs", gear.View("obs", name="next", shift=1)]))
            assert (np.diff(batch["obs"], axis=1) == 1).all()
            assert (batch["obs"] // 10_000 == number).all()
            there = batch.mask_of("next")
            assert (batch["next"][there] == batch["obs"][there] + 1).all()


def test_windows_of_two_actors_that_append_in_turn_are_never_mixed():  # origin: rl#3194
    with gear.embedded([table(OBS, item=gear.Window(3), publish="rows")]) as client:
        writers = [client.writer(), client.writer()]
        for turn in range(4):
            for number, writer in enumerate(writers):
                writer.extend({"obs": 1000 * number + 5 * turn + np.arange(5)})
        views = ["obs", gear.View("obs", name="around", offset=-2, length=7, value=-1)]
        batch = client.sample(gear.Query(200, views=views))
        assert (np.diff(batch["obs"], axis=1) == 1).all()
        whose = batch["around"] // 1000
        assert ((whose == whose.max(1, keepdims=True)) | (batch["around"] == -1)).all()


def test_cumulative_lengths_are_those_of_flash_attention():  # origin: prime-rl#3032, verl#6407
    score = gear.Column("score", (), "float32", per="trajectory")
    with gear.embedded([table(OBS, score, item=gear.Whole(), sampler=gear.Fifo(), max_times_sampled=1)]) as client:
        for length in (5, 1, 1, 3, 2, 2):
            client.insert({"obs": np.arange(length), "score": np.float32(length)})
        ragged, uniform = (client.sample(gear.Query(n, layout="packed")) for n in (4, 2))
        assert ragged.cu_seqlens.tolist() == [0, 5, 6, 7, 10]
        assert ragged["obs"].tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 1, 2]
        assert uniform.cu_seqlens.tolist() == [0, 2, 4]
        for batch in (ragged, uniform):
            assert batch.cu_seqlens.dtype == np.int32
            assert (batch["obs"].dtype, batch["obs"].ndim) == (np.int64, 1)
            assert batch["score"].shape == (len(batch.ids),)
            assert batch.mask.all()
        with pytest.raises(gear.DataError, match="this batch is padded"):
            _ = client.insert({"obs": np.arange(2), "score": np.float32(1)}) or client.sample(1).cu_seqlens


def test_frames_are_stored_once_whatever_is_made_of_them():
    """Single 84x84 frames serve stacks of 4 and next observations at 1.02 x their bytes."""
    columns = [gear.Column("frame", (84, 84), "uint8"), gear.Column("action", (), "int64"), gear.Column("reward")]
    lengths = (700, 1000, 1300)
    steps = sum(lengths)
    declared = gear.Table("t", columns, gear.Steps(steps), item=gear.Step(1), mean_length=1000)
    rng = np.random.default_rng(0)
    with gear.embedded([declared]) as client:
        told = []
        for length in lengths:
            frames = rng.integers(0, 256, (length + 1, 84, 84)).astype(np.uint8)
            told.append(frames)
            one = {"frame": frames[:-1], "action": np.arange(length), "reward": np.ones(length, np.float32)}
            client.insert(one, final={"frame": frames[-1]})
        query = gear.Query(
            32,
            views=[
                "action",
                gear.View("frame", name="obs", stack=4, dtype="float32", scale=1 / 255),
                gear.View("frame", name="next", stack=4, shift=1),
            ],
        )
        batch = client.sample(query)
        assert batch["obs"].shape == (32, 4, 84, 84)
        for k, t in enumerate(batch["action"].tolist()):
            whose = [f for f in told if t + 1 < len(f) and (f[t + 1] == batch["next"][k, -1]).all()]
            assert len(whose) == 1
            around = [whose[0][max(0, t + d)] for d in range(-3, 2)]
            np.testing.assert_array_equal(batch["next"][k], around[1:])
            np.testing.assert_array_equal(batch["obs"][k], (np.array(around[:4]) * np.float64(1 / 255)).astype("f4"))
        figures = client.info()["tables"]["t"]
        assert figures["used_bytes"] <= 1.02 * steps * 84 * 84
