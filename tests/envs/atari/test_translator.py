"""Programs translated to the processor's code do what the interpreter does, drawn or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, Console
from scripts.cartridges import cartridge

N_ENVS = 2
OPTIONS = {"full_action_space": True, "repeat_action_probability": 0.25, "noop_max": 10}


def results(game: str, n_steps: int, **options: object) -> Iterator[dict[str, torch.Tensor]]:
    env = AtariEnv(game, N_ENVS, seed=3, num_threads=1, **OPTIONS, **options)
    env.reset()
    actions = np.random.default_rng(4).integers(0, env.action_space.n, (n_steps, N_ENVS))
    for action in torch.from_numpy(actions):
        (after, _), (following, _) = env.step(DictTensor({"action": action}))
        yield {
            "ram": env.get_ram(),
            "frame": following["frame"],
            "last frame": after["frame"],
            **{key: after[key] for key in ("reward_raw", "lives", "done", "episode_return")},
        }
    env.close()


def assert_equal(game: str, one: Iterator, other: Iterator, keys: tuple[str, ...]) -> None:
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        for key in keys:
            assert torch.equal(a[key], b[key]), f"{game}: {key} differs at step {t}"


@pytest.mark.parametrize("game", GAMES)
def test_translated_programs_equal_interpreted_ones(
    game: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    translated = list(results(game, 60))
    monkeypatch.setenv("RLBATCH_ATARI_TRANSLATE", "0")
    assert_equal(game, iter(translated), results(game, 60), tuple(translated[0]))


@pytest.mark.parametrize("game", GAMES)
def test_consoles_that_draw_nothing_equal_those_that_do(game: str) -> None:
    keys = ("ram", "reward_raw", "lives", "done", "episode_return")
    assert_equal(game, results(game, 100), results(game, 100, obs_type="ram"), keys)


@pytest.mark.parametrize("game", ["pong", "tetris", "qbert", "tic_tac_toe_3d", "adventure", "hero"])
@pytest.mark.parametrize("frameskip", [3, 7])
@pytest.mark.parametrize("maxpool", [True, False])
def test_frames_that_nobody_sees_leave_no_trace(game: str, frameskip: int, maxpool: bool) -> None:
    # With a skip of one frame all are seen, so that the screens are those of a console.
    options = {"frameskip": frameskip, "maxpool": maxpool, "episodic_life": True}
    env = AtariEnv(game, 1, seed=1, noop_max=0, full_action_space=True, **options)
    reference = AtariEnv(game, 1, seed=1, noop_max=0, full_action_space=True, frameskip=1)
    env.reset()
    reference.reset()
    actions, n_compared = np.random.default_rng(2).integers(0, env.action_space.n, 150), 0
    for action in torch.from_numpy(actions)[:, None]:
        (after, _), _ = env.step(DictTensor({"action": action}))
        for _ in range(frameskip):
            (one, _), _ = reference.step(DictTensor({"action": action}))
            if one["done"]:
                break
        if after["done"]:  # Also where a life is lost.
            break
        assert not one["done"]
        assert torch.equal(env.render(), reference.render())
        n_compared += 1
    assert n_compared > 20


def test_generated_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        kind, content = cartridge(number)
        consoles = []
        for wish in ("1", "0"):
            monkeypatch.setenv("RLBATCH_ATARI_TRANSLATE", wish)
            consoles.append(Console())
            consoles[-1].setInt("random_seed", 1)
            consoles[-1].loadROM(content, rule="pitfall2")
        for action in range(12):
            for console in consoles:
                console.act(action)
            states = [console.cloneState() for console in consoles]
            assert states[0] == states[1], f"{kind} {number}: differs after action {action}"
