"""`AtariEnv`: several games, seeds, batchers and states."""

from contextlib import closing

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlbatch import DictTensor, RL_Agent, RL_Batcher
from rlbatch.envs.atari import GAMES, AtariEnv
from rlbatch.envs.atari.roms import rom_folder
from rlbatch.errors import CallOrderError, DeviceMismatchError, DtypeMismatchError, ShapeError
from rlbatch.seeding import Seed, Seeds, env_seeds
from tests.envs.atari.steps import actions_of, check_equal, play

ale_py = pytest.importorskip("ale_py")

# --- Several games, seeds, batchers. ---


def assert_plays_as_alone(env, alone):
    """Asserts that the environments of a batch are equal to others of one environment each."""
    first, _ = env.reset()
    for i, one in enumerate(alone):
        assert torch.equal(first["frame"][i], one.reset()[0]["frame"][0])
    generator = np.random.default_rng(0)
    for _ in range(30):
        action = actions_of(env, generator)
        _, (following, _) = env.step(action)
        for i, one in enumerate(alone):
            _, (expected, _) = one.step(action.slice(i))
            check_equal(following.slice(i), expected)


def test_several_games_play_in_one_batch_as_alone():
    names = ["pong", "klax", "journey_escape"]
    env = AtariEnv(games=names, n_envs=5, seed=[1, 2, 3, 4, 5], max_num_frames_per_episode=50)
    assert env.action_space == spaces.Discrete(18)
    alone = [
        AtariEnv(
            names[i % 3], 1, seed=[i + 1], full_action_space=True, max_num_frames_per_episode=50
        )
        for i in range(5)
    ]
    assert_plays_as_alone(env, alone)
    assert env.render([0, 3]).shape == (2, 210, 160, 3)
    with pytest.raises(ValueError, match=r"screens of one height, got \[210, 250\]"):
        env.render([0, 1])


# What is known of the resets of its default mode does not hold for the others of the first.
SOON = ("adventure", "breakout", "freeway", "ms_pacman")
OFFERING = [name for name, game in GAMES.items() if len(game.modes) * len(game.difficulties) > 1]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOON else pytest.mark.slow) for name in OFFERING],
)
@pytest.mark.parametrize("place", [0, -1])
def test_another_mode_and_difficulty_equal_ales(name, place):
    game, rng = GAMES[name], np.random.default_rng(0)
    mode, difficulty = game.modes[place], game.difficulties[-1]
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 7)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(str(rom_folder() / f"{name}.bin"))
    ale.setDifficulty(difficulty)
    ale.setMode(mode)
    options = {"obs_type": "ram", "reward_clipping": False, "full_action_space": True}
    options |= {"noop_max": 1, "use_fire_reset": False, "num_threads": 1}
    with closing(AtariEnv(name, seed=[7], mode=mode, difficulty=difficulty, **options)) as env:
        for t in range(40):
            if t % 13 == 0:
                env.reset()
                ale.reset_game()
            else:
                action = int(rng.integers(env.action_space.n))
                (after, _), _ = env.step(DictTensor({"action": torch.tensor([action])}))
                reward = sum(ale.act(ale.getLegalActionSet()[action]) for _ in range(4))
                assert after["reward"].item() == reward
                if after["done"]:
                    ale.reset_game()
            assert env.get_ram()[0].tolist() == ale.getRAM().tolist()


@pytest.mark.parametrize("n_envs", [3, 7])  # Of six, half are there, or one is there twice.
@pytest.mark.parametrize("process", [0, 1])
def test_several_modes_and_difficulties_play_in_one_batch_as_alone(n_envs, process):
    modes, difficulties, first = [4, 0, 20], [0, 1], process * n_envs
    seed = Seeds.of(process, range(first, first + n_envs))
    options = {"max_num_frames_per_episode": 50, "noop_max": 3}
    env = AtariEnv("breakout", n_envs, seed=seed, mode=modes, difficulty=difficulties, **options)
    assert env.action_space == spaces.Discrete(4)
    assert_plays_as_alone(
        env,
        [
            AtariEnv(
                "breakout",
                1,
                seed=[i],
                mode=modes[i % 3],
                difficulty=difficulties[i % 2],
                **options,
            )
            for i in range(first, first + n_envs)
        ],
    )
    states = env.get_state()
    with pytest.raises(ValueError, match="states: expected one of breakout with the options of"):
        env.set_state(states[1:2], [0])
    env.set_state(states[:1], [0])


def test_several_games_have_modes_of_their_own():
    games, modes = ["breakout", "pong", "breakout"], [4, None, 0, 20, 1, 0]
    env = AtariEnv(games=games, n_envs=6, seed=[0, 1, 2, 3, 4, 5], mode=modes)
    assert env.action_space == spaces.Discrete(18)
    assert_plays_as_alone(
        env,
        [
            AtariEnv(games[i % 3], 1, seed=[i], mode=modes[i], full_action_space=True)
            for i in range(6)
        ],
    )


