"""Environments whose every value is known beforehand. Importable in child processes."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlbatch.devices import as_device
from rlbatch.dicttensor import DictTensor, masked_dicttensor
from rlbatch.envs.base import Observation, VecEnv
from rlbatch.errors import CallOrderError
from rlbatch.seeding import Seed


class CountingEnv(VecEnv):
    """A `VecEnv` that observes where it is.

    - `frame` [B, 3] int64: number of the environment, episode, step of the episode; all from 0.
    - `option` [B] int64: `env_info["option"]` of the last reset, 0 without one.
    - The reward of step k of an episode is k, from 1. The return is 1 + 2 + ... + k.
    - The last step of an episode is terminated in an environment with an even number, and
      truncated in one with an odd number.

    Every reset starts the next episode; only the first starts episode 0.

    Args:
        lengths: Steps in every episode of each environment; there are `len(lengths)`.
        autoreset: As in `VecEnv`.
        device: Where everything is.
        seed: The `Seed` of process k makes `k * len(lengths)` the first number, so that numbers
            are unique among processes; any other seed makes it 0.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        autoreset: bool = False,
        device: torch.device | str | int = "cpu",
        seed: int | Sequence[int] | None = None,
    ):
        self.autoreset, self.device = autoreset, as_device(device)
        self.observation_space = spaces.Box(0, 10**6, (3,), np.int64)
        self.action_space = spaces.Discrete(2)
        first = seed.process * len(lengths) if isinstance(seed, Seed) else 0
        self.lengths = torch.tensor(lengths, device=self.device)
        self.numbers = first + torch.arange(len(lengths), device=self.device)
        self.episode = torch.full_like(self.numbers, -1)
        self.running = self.numbers[:0]
        self.closed = False

    def n_envs(self) -> int:
        return len(self.lengths)

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        option = env_info["option"] if env_info is not None and "option" in env_info else None
        self.option = torch.zeros_like(self.numbers) if option is None else option.to(self.device)
        self.episode = self.episode + 1
        self.count = torch.zeros_like(self.numbers)
        self.running = torch.arange(self.n_envs(), device=self.device)
        return self._observe(torch.zeros_like(self.numbers)), self.running

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        ran = self.running
        if not len(ran):
            raise CallOrderError("step: expected a running environment; reset")
        self.count = self.count.index_add(0, ran, torch.ones_like(ran))
        after = self._observe(action["action"])
        done = after["done"]
        if not self.autoreset:
            self.running = ran[~done]
            return (after, ran), (after.index(~done), self.running)
        self.count = torch.where(done, 0, self.count)
        self.episode = self.episode + done
        first = self._observe(torch.zeros_like(action["action"]))
        return (after, ran), (masked_dicttensor(after, first, done), ran)

    def close(self) -> None:
        self.closed = True

    def _observe(self, last_action: torch.Tensor) -> DictTensor:
        """Observes the running environments."""
        rows = self.running
        number, episode, count = (x[rows] for x in (self.numbers, self.episode, self.count))
        done, odd = count == self.lengths[rows], number % 2 == 1
        return DictTensor(
            {
                "frame": torch.stack([number, episode, count], dim=1),
                "option": self.option[rows],
                "reward": count.float(),
                "terminated": done & ~odd,
                "truncated": done & odd,
                "done": done,
                "initial_state": count == 0,
                "last_action": last_action.clone(),
                "episode_return": (count * (count + 1) / 2).float(),
                "episode_length": count,
            }
        )


class CountingGym(gymnasium.Env):
    """A Gymnasium environment that observes [number, episode, step], as `CountingEnv` does.

    The reward of step k is k. It keeps what it was given: `seeds` and `options`, one per reset,
    and `actions`, one per step.

    Args:
        number: The first value of each observation.
        length: Steps in an episode.
        truncates: The end of an episode is `truncated`, not `terminated`.
        dtype: Of the observation.
    """

    def __init__(
        self, number: int = 0, length: int = 3, truncates: bool = False, dtype: Any = np.int64
    ):
        self.observation_space = spaces.Box(0, 100, (3,), dtype)
        self.action_space = spaces.Discrete(2)
        self.number, self.length, self.truncates = number, length, truncates
        self.episode, self.count = -1, 0
        self.seeds: list[int | None] = []
        self.options: list[dict | None] = []
        self.actions: list[Any] = []
        self.closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.count += 1
        done = self.count == self.length
        ends = (done and not self.truncates, done and self.truncates)
        return self._observe(), float(self.count), *ends, {}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> np.ndarray:
        where = [self.number, self.episode, self.count]
        return np.array(where, self.observation_space.dtype)


