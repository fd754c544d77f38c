"""Videos of episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import torch

from algos.environments import MOST_STEPS, create_atari, is_atari, make_gym
from rlbatch import DictTensor, RL_Agent, VecEnv
from rlbatch.envs import GymEnv
from rlbatch.envs.atari.video import check_mp4, gif_durations, replaced


def record_episode(
    path: Path, agent: RL_Agent, env_id: str, seed: int, stochastic: bool = True
) -> float:
    """Plays one episode, and writes what is seen to a file.

    Args:
        path: Ends in `.mp4` or `.gif`.
        agent: On the CPU.
        env_id: Of an environment that can draw itself.
        seed: Of the episode.
        stochastic: Whether the agent draws its actions.

    Returns:
        The episode's return, undiscounted.

    Raises:
        OSError: Not all of it could be written: the disk is full, for one.
        ValueError: The environment cannot draw itself.
    """
    env, look, fps = _create(env_id, seed)
    info = DictTensor({"stochastic": torch.tensor([stochastic]), "seed": torch.tensor([seed])})
    n_pictures, done = 0, False
    with contextlib.closing(env), replaced(path) as unfinished, torch.no_grad():
        state, (observation, _) = agent.initial_state(info, 1), env.reset()
        with imageio.get_writer(unfinished, **_options(path, fps)) as writer:
            while not done:
                writer.append_data(look())
                n_pictures += 1
                action, state = agent(state, observation, info)
                (after, _), (observation, _) = env.step(action)
                done = bool(after["done"])
        if path.suffix != ".gif":
            check_mp4(unfinished, n_pictures)
    return after["episode_return"].item()


def check_can_draw(env_id: str) -> None:
    """Checks that episodes can be filmed.

    Raises:
        ValueError: The environment cannot draw itself.
    """
    if is_atari(env_id):
        return
    env = make_gym(env_id)
    env.close()
    modes = env.metadata.get("render_modes", [])
    if "rgb_array" not in modes:
        raise ValueError(
            f"env_id: expected an environment that can draw itself, with the render mode "
            f"rgb_array, got {env_id} with {modes}"
        )


def _create(env_id: str, seed: int) -> tuple[VecEnv, Callable[[], np.ndarray], float]:
    """Returns one environment, what shows its picture [height, width, 3], and pictures/s."""
    if is_atari(env_id):
        games = create_atari(env_id, 1, "cpu", seed)
        return games, lambda: games.render()[0].numpy(), 1 / games.seconds_per_step()
    check_can_draw(env_id)
    gym = make_gym(env_id, ends=True, render_mode="rgb_array")
    return GymEnv([gym], seed), gym.render, float(gym.metadata.get("render_fps", 30))


def _options(path: Path, fps: float) -> dict:
    if path.suffix == ".gif":  # With `save_all` a film of one picture takes a list as well.
        return {"duration": gif_durations(MOST_STEPS, 1 / fps), "loop": 0, "save_all": True}
    return {"fps": fps, "macro_block_size": 2}  # Any even size may stay as it is.