def test_modes_go_on_over_the_processes_of_a_batcher():
    def play(n_processes, modes):
        n_envs = 6 // max(n_processes, 1)
        env_args = {"game": "pong", "n_envs": n_envs, "mode": modes, "num_threads": 1}
        with RL_Batcher(40, Wanderer, {}, AtariEnv, env_args, n_processes, seeds=3) as batcher:
            batcher.reset()
            batcher.execute()
            return batcher.get()[0].trajectories["_observation/frame"]

    expected = play(0, (1, 0))
    assert torch.equal(play(2, torch.tensor([1, 0])), expected)
    assert not torch.equal(play(0, (0, 1)), expected)


def test_several_games_have_the_same_actions_in_every_process_of_a_batcher():
    class Mover(RL_Agent):
        def __call__(self, state, observation, agent_info=None, history=None):
            return DictTensor({"action": torch.full((observation.n_elems(),), 3)}), state

    def play(n_processes):
        env_args = {"games": ["pong", "breakout"], "n_envs": 2 // max(n_processes, 1)}
        with RL_Batcher(40, Mover, {}, AtariEnv, env_args, n_processes, seeds=3) as batcher:
            batcher.reset()
            batcher.execute()
            return batcher.get()[0].trajectories["_observation/frame"]

    assert torch.equal(play(2), play(0))


def test_seeds_decide_and_differ():
    def frames(seed, n_envs=3):
        env = AtariEnv("pong", n_envs, seed=seed, obs_type="ram", repeat_action_probability=0.25)
        env.reset()
        *_, (after, _) = play(env, 30)
        return after["frame"]

    assert torch.equal(frames(0), frames(0))
    assert not torch.equal(frames(0), frames(1))
    assert not torch.equal(frames(0)[0], frames(0)[1])
    assert not torch.equal(frames(None), frames(None))
    assert torch.equal(frames(0), frames(env_seeds(0, 3)))
    process = AtariEnv("pong", 2, seed=Seed(9, 0, 1))
    whole = AtariEnv("pong", 4, seed=0)
    assert torch.equal(process.reset()[0]["frame"], whole.reset()[0]["frame"][2:])


def test_the_random_streams_go_on_after_a_reset():
    env = AtariEnv("pong", 4, seed=0, obs_type="ram")
    starts = [env.reset()[0]["frame"] for _ in range(3)]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])


@pytest.mark.parametrize("obs_type", ["pixels", "ram"])
def test_some_environments_begin_anew_and_the_others_go_on(obs_type):
    options = {"obs_type": obs_type, "life_loss_info": True, "repeat_action_probability": 0.25}
    env, beside = (AtariEnv("breakout", 4, seed=2, **options) for _ in range(2))
    for one in (env, beside):
        one.reset()
        *_, (_, before) = play(one, 60)
    chosen = torch.tensor([False, True, True, False])
    states = env.get_state()
    observation, running = env.reset_where(chosen)
    everywhere, _ = beside.reset()
    assert set(observation) == set(before)
    for key in before:
        assert torch.equal(observation[key][~chosen], before[key][~chosen]), key
        assert torch.equal(observation[key][chosen], everywhere[key][chosen]), key
    assert torch.equal(env.get_state([0, 3]), states[[0, 3]])
    assert torch.equal(env.get_state([1, 2]), beside.get_state([1, 2]))
    assert running.tolist() == [0, 1, 2, 3]
    assert env.reset_where(~chosen)[0]["initial_state"].all()


def test_who_begins_anew_is_said_by_bools():
    env = AtariEnv("pong", 2, seed=0)
    with pytest.raises(CallOrderError, match="reset_where: expected a reset before"):
        env.reset_where(torch.tensor([True, False]))
    env.reset()
    with pytest.raises(TypeError, match="chosen: expected a tensor"):
        env.reset_where([True, False])
    with pytest.raises(DtypeMismatchError, match="chosen: expected torch.bool, got torch.int64"):
        env.reset_where(torch.tensor([1, 0]))
    with pytest.raises(ShapeError, match=r"chosen: expected shape \(2,\), got \(3,\)"):
        env.reset_where(torch.zeros(3, dtype=torch.bool))
    with pytest.raises(DeviceMismatchError, match="chosen"):
        env.reset_where(torch.zeros(2, dtype=torch.bool, device="meta"))


