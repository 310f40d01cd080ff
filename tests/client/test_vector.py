"""Writers of vectorised environments: each environment's trajectories are those a writer of its own would store."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import gear

from .conftest import columns
from .stored import stored

EPISODES = [[3, 1, 5, 9], [4, 4, 2, 7], [1, 1, 1, 9]]
"""Lengths of each environment's episodes, one after the other and then again."""


class Count(gymnasium.Env):
    """Observes (number of the environment, of the episode, of the step); every second episode terminates."""

    observation_space = gymnasium.spaces.Box(-1, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(7)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.at = number, -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.at = self.episode + 1, 0
        return self._observation(), {"episode": self.episode}

    def step(self, action):
        self.at += 1
        over = self.at == EPISODES[self.number][self.episode % 4]
        terminated = over and self.episode % 2 == 0
        return self._observation(), float(self.at), terminated, over and not terminated, {"episode": self.episode}

    def _observation(self):
        return np.array([self.number, self.episode, self.at], np.float32)


class Tree(gymnasium.ObservationWrapper):
    """The same with a dict of observations."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Dict(
            {"where": env.observation_space, "at": gymnasium.spaces.Box(0, 1e6, (), np.float32)}
        )

    def observation(self, observation):
        return {"where": observation, "at": observation[2]}


def transitions(**fields):
    declared = {
        "columns": [
            gear.Column("obs", (3,)),
            gear.Column("action", (), "int64"),
            gear.Column("reward", (), "float64"),
        ],
        "capacity": gear.Steps(5000),
        "item": gear.Window(1),
        "mean_length": 8,
        "block_steps": 4,
        **fields,
    }
    return gear.Table("t", **declared)


def play(client, envs, steps, reset=None, **options):
    """Random actions; returns what each environment was told and answered, as whole episodes."""
    rng = np.random.default_rng(0)
    with client.writer("t", num_envs=envs.num_envs, **options) as writer:
        obs, _ = envs.reset()
        for _ in range(steps):
            actions = rng.integers(0, 7, envs.num_envs)
            next_obs, rewards, terminated, truncated, infos = envs.step(actions)
            writer.append(
                {"obs": obs, "action": actions, "reward": rewards},
                terminated,
                truncated,
                final={"obs": gear.final_observation(next_obs, infos)},
            )
            obs = next_obs if reset is None else reset(envs, next_obs, terminated | truncated)
    envs.close()


def reset_ended(envs, next_obs, ended):
    """What the caller does in the mode without autoreset."""
    if not ended.any():
        return next_obs
    return envs.reset(options={"reset_mask": ended})[0]


def check(client, unended=3):
    """Every trajectory is one episode of one environment, whole and with its final observation."""
    found = stored(client)
    seen = set()
    for one in found:
        obs, length = one.steps["obs"], len(one.steps["obs"])
        number, episode = int(obs[0, 0]), int(obs[0, 1])
        assert (obs == [[number, episode, t] for t in range(length)]).all()
        assert one.steps["reward"].tolist() == list(range(1, length + 1))
        seen.add((number, episode))
        if one.final is None:
            unended -= 1
            assert length < EPISODES[number][episode % 4] or not one.terminated
            continue
        assert length == EPISODES[number][episode % 4]
        assert one.final["obs"].tolist() == [number, episode, length]
        assert one.terminated == (episode % 2 == 0)
    assert len(seen) == len(found)
    assert unended >= 0
    for number in range(3):
        episodes = sorted(e for n, e in seen if n == number)
        assert episodes == list(range(len(episodes)))
    return found


MODES = [
    (AutoresetMode.NEXT_STEP, {}, None),
    (AutoresetMode.NEXT_STEP, {"autoreset": "next_step"}, None),
    (AutoresetMode.SAME_STEP, {"autoreset": AutoresetMode.SAME_STEP}, None),
    (AutoresetMode.DISABLED, {"autoreset": "Disabled"}, reset_ended),
]


@pytest.mark.parametrize("publish", ["end", "rows"])
@pytest.mark.parametrize(("mode", "options", "reset"), MODES)
def test_every_episode_is_stored_whole_with_its_final_observation(mode, options, reset, publish):
    with gear.embedded([transitions(publish=publish)]) as client:
        envs = SyncVectorEnv([lambda n=n: Count(n) for n in range(3)], autoreset_mode=mode)
        play(client, envs, 60, reset, **options)
        found = check(client)
    steps = sum(len(one.steps["obs"]) for one in found)
    ends = sum(one.final is not None for one in found)
    assert ends > 30
    # With next-step autoreset each end costs a step that is no transition (the last step may end some episodes).
    assert 180 - ends <= steps <= 180 - ends + 3 if mode is AutoresetMode.NEXT_STEP else steps == 180


@pytest.mark.parametrize(("mode", "options", "reset"), MODES[1:3])
def test_asynchronous_environments_over_a_server(server, mode, options, reset):
    with gear.connect(server.address) as client:
        client.create_table(transitions())
        client.reset("t")
        envs = AsyncVectorEnv([lambda n=n: Count(n) for n in range(3)], autoreset_mode=mode)
        play(client, envs, 40, reset, **options)
        assert sum(one.final is not None for one in check(client)) > 20


def test_observations_that_are_dicts(embed):
    table = transitions(
        columns=[gear.Column("obs/where", (3,)), gear.Column("obs/at"), gear.Column("action", (), "int64")]
    )
    envs = SyncVectorEnv([lambda n=n: Tree(Count(n)) for n in range(3)], autoreset_mode=AutoresetMode.SAME_STEP)
    with gear.embedded([table]) as client, client.writer(num_envs=3, autoreset="same_step") as writer:
        obs, _ = envs.reset()
        for _ in range(9):
            actions = np.zeros(3, np.int64)
            next_obs, _, terminated, truncated, infos = envs.step(actions)
            final = {"obs": gear.final_observation(next_obs, infos)}
            writer.append({"obs": obs, "action": actions}, terminated, truncated, final=final)
            obs = next_obs
        ended = [one for one in stored(client) if one.final is not None]
        assert len(ended) == 3 + 2 + 3
        for one in ended:
            assert one.final["obs/at"] == len(one.steps["obs/at"]) == one.final["obs/where"][2]


def test_final_observation_copies_only_when_something_was_reset():
    obs, infos = np.zeros((3, 2)), {"final_obs": np.array([None, np.ones(2), None], object)}
    assert gear.final_observation(obs, {}) is obs
    for given_ in (infos, {**infos, "_final_obs": np.array([False, True, False])}):
        assert gear.final_observation(obs, given_).tolist() == [[0, 0], [1, 1], [0, 0]]
    assert not obs.any()
    one, two = gear.final_observation((obs, {"a": obs}), {"final_obs": [(np.ones(2), {"a": np.ones(2)}), None, None]})
    assert one.tolist() == two["a"].tolist() == [[1, 1], [0, 0], [0, 0]]


# Without an environment: numbered rows.


def step(t, envs=3):
    """Row t of environment i holds 1000 i + t in every column."""
    count = 1000 * np.arange(envs) + t
    return {"obs": np.repeat(count[:, None], 2, 1).astype(np.float32), "step": count}


def numbers(client):
    """Each stored piece as its steps."""
    found = stored(client)
    for one in found:
        np.testing.assert_array_equal(one.steps["obs"], np.repeat(one.steps["step"][:, None], 2, 1))
    return sorted(tuple(one.steps["step"].tolist()) for one in found)


def flags(*ended, envs=3):
    return np.isin(np.arange(envs), ended)


def test_a_step_after_an_end_that_is_no_reset_is_refused_unless_the_mode_was_given(embed):
    with embed(item=gear.Whole()).writer(num_envs=3) as writer:
        with pytest.raises(
            gear.DataError, match="whether the next step resets the environment is unknown.*or give final="
        ):
            writer.append(step(0), flags(1))
        writer.append(step(0), flags(1), final=step(1))
        with pytest.raises(gear.DataError, match="environment 1: .*does not start from the final observation"):
            writer.append(step(2))
        with pytest.raises(gear.DataError, match="environment 1 ended twice in a row"):
            writer.append(step(1), flags(1), final=step(2))
        writer.append(step(1))
        writer.append(step(2))
    with pytest.raises(gear.DataError, match="expected 'next_step', 'same_step', 'disabled' or envs.metadata"):
        embed().writer(num_envs=3, autoreset="sometimes")
    with pytest.raises(gear.DataError, match="num_envs must be a whole number >= 1"):
        embed().writer(num_envs=0)


def test_a_bad_step_is_not_appended(embed):
    client = embed(item=gear.Whole())
    with client.writer(num_envs=3, autoreset="disabled") as writer:
        writer.append(step(0))
        good = step(1)
        for bad, options, message in [
            ({"obs": good["obs"]}, {}, "misses column 'step'"),
            ({**good, "x": 1}, {}, "has 'x'"),
            ({**good, "obs": np.zeros((3, 2))}, {}, r"expected float32\[N, 2\], got float64\[3, 2\]"),
            ({**good, "obs": np.zeros((4, 2), np.float32)}, {}, "expected 3 rows, one for each of 3, got 4"),
            ({**good, "obs": np.zeros(2, np.float32)}, {}, "needs the environment axis first"),
            (good, {"terminated": [True, False]}, "column 'terminated': expected 3 rows"),
            (good, {"truncated": np.zeros(3)}, r"expected bool\[N\], got float64\[3\]"),
            (good, {"terminated": flags(0), "final": {"y": 1}}, "final .* has 'y'"),
            (good, {"terminated": flags(0), "final": {"step": np.arange(2)}}, "expected 3 rows"),
            (good, {"terminated": flags(0), "priority": [1.0]}, "priority: expected 3 numbers, one per environment"),
            (good, {"terminated": flags(0), "priority": [np.nan, 1, 1]}, "finite"),
        ]:
            with pytest.raises(gear.DataError, match=message):
                writer.append(bad, **options)
        writer.append({"obs": good["obs"].tolist(), "step": good["step"].tolist()}, [True, False, False])
        writer.append(step(2))
    assert numbers(client) == [(0, 1), (2,), (1000, 1001, 1002), (2000, 2001, 2002)]


def test_priorities_are_those_of_the_trajectories_that_end(embed):
    client = embed(item=gear.Whole(), sampler=gear.Prioritized(alpha=1.0), max_length=4)
    with client.writer(num_envs=3, autoreset="disabled") as writer:
        writer.append(step(0), flags(0), truncated=flags(1), priority=[0.0, 3.0, np.nan])
        writer.flush()
        assert set(client.sample(64)["step"][:, 0].tolist()) == {1000}
        for t in range(1, 6):
            writer.append(step(t))
        with pytest.raises(
            gear.DataError, match="environment 2: end: priority covers all items.*the step was appended"
        ):
            writer.append(step(6), flags(2), priority=np.ones(3))
    assert (2004, 2005, 2006) in numbers(client)
    with embed(item=gear.Step()).writer(num_envs=3) as writer, pytest.raises(gear.DataError, match="publish='rows'"):
        writer.append(step(0), flags(0), final=step(1), priority=np.ones(3))


@pytest.mark.parametrize("publish", ["end", "rows"])
def test_per_trajectory_columns(publish):
    table = gear.Table(
        "t",
        columns=[*columns(), gear.Column("goal", (), "int32", per="trajectory")],
        capacity=gear.Steps(500), item=gear.Window(1), block_steps=4, publish=publish, mean_length=8,
    )  # fmt: skip
    with gear.embedded([table]) as client:
        writer = client.writer(num_envs=3, autoreset="same_step")
        with pytest.raises(gear.DataError, match=r"environment 1: .* needs its per-trajectory columns \(goal\)"):
            writer.append(step(0), flags(1))
        writer.append(step(0), flags(1), trajectory={"goal": np.arange(3, dtype=np.int32)})
        writer.set({"goal": [10, 11, 12]})
        for t in range(1, 9):
            writer.append(step(t))
        if publish == "rows":
            with pytest.raises(gear.DataError, match="environments .0, 1, 2. are published"):
                writer.set({"goal": [20, 21, 22]})
            with pytest.raises(gear.DataError, match="give the per-trajectory columns once"):
                writer.append(step(9), flags(0), trajectory={"goal": [1, 2, 3]})
        writer.append(step(9), flags(0))
        writer.set({"goal": [30, 31, 32]}, envs=flags(0))
        writer.append(step(10))
        writer.end()
        writer.close()
        goals = {tuple(one.steps["step"][:2].tolist()): int(one.values["goal"]) for one in stored(client)}
        assert goals == {(1000,): 1, (0, 1): 10, (10,): 30, (1001, 1002): 11, (2000, 2001): 12}


def test_an_explicit_end_ends_those_that_are_open_and_forgets_resets(embed):
    client = embed(item=gear.Whole())
    with client.writer(num_envs=3, autoreset="next_step") as writer:
        writer.append(step(0), flags(2))
        writer.end(terminated=True, final=step(7), envs=flags(0))  # as before envs.reset(options={"reset_mask": ...})
        writer.append(step(1))  # environment 2 is reset
        writer.append(step(2), flags(2))
        writer.end()  # as before envs.reset(): no reset of environment 2 follows
        writer.append(step(3))
    assert numbers(client) == [(0,), (1, 2), (3,), (1000, 1001, 1002), (1003,), (2000,), (2002,), (2003,)]
    ended = next(one for one in stored(client) if one.steps["step"].tolist() == [0])
    assert ended.terminated
    assert ended.final["step"] == 7


def test_rows_become_visible_every_block_and_before_a_sample(embed):
    client = embed(item=gear.Step(0), block_steps=4)
    writer = client.writer(num_envs=3)
    for t in range(4):
        writer.append(step(t))
    assert client.info()["tables"]["t"]["steps"] == 12
    writer.append(step(4))
    assert client.info()["tables"]["t"]["steps"] == 12
    assert set(client.sample(512)["step"].tolist()) == {1000 * i + t for i in range(3) for t in range(5)}
    writer.append(step(5))
    writer.flush()
    assert client.info()["tables"]["t"]["steps"] == 18
    writer.close()
    with pytest.raises(gear.Closed, match="has been closed"):
        writer.append(step(6))
    writer.close()


def test_an_evicted_open_trajectory_goes_on_as_a_new_piece(embed):
    client = embed(item=gear.Window(4), publish="rows", capacity=gear.Steps(400), mean_length=20, block_steps=4)
    with client.writer(num_envs=3, autoreset="disabled") as writer:
        for t in range(6):
            writer.append(step(t))
        writer.publish()
        client.reset()
        for t in range(6, 30):
            writer.append(step(t))
    # What was on its way when the table dropped the trajectory went with it, as for a single writer.
    assert numbers(client) == [tuple(range(1000 * i + 8, 1000 * i + 30)) for i in range(3)]
    assert all(one.continues for one in stored(client))


def test_a_close_that_can_not_commit_says_how_many_steps_were_dropped(embed, monkeypatch):
    client = embed(item=gear.Whole())
    writer = client.writer(num_envs=3, autoreset="disabled")
    writer.append(step(0), flags(1))
    writer.append(step(1))
    pool = client._tables.port("t", None).pool

    def refuse(*_):
        raise gear.DeadlineExceeded("not now")

    with monkeypatch.context() as patch:
        patch.setattr(client._session, "submit", refuse)
        with pytest.raises(gear.DeadlineExceeded, match="not now"):
            writer.append(step(2), flags(0))  # appended: its end is owed
        with pytest.raises(gear.DeadlineExceeded, match="8 steps of unended trajectories were dropped: not now"):
            writer.close()
    assert numbers(client) == [(1000,)]
    held = client.info()["tables"]["t"]
    assert pool.blocks > 0
    assert held["trajectories"] == 1


def test_an_end_that_could_not_be_submitted_is_made_up_for(embed, monkeypatch):
    client = embed(item=gear.Whole())
    writer = client.writer(num_envs=3, autoreset="disabled")
    writer.append(step(0))

    def refuse(*_):
        raise gear.DeadlineExceeded("not now")

    with monkeypatch.context() as patch:
        patch.setattr(client._session, "submit", refuse)
        with pytest.raises(gear.DeadlineExceeded):
            writer.append(step(1), flags(0, 2), final=step(2))
        with pytest.raises(gear.DeadlineExceeded):
            writer.append(step(99))
    writer.append(step(2))
    writer.close()
    assert numbers(client) == [(0, 1), (2,), (1000, 1001, 1002), (2000, 2001), (2002,)]
    assert sorted(int(one.final["step"]) for one in stored(client) if one.final) == [2, 2002]
    assert sum(one.terminated for one in stored(client)) == 2


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=40),
    st.sampled_from(["end", "rows"]),
    st.sampled_from([1, 4, 5]),
    st.sampled_from([7, 12, 100]),
    st.sampled_from(["next_step", "disabled"]),
)
def test_whatever_ends_when_the_trajectories_are_those_of_single_writers(steps, publish, block_steps, max_length, mode):
    """steps: per step the environments that terminate and are truncated (as bits), and whether to publish then."""
    table = gear.Table(
        "t", columns=columns(), capacity=gear.Steps(3000), item=gear.Window(1), publish=publish,
        block_steps=block_steps, max_length=max_length, mean_length=20,
    )  # fmt: skip
    with gear.embedded([table]) as one, gear.embedded([table]) as three:
        resets = np.zeros(3, bool)
        singles = [three.writer() for _ in range(3)]
        with one.writer(num_envs=3, autoreset=mode) as writer:
            for t, (stop, cut, publishes) in enumerate(steps):
                stopped, cut_off = (np.array([bits >> i & 1 for i in range(3)], bool) & ~resets for bits in (stop, cut))
                row, last = step(t), step(500 + t)
                writer.append(row, stopped, cut_off, final=last)
                for i, single in enumerate(singles):
                    if not resets[i]:
                        single.append({k: v[i] for k, v in row.items()})
                    if stopped[i] or cut_off[i]:
                        single.end(terminated=bool(stopped[i]), final={k: v[i] for k, v in last.items()})
                resets = (stopped | cut_off) & (mode == "next_step")
                if publishes:
                    writer.publish()
        for single in singles:
            single.close()

        def key(piece):
            final = None if piece.final is None else int(piece.final["step"])
            return piece.steps["step"].tolist(), final or -1, piece.terminated, piece.continued, piece.continues

        assert sorted(map(key, stored(one))) == sorted(map(key, stored(three)))