NESTED_SPACE = spaces.Dict(
    {
        "choice": spaces.MultiDiscrete([2, 5]),
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "inner": spaces.Tuple(
            [
                spaces.Discrete(3, start=-1),
                spaces.Dict(
                    {
                        "flags": spaces.MultiBinary(4),
                        "position": spaces.Box(-1, 1, (), np.float64),
                    }
                ),
            ]
        ),
    }
)

NESTED_KEYS = ["choice", "image", "inner/0", "inner/1/flags", "inner/1/position"]


class NestedGym(gymnasium.Env):
    """A Gymnasium environment that observes the action it was given, in a nested space.

    The first observation and the rewards are drawn from the environment's random stream.

    Args:
        length: Steps in an episode.
    """

    observation_space = NESTED_SPACE
    action_space = NESTED_SPACE

    def __init__(self, length: int = 3):
        self.length, self.count = length, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return draw(NESTED_SPACE, self.np_random), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        check_value(NESTED_SPACE, action)
        self.count += 1
        return action, self.np_random.random(), self.count == self.length, False, {}


class FailingGym(CountingGym):
    """A `CountingGym` that raises `RuntimeError("failed on purpose")`.

    Args:
        at_reset: In which reset, from 0; None for none.
        at_step: In which step of its life, from 0; None for none.
        number: As in `CountingGym`.
        length: As in `CountingGym`.
    """

    def __init__(
        self,
        at_reset: int | None = None,
        at_step: int | None = None,
        number: int = 0,
        length: int = 3,
    ):
        super().__init__(number, length)
        self.at_reset, self.at_step = at_reset, at_step

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if len(self.seeds) == self.at_reset:
            raise RuntimeError("failed on purpose")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if len(self.actions) == self.at_step:
            raise RuntimeError("failed on purpose")
        return super().step(action)


def actions(*values: Any) -> DictTensor:
    """Returns one action per environment."""
    return DictTensor({"action": torch.tensor(values)})


def draw(space: spaces.Space, generator: np.random.Generator) -> Any:
    """Returns a random value of a space, drawn from the given stream."""
    if isinstance(space, spaces.Dict):
        return {key: draw(child, generator) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(draw(child, generator) for child in space)
    space.seed(int(generator.integers(2**31)))
    return space.sample()


def check_value(space: spaces.Space, value: Any) -> None:
    """Asserts that a value is in a space, and has its types, dtypes and shapes exactly."""
    if isinstance(space, spaces.Dict):
        assert isinstance(value, dict)
        assert list(value) == list(space)
        for key, child in space.items():
            check_value(child, value[key])
    elif isinstance(space, spaces.Tuple):
        assert isinstance(value, tuple)
        assert len(value) == len(space)
        for child, part in zip(space, value, strict=True):
            check_value(child, part)
    else:
        array = np.asarray(value)
        assert array.dtype == space.dtype, f"{array.dtype} in {space}"
        assert space.contains(array), f"{value!r} in {space}"


# What `GymEnv` can be built on: "list", or the kind of vector environment and its autoreset mode.
BACKENDS = [
    "list",
    *(f"{kind}-{mode.name}" for kind in ("sync", "async") for mode in AutoresetMode),
]


def gym_env(
    backend: str, makers: Sequence[Callable[[], gymnasium.Env]]
) -> list[gymnasium.Env] | VectorEnv:
    """Returns the environments as one of `BACKENDS`."""
    if backend == "list":
        return [make() for make in makers]
    kind, mode = backend.split("-")
    if kind == "sync":
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode])
    return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode], context="fork")


def episode_lengths(
    env: VecEnv, n_resets: int, choose: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Plays all to the end, several times over.

    Args:
        env: One that does not reset itself.
        n_resets: How often.
        choose: Returns actions for frames.

    Returns:
        [n_envs, n_resets] int64.
    """
    found = torch.zeros(env.n_envs(), n_resets, dtype=torch.int64)
    for column in found.T:
        observation, running = env.reset()
        while len(running):
            action = DictTensor({"action": choose(observation["frame"])})
            (after, ran), (observation, running) = env.step(action)
            column[ran] = after["episode_length"]
    return found


@contextlib.contextmanager
def no_waiting_for_the_gpu() -> Iterator[None]:
    """Makes everything raise that waits for the GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That the mode is a prototype; raised after it is set.
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
