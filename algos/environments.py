"""Gymnasium and Atari environments for the examples, and the seeds of their episodes.

NOTE [ seeds of episodes ]

Every `RL_Batcher.reset` of the examples brings new seeds: for the environments in `env_info`, for
the agents' draws in `agent_info`. They follow from the seed of the run, from what the episodes are
for, and from the number of the iteration. So the episodes of an iteration depend on nothing that
came before but the weights: a run that is resumed meets the episodes it would have met, and an
evaluation never sees an episode of the training.
"""

from __future__ import annotations

import functools
import re
from enum import IntEnum
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rlbatch import DictTensor, TemporalDictTensor, VecEnv
from rlbatch.devices import DeviceLike
from rlbatch.envs import DeviceEnv, GymEnv, GymEnvInf
from rlbatch.envs.atari import GAMES, AtariEnv
from rlbatch.envs.base import Observation
from rlbatch.errors import CallOrderError
from rlbatch.seeding import derived_seed


class Episodes(IntEnum):
    """What episodes are for; each use has seeds of its own."""

    TRAINING = 0
    EVALUATION = 1
    FINAL_EVALUATION = 2


def episode_infos(
    n_envs: int, seed: int, use: Episodes, iteration: int, stochastic: bool = True
) -> tuple[DictTensor, DictTensor]:
    """Returns `agent_info` and `env_info` for `RL_Batcher.reset`.

    Args:
        n_envs: How many environments the batcher has.
        seed: Of the run.
        use: What the episodes are for.
        iteration: Which of the resets for this use this is.
        stochastic: Whether the agents draw their actions, or take the likeliest.

    Returns:
        `stochastic` [n_envs] bool and `seed` [n_envs] int64; `seed` alone.
    """
    seeds = torch.tensor([derived_seed(seed, use, iteration, k) for k in range(n_envs)])
    drawn = torch.full((n_envs,), stochastic)
    return DictTensor({"stochastic": drawn, "seed": seeds}), DictTensor({"seed": seeds})


def create_env(  # noqa: PLR0913 - what an environment is, and how it ends
    env_id: str,
    n_envs: int,
    device: DeviceLike,
    seed: int,
    autoreset: bool = False,
    life_loss_ends: bool = False,
    num_threads: int = 0,
) -> VecEnv:
    """Creates a batch of environments for `RL_Batcher(create_env=...)`.

    Args:
        env_id: As registered with Gymnasium, or `module:id`; Atari games need not be registered.
        n_envs: How many.
        device: Where observations are and actions come from. Atari games run there, all others on
            the CPU.
        seed: Used where a reset brings none.
        autoreset: Start the next episode when one ends. Otherwise every episode does end, see
            `make_gym`.
        life_loss_ends: In Atari games that reset themselves, a lost life sets `terminated` and
            `done`, and the game goes on. Elsewhere it is without effect.
        num_threads: That step Atari games on the CPU; 0 for one per core.
    """
    if is_atari(env_id):
        options: dict[str, Any] = {"num_threads": num_threads}
        if not autoreset:
            return UntilDone(create_atari(env_id, n_envs, device, seed, **options))
        # Not all are at the same place of a game, in training.
        options |= {"decorrelate_steps": 200, "life_loss_info": life_loss_ends}
        return create_atari(env_id, n_envs, device, seed, **options)
    kind = GymEnvInf if autoreset else GymEnv
    env = kind([make_gym(env_id, ends=not autoreset) for _ in range(n_envs)], seed)
    if torch.device(device).type == "cpu":
        return env
    return DeviceEnv(env, from_device="cpu", to_device=device)


_ATARI_ID = re.compile(r"(ale_py:)?(ALE/\w+-v5|\w+NoFrameskip-v4)")


def is_atari(env_id: str) -> bool:
    """Returns whether this is an Atari game: `ALE/Pong-v5`, `PongNoFrameskip-v4`, or `pong`."""
    return env_id in GAMES or _ATARI_ID.fullmatch(env_id) is not None


def frames_per_step(env_id: str) -> int:
    """Returns how many frames of an emulator a step is; 1 where there is none."""
    return 4 if is_atari(env_id) else 1


def create_atari(
    env_id: str, n_envs: int, device: DeviceLike, seed: int, **options: Any
) -> AtariEnv:
    """Creates Atari games with the usual preprocessing, whose episodes are whole games.

    Where Gymnasium's environment of that name has sticky actions (those of version 5, with
    probability 0.25), so do these.

    Args:
        env_id: See `is_atari`.
        n_envs: How many.
        device: Where they run.
        seed: Used where a reset brings none.
        options: More of `AtariEnv`.
    """
    name = env_id.removeprefix("ale_py:")
    sticky = 0.25 if name.startswith("ALE/") else 0.0
    return AtariEnv(
        name, n_envs, device=device, seed=seed, repeat_action_probability=sticky, **options
    )


def whole_episodes_ended(steps: TemporalDictTensor) -> torch.Tensor:
    """Returns where in steps [B, T, ...] an episode ended, [B, T] bool, and not just a life.

    Where `life_loss_ends`, one that is cut in the very step in which a life is lost is left out.
    """
    ended = steps["_observation/done"]
    if "_observation/lives" not in steps:
        return ended
    before, after = steps["observation/lives"], steps["_observation/lives"]
    is_life = (0 < after) & (after < before) & ~steps["_observation/truncated"]
    return ended & ~is_life