def test_decorrelated_environments_begin_apart():
    def start(n_steps, n_envs=6, seed=3):
        env = AtariEnv("breakout", n_envs, seed=seed, decorrelate_steps=n_steps, noop_max=0)
        return env.reset()[0]

    assert (start(0)["frame"] == start(0)["frame"][:1]).all()
    apart = start(40)
    assert len(apart["frame"].flatten(1).unique(dim=0)) == 6
    assert torch.equal(apart["frame"], start(40)["frame"])
    assert torch.equal(apart["frame"][:2], start(40, n_envs=2)["frame"])
    assert apart["initial_state"].all()
    assert not apart["episode_length"].any()
    env = AtariEnv("breakout", 6, seed=3, decorrelate_steps=40, noop_max=0)
    first, second = env.reset()[0], env.reset()[0]
    assert not torch.equal(first["frame"], second["frame"])
    env.seed(3)
    assert torch.equal(env.reset()[0]["frame"], first["frame"])
    assert torch.equal(env.reset()[0]["frame"], second["frame"])


class Wanderer(RL_Agent):
    """Acts on what it sees, so that one wrong byte leads elsewhere."""

    def __call__(self, state, observation, agent_info, history=None):
        action = observation["frame"].long().sum((1, 2, 3)) % 6
        return DictTensor({"action": action}), DictTensor()


def create_env(n_envs, seed):
    return AtariEnv("pong", n_envs, seed=seed, num_threads=1, max_num_frames_per_episode=70)


@pytest.mark.parametrize("n_processes", [0, 2])
def test_a_batcher_stores_bytes(n_processes):
    reference = AtariEnv("pong", 4, seed=11, num_threads=1, max_num_frames_per_episode=70)
    env_args = {"n_envs": 4 // max(n_processes, 1)}
    with RL_Batcher(
        10, Wanderer, {}, create_env, env_args, n_processes=n_processes, seeds=11
    ) as batcher:
        batcher.reset()
        observation, _ = reference.reset()
        n_ends = 0
        for _ in range(3):
            batcher.execute()
            steps = batcher.get()[0].trajectories
            assert steps["observation/frame"].dtype == torch.uint8
            assert steps["_observation/frame"].dtype == torch.uint8
            for t in range(10):
                action, _ = Wanderer()(None, observation, None)
                (after, _), (following, _) = reference.step(action)
                for key in observation.keys():
                    assert torch.equal(steps[f"observation/{key}"][:, t], observation[key])
                    assert torch.equal(steps[f"_observation/{key}"][:, t], after[key])
                observation = following
                n_ends += after["done"].sum()
    assert n_ends


# --- States. ---


def check_restores(game, n_steps, **options):
    env = AtariEnv(game, 2, seed=0, repeat_action_probability=0.25, num_threads=1, **options)
    env.reset()
    list(play(env, 20))
    states, now = env.get_state(), env.observe()
    once = list(play(env, n_steps, seed=1))
    env.set_state(states)
    check_equal(env.observe(), now)
    for (after, following), (expected, expected_following) in zip(
        play(env, n_steps, seed=1), once, strict=True
    ):
        check_equal(after, expected)
        check_equal(following, expected_following)
    env.close()
    return sum(int(after["done"].sum()) for after, _ in once)


def test_what_is_restored_plays_on_as_before():
    assert check_restores("breakout", 300, max_num_frames_per_episode=400)


@pytest.mark.parametrize("options", [{"obs_type": "ram"}, {"obs_type": "rgb"}])
def test_all_kinds_of_observations_are_restored(options):
    assert check_restores("tic_tac_toe_3d", 40, max_num_frames_per_episode=90, **options)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_plays_on_as_before(game):
    check_restores(game, 1000, obs_type="ram")
    check_restores(game, 150, max_num_frames_per_episode=300, stack_num=2)


def test_one_state_branches_into_many():
    env = AtariEnv("breakout", 4, seed=0)
    env.reset()
    list(play(env, 15))
    env.set_state(env.get_state([2]).repeat(4, 1), [0, 1, 2, 3])
    frames = env.observe()["frame"]
    assert (frames == frames[:1]).all()
    env.step(DictTensor({"action": torch.tensor([0, 1, 2, 3])}))
    assert len(env.get_ram().unique(dim=0)) > 1


def test_states_of_other_environments_and_damaged_ones_are_refused():
    env = AtariEnv(games=["pong", "breakout"], n_envs=2, seed=0)
    env.reset()
    states = env.get_state()
    with pytest.raises(ValueError, match="states: expected one of pong with the options"):
        env.set_state(states[1:], [0])
    with pytest.raises(ShapeError, match="states: expected"):
        env.set_state(states[:1, 1:], [0])
    with pytest.raises(ShapeError, match="states: expected"):
        env.set_state(states[:1].long(), [0])
    damaged = states.clone()
    damaged[0, 100] ^= 1
    with pytest.raises(ValueError, match="got one that was changed"):
        env.set_state(damaged)
    other = AtariEnv(games=["pong", "breakout"], n_envs=2, seed=0, noop_max=3)
    other.reset()
    with pytest.raises(ValueError, match="other options"):
        other.set_state(states)
    env.set_state(states)
