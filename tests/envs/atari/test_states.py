"""States of environments: from a state that is set everything repeats, random numbers included."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, find_game
from rlbatch.envs.atari._batch import HEADER_BYTES
from rlbatch.envs.atari._native_batch import JobKind, NativeBatch
from rlbatch.envs.atari._options import Settings


@pytest.mark.parametrize("n_steps", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("game", GAMES)
def test_everything_repeats(game: str, n_steps: int) -> None:
    env = AtariEnv(game, 2, seed=7, num_threads=1, repeat_action_probability=0.25)
    env.reset()
    actions = np.random.default_rng(5).integers(0, env.action_space.n, 40 + n_steps)
    for t, number in enumerate(actions.tolist()):
        if t == 40:
            assert not torch.equal(*env.get_state())
            env.set_state(env.get_state([0]), [1])
        (after, _), (following, _) = env.step(DictTensor({"action": torch.full((2,), number)}))
        if t >= 40:
            for observation in (after, following):
                for key in ("frame", "reward_raw", "done", "lives", "episode_return"):
                    assert torch.equal(*observation[key]), f"{game}: {key} at step {t - 40}"
    assert torch.equal(*env.get_state())


def sticky(game: str, n_envs: int, seed: int | list[int]) -> AtariEnv:
    options = {"obs_type": "ram", "repeat_action_probability": 0.25, "num_threads": 1}
    env = AtariEnv(game, n_envs, seed=seed, **options)
    env.reset()
    return env


def played(env: AtariEnv, n_steps: int = 60) -> torch.Tensor:
    """Returns what environments show after the same actions; episodes end meanwhile."""
    for t in range(n_steps):
        actions = torch.full((env.n_envs(),), t // 3 % int(env.action_space.n))
        (after, _), _ = env.step(DictTensor({"action": actions}))
    return after["frame"]


def test_branches_draw_the_same_unless_they_are_given_a_seed() -> None:
    env = sticky("breakout", 8, seed=0)
    state = env.get_state([3])
    branches, unchanged = state.repeat(8, 1), state.clone()
    env.set_state(branches)
    assert len(played(env).unique(dim=0)) == 1
    found = []
    for seed in (7, 7, 8):
        env.set_state(branches, seed=seed)
        assert len(env.observe()["frame"].unique(dim=0)) == 1
        found.append(played(env))
    assert len(found[0].unique(dim=0)) > 4
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert torch.equal(state, unchanged)
    env.set_state(branches[:2], [1, 0], seed=[5, 5])
    assert torch.equal(*env.get_state([0, 1]))
    env.set_state(branches[:0], [], seed=7)


@pytest.mark.parametrize("seed", [-1, [1, 2, 3], 2.5])
def test_seeds_that_are_none_are_refused(seed: object) -> None:
    env = sticky("pong", 2, seed=0)
    before = env.get_state()
    with pytest.raises((ValueError, TypeError), match="seed"):
        env.set_state(before, seed=seed)
    assert torch.equal(env.get_state(), before)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (84, 84)])
def test_states_of_any_size_are_checked_wherever_they_are_changed(size: tuple[int, int]) -> None:
    height, width = size
    env = AtariEnv("pong", 3, seed=0, img_height=height, img_width=width, stack_num=1)
    env.reset()
    states = env.get_state()
    n_bytes = states.shape[1]
    for place in (0, 7, 16, 17, n_bytes // 2, n_bytes - 1):
        damaged = states.clone()
        damaged[1, place] ^= 0x80
        with pytest.raises(ValueError, match="states: expected one"):
            env.set_state(damaged)
    # Wherever they lie in memory.
    apart = torch.zeros(3, n_bytes + 1, dtype=torch.uint8)[:, 1:]
    apart[:] = states
    flat = torch.zeros(1 + states.numel(), dtype=torch.uint8)[1:].view(states.shape)
    flat[:] = states
    cut = torch.zeros(3, n_bytes + 1, dtype=torch.uint8)[:, :-1]
    cut[:] = states
    for same in (apart, flat, cut, states[:1].expand(3, -1), states.flip(0)):
        env.set_state(same)
        assert torch.equal(env.get_state(), same)
        env.set_state(same[2:], [0])
        assert torch.equal(env.get_state([0]), same[2:])
    for number in range(3):
        env.set_state(states[number : number + 1], [0])
        assert torch.equal(env.get_state([0])[0], states[number])


_RAM = HEADER_BYTES + 16  # Where the RAM begins in a state.


def randomise_ram(game: str, states: np.ndarray, rng: np.random.Generator) -> None:
    """Makes states of consoles that may have been anywhere; mostly with what resets need."""
    needs = find_game(game).reset_needs
    for i, row in enumerate(states[1:]):
        ram = row[_RAM:][:128]
        before = ram.copy()
        ram[:] = rng.integers(0, 256, 128)
        for address, mask, first, last in needs if i else ():
            bits = (first + rng.integers((last - first) % 256 + 1)) % 256
            ram[address & 0x7F] = (int(ram[address & 0x7F]) & ~mask) | bits
        assert not np.array_equal(ram, before)


def check_known_resets(game: str, sticky: float, n_resets: int) -> None:
    """Resets consoles that may have been anywhere, both ways."""
    # What survives a reset must survive all acts that are known: most episodes begin with as many.
    noop_max = 90 if find_game(game).left_by_reset else 30
    settings = Settings(repeat_action_probability=sticky, noop_max=noop_max)
    games = find_game(game), dataclasses.replace(find_game(game), reset_depends_on="play")
    known, emulated = (NativeBatch([one], 4, settings, 2, knows_all=True) for one in games)
    fires = 1 in find_game(game).minimal_actions
    assert known.known_resets(0).n_states > 1
    assert known.known_resets(0).n_holds == (5 if fires and sticky else 1)
    assert emulated.known_resets(0).n_states == 0
    rng, everyone = np.random.default_rng(0), list(range(4))
    frames = np.zeros((2, *known.shape), np.uint8)
    for batch, out in zip((known, emulated), frames, strict=True):
        batch.run(JobKind.LOAD, out, seed=np.arange(4, dtype=np.uint32))
    for t in range(n_resets):
        assert np.array_equal(frames[0], frames[1])
        states = known.save(everyone)
        assert torch.equal(states, emulated.save(everyone)), f"reset {t}"
        if t % 3 == 0:
            for batch, out in zip((known, emulated), frames, strict=True):
                batch.run(JobKind.STEP, out, action=rng.integers(0, 1, 4))
            states = known.save(everyone)
        randomise_ram(game, states.numpy(), rng)
        known.write_headers(everyone, states)
        for batch, out in zip((known, emulated), frames, strict=True):
            batch.restore(everyone, states)
            batch.run(JobKind.RESET, out)


KNOWN = [name for name in GAMES if GAMES[name].reset_depends_on != "play"]
SURVIVED = [name for name in KNOWN if GAMES[name].left_by_reset or GAMES[name].reset_needs]


def n_known(game: str, sticky: float) -> int:
    settings = Settings(repeat_action_probability=sticky)
    batch = NativeBatch([find_game(game)], 1, settings, 1, knows_all=True)
    return batch.known_resets(0).n_states


def test_how_many_resets_are_known() -> None:
    """As the documentation says, which counts on them: a GPU keeps all of a game's."""
    found = {game: n_known(game, 0.0) for game in KNOWN}
    many = sorted(game for game, n in found.items() if n > 480)
    assert many == ["assault", "pitfall2", "solaris"]
    assert max(found.values()) == found["assault"] == 2070
    assert n_known("assault", 0.25) == 5 * 2070


# With 0.5, FIRE is held for each number of frames in a few of the resets.
@pytest.mark.parametrize("sticky", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("game", KNOWN)
def test_known_resets_are_those_that_are_emulated(game: str, sticky: float) -> None:
    check_known_resets(game, sticky, 12)


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [0.0, 0.5])
@pytest.mark.parametrize("game", SURVIVED)
def test_known_resets_where_bytes_survive(game: str, sticky: float) -> None:
    # One value of 256, of one byte, may make a difference.
    check_known_resets(game, sticky, 400)


def test_zero_is_a_seed_like_any_other() -> None:
    env = sticky("breakout", 2, seed=1)
    states = env.get_state()
    env.set_state(states, seed=0)
    assert not torch.equal(env.get_state(), states)