def frame_statistics(env_id: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns how the frames of a game are distributed while it is played at random.

    Returns:
        The mean of each pixel, [height, width] float32, rounded; and the root of the mean squared
        distance from it, over all pixels, but at least 1; in bytes.
    """
    n_envs, n_steps = 16, 500
    env = create_atari(env_id, n_envs, "cpu", seed)
    env.reset()
    generator = torch.Generator().manual_seed(seed)
    frames = []
    for _ in range(n_steps):
        drawn = torch.randint(int(env.action_space.n), (n_envs,), generator=generator)
        frames.append(env.step(DictTensor({"action": drawn}))[1][0]["frame"][:, -1])
    env.close()
    seen = torch.cat(frames).float()
    mean = seen.mean(0).round()
    return mean, (seen - mean).square().mean().sqrt().clamp(min=1.0)


class UntilDone(VecEnv):
    """Plays one episode in each environment of a batch that resets itself.

    Environments whose episode has ended play on, with their first action, where nobody looks. They
    draw from their random streams there, so give each `reset` seeds, as the examples do, if it is
    not to depend on who else plays.

    Args:
        env: With `autoreset`; owned from here on.
    """

    def __init__(self, env: VecEnv):
        self._env = env
        self._running = torch.empty(0, dtype=torch.int64)
        self.device = env.device
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self._env.n_envs()

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `VecEnv.reset`."""
        observation, self._running = self._env.reset(env_info)
        return observation, self._running

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps the running environments; see `VecEnv.step`.

        Raises:
            CallOrderError: There is none.
        """
        ran = self._running
        if not len(ran):
            raise CallOrderError(
                "step: expected a running environment, got none: all have ended; reset"
            )
        if len(ran) < self.n_envs():
            action = self._for_everyone(action)
        (after, _), (following, _) = self._env.step(action)
        if len(ran) < self.n_envs():
            is_same = following is after
            after = after.index(ran)
            following = after if is_same else following.index(ran)
        goes_on = ~after["done"]
        if not goes_on.all():
            following = following.index(goes_on)
        self._running = ran[goes_on]
        return (after, ran), (following, self._running)

    def _for_everyone(self, action: DictTensor) -> DictTensor:
        chosen = action["action"]
        actions = chosen.new_zeros(self.n_envs(), *chosen.shape[1:])
        actions[self._running] = chosen
        return DictTensor({"action": actions})

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()


# Half an hour of a game, as for Atari: 108,000 frames, 4 in a step (Hessel et al. 2018, "Rainbow").
MOST_STEPS = 27_000


def make_gym(env_id: str, ends: bool = False, **options: Any) -> gymnasium.Env:
    """Makes one environment with observations as below and, where they are real, clipped actions.

    Images of bytes, of at least 36 by 36, come as [k, height, width], where they are [height,
    width, k] with k up to 4; all else is flattened to [n].

    Args:
        env_id: As registered with Gymnasium, or `module:id`.
        ends: Whether an episode is cut after `MOST_STEPS`, where the environment has no limit of
            its own.
        options: More of `gymnasium.make`.

    Raises:
        ValueError: Observations differ in size, as those of `spaces.Sequence` do.
    """
    env = gymnasium.make(env_id, disable_env_checker=True, **options)
    if ends and env.spec.max_episode_steps is None:
        env = gymnasium.wrappers.TimeLimit(env, MOST_STEPS)
    env = _as_vector_or_stack(env)
    if isinstance(env.action_space, spaces.Box) and env.action_space.dtype.kind == "f":
        env = gymnasium.wrappers.ClipAction(env)
    return env


# Of an image: that the convolutions of algos/networks.py can look at, and where they come last.
_LEAST_SIDE, _MOST_COLOURS = 36, 4


def _as_vector_or_stack(env: gymnasium.Env) -> gymnasium.Env:
    """Wraps an environment so that it observes what networks take, see `make_gym`.

    Raises:
        ValueError: As there.
    """
    space = env.observation_space
    shape = space.shape if isinstance(space, spaces.Box) else ()
    if len(shape) == 1:
        return env
    if len(shape) == 3 and space.dtype == np.uint8:
        if min(shape[1:]) >= _LEAST_SIDE:
            return env
        if min(shape[:2]) >= _LEAST_SIDE and shape[2] <= _MOST_COLOURS:
            low, high = (np.moveaxis(bound, -1, 0) for bound in (space.low, space.high))
            turned = spaces.Box(low, high, dtype=np.uint8)
            turn = functools.partial(np.moveaxis, source=-1, destination=0)
            return gymnasium.wrappers.TransformObservation(env, turn, turned)
    flat = gymnasium.wrappers.FlattenObservation(env)
    if not isinstance(flat.observation_space, spaces.Box):
        raise ValueError(f"env_id: expected observations of a fixed size, got {space}")
    return flat


def spaces_of(env_id: str) -> tuple[spaces.Box, spaces.Space]:
    """Returns the space of observations, [n] or [k, height, width], and that of actions."""
    env = create_atari(env_id, 1, "cpu", 0) if is_atari(env_id) else make_gym(env_id)
    env.close()
    return env.observation_space, env.action_space


def longest_episode(env_id: str) -> float:
    """Returns after how many steps an environment truncates an episode; infinite if it does not."""
    if is_atari(env_id):
        return MOST_STEPS
    return _spec_of(env_id).max_episode_steps or float("inf")


def time_limit(env_id: str) -> int:
    """Returns after how many steps the environment truncates an episode.

    Raises:
        ValueError: It has no such limit.
    """
    limit = _spec_of(env_id).max_episode_steps
    if limit is None:
        raise ValueError(
            f"env_id: expected an environment registered with max_episode_steps, got {env_id}"
        )
    return limit


def reward_threshold(env_id: str) -> float | None:
    """Returns the mean return at which the environment counts as solved, if it names one."""
    if is_atari(env_id):
        return None
    return _spec_of(env_id).reward_threshold


def _spec_of(env_id: str) -> EnvSpec:
    # Not gymnasium.spec: that does not import the module of `module:id`.
    env = gymnasium.make(env_id)
    env.close()
    return env.spec
