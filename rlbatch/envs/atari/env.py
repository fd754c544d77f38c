"""`AtariEnv`: a batch of Atari games as a `VecEnv`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Unpack

import numpy as np
import torch
from gymnasium import spaces

from rlbatch._checks import (
    check_device,
    check_has_keys,
    check_integer,
    check_shape,
)
from rlbatch.devices import DeviceLike, as_present_device
from rlbatch.dicttensor import DictTensor
from rlbatch.envs.atari._batch import actions_of
from rlbatch.envs.atari._device import DeviceBatch
from rlbatch.envs.atari._device_steps import DeviceSteps
from rlbatch.envs.atari._host_steps import Arrays, HostSteps
from rlbatch.envs.atari._native_batch import NativeBatch
from rlbatch.envs.atari._options import (
    MOST_THREADS,
    AtariOptions,
    Settings,
    check_count,
    games_in_turn,
)
from rlbatch.envs.atari.device_code import plays_grid
from rlbatch.envs.atari.games import find_game
from rlbatch.envs.base import (
    INTEGERS,
    Observation,
    VecEnv,
    check_chosen,
    checked_env_info,
    seeds_in,
)
from rlbatch.errors import CallOrderError, DtypeMismatchError
from rlbatch.seeding import derived_seed, env_seeds


class AtariEnv(VecEnv):
    """Atari games that each start their next episode when one ends.

    With equal options, seeds and actions the observations, rewards and ends are, bit for bit, those
    of ale-py's `AtariVectorEnv` in the mode `SAME_STEP`. Beside what `VecEnv` lists an observation
    holds `frame` uint8, `reward_raw` [B] float32 (the game's, `reward` may be clipped) and `lives`
    [B] int64. `episode_return` is the sum of `reward_raw`.

    It owns threads and memory; `close` releases them. It belongs to one thread of the caller at a
    time. On the CPU, a child that is forked can use it too.

    Args:
        game: Such as `pong`, `ALE/Pong-v5` or `PongNoFrameskip-v4`; see `find_game`.
        n_envs: How many environments.
        device: Where the games run, observations are and actions have to be: the CPU, or CUDA with
            CuPy (`pip install 'rlbatch[cuda13]'`). On CUDA no `step` after the first synchronises
            with the host; an action that does not exist is reported by the next call that does:
            `reset`, `get_ram`, `get_state`, `render` or `close`.
        seed: An int (0 is as good as any), the `Seed` that a batcher hands to `create_env`, or one
            32-bit int per environment, which is what ale-py's `reset(seed=...)` would give it; used
            in the first `reset`, after which the random streams go on, unless that brings seeds of
            its own. None: not reproducible.
        games: Instead of `game`: several names; environment i plays `games[i % len(games)]`, where
            i counts over all processes of a batcher. At most `n_envs` of them, unless `seed` comes
            from a batcher. All actions of the console can then be chosen.
        options: Any of these; the names that ale-py has as well mean what they mean there.

            - `obs_type` ("pixels"): "pixels", "rgb" or "ram" [128].
            - `frameskip` (4): frames per step.
            - `stack_num` (4): observations in a stack, the newest last; not for "ram".
            - `img_height`, `img_width` (84): of an observation; at most those of the screen.
            - `grayscale` (True): whether "pixels" are gray rather than RGB.
            - `maxpool` (True): whether an observation is the maximum of the last two frames.
            - `noop_max` (30): an episode begins with a random number of frames without an action,
              fewer than this.
            - `use_fire_reset` (True): whether it begins with FIRE, in games that have it.
            - `episodic_life` (False): whether the loss of a life ends the episode.
            - `life_loss_info` (False): whether it sets `terminated`, and the game goes on: what
              follows has `initial_state` True, but `episode_return` and `episode_length` count on.
            - `reward_clipping` (True): whether `reward` is cut to -1, 0 and 1.
            - `max_num_frames_per_episode` (108000): after how many frames an episode is truncated;
              None for no limit.
            - `repeat_action_probability` (0.0): with which probability, in every frame, the last
              action is repeated; as in ALE, six digits of it count.
            - `full_action_space` (False): whether all actions can be chosen, rather than those
              that have an effect.
            - `mode`, `difficulty` (None): of the game, see `Game.modes`; None for the default. The
              environments take the entries of a list in turn, as they do with `games`; it may be as
              long as `games`.
            - `num_threads` (0): 0 means one per core. With several worker processes, take 1. On a
              GPU they are used in the constructor only, to find the states that resets lead to.
            - `decorrelate_steps` (0): after `reset` every environment takes a random number of
              random steps, at most this, so that not all are at the same place of a game.

    Raises:
        TypeError, ValueError: An option is unknown or out of range, or there is no such game.
        NotImplementedError: The device is neither the CPU nor CUDA.
        RomError, BuildError: There is no ROM, no native library, or no CuPy for CUDA.

    Example:
        >>> env = AtariEnv("pong", 2, seed=0)
        >>> observation, running = env.reset()
        >>> observation["frame"].shape, observation["frame"].dtype
        (torch.Size([2, 4, 84, 84]), torch.uint8)
        >>> action = DictTensor({"action": torch.tensor([0, 3])})
        >>> (after, _), (following, _) = env.step(action)
        >>> after["reward"], after["episode_length"]
        (tensor([0., 0.]), tensor([1, 1]))
        >>> env.close()
    """

    autoreset = True
    action_space: spaces.Discrete

    def __init__(
        self,
        game: str | None = None,
        n_envs: int = 1,
        *,
        device: DeviceLike = "cpu",
        seed: int | Sequence[int] | None = None,
        games: Sequence[str] | None = None,
        **options: Unpack[AtariOptions],
    ):
        self.device = as_present_device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise NotImplementedError(
                f"device: expected cpu or cuda, got {self.device}; wrap the environment as "
                f'DeviceEnv(env, "cpu", "{self.device}") to have its observations there'
            )
        check_count("n_envs", n_envs, 1)
        num_threads = options.pop("num_threads", 0)
        check_count("num_threads", num_threads, 0, MOST_THREADS)
        self._decorrelate_steps = options.pop("decorrelate_steps", 0)
        check_count("decorrelate_steps", self._decorrelate_steps, 0)
        mode, difficulty = options.pop("mode", None), options.pop("difficulty", None)
        settings = _settings(dict(options))
        self.counts_on = settings.life_loss_info
        self._seeds, self._is_seeded = _seeds(seed, n_envs), True
        named = [find_game(name) for name in _names(game, games)]
        process = getattr(seed, "process", None)
        first = None if process is None else process * n_envs
        chosen = games_in_turn(named, mode, difficulty, n_envs, first)
        # Of all, whichever of them this process plays: one agent acts in all processes.
        actions = actions_of(named, settings.full_action_space)
        self._steps: HostSteps | DeviceSteps
        if self.device.type == "cuda" or plays_grid():
            on_device = DeviceBatch(chosen, n_envs, settings, self.device, num_threads, actions)
            self._steps = DeviceSteps(on_device)
        else:
            on_host = NativeBatch(chosen, n_envs, settings, num_threads, actions=actions)
            self._steps = HostSteps(on_host)
        self._batch = self._steps.batch
        self._n_resets = 0
        self._has_stepped = False
        self._everyone = torch.arange(n_envs, device=self.device)
        self.observation_space = spaces.Box(0, 255, settings.observation_shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._batch.actions))

    def n_envs(self) -> int:
        """Returns the number of environments."""
        return self._batch.n_envs

    def seed(self, seed: int | Sequence[int]) -> None:
        """Has the next `reset` begin anew, from power-on.

        Args:
            seed: An int, or one per environment; see the constructor.

        Raises:
            ValueError, TypeError: The seed does not fit, see `rlbatch.seeding.env_seeds`.
        """
        self._seeds, self._is_seeded = _seeds(seed, self.n_envs()), True

    def reset(self, env_info: DictTensor | None = None) -> Observation:
        """Starts an episode in every environment; see `VecEnv.reset`.

        Args:
            env_info: None or empty, or `seed` [n_envs] integers of which the lowest 32 bits count
                (so an int32 may be negative), in the place of the constructor's `seed`; with them
                every environment begins anew, from power-on. (A row that a batcher's constructor is
                given stands in for all of them where its `reset` is given none, and makes all of
                them play the same.)

        Raises:
            ValueError: `env_info` holds something else.
            ShapeError: There is not one seed per environment.
            DtypeMismatchError: The seeds are not integers.
            TypeError: `env_info` is not a DictTensor.
        """
        self._batch.check_open("reset")
        env_info = checked_env_info(env_info, self.n_envs())
        if not env_info.empty():
            if set(env_info) != {"seed"}:
                raise ValueError(f"env_info: expected seed alone, got {list(env_info)}")
            self.seed([seed & 0xFFFFFFFF for seed in seeds_in(env_info)])
        observation = self._steps.reset(self._seeds if self._is_seeded else None)
        self._n_resets = 1 if self._is_seeded else self._n_resets + 1
        self._is_seeded = False
        if self._decorrelate_steps:
            observation = self._decorrelate()
        return observation, self._everyone

    def reset_where(self, chosen: torch.Tensor) -> Observation:
        """Starts an episode in some environments, and leaves the others where they are.

        Their random streams go on; `decorrelate_steps` do not count here. On CUDA nothing waits
        for the host.

        Args:
            chosen: [n_envs] bool, on the environment's device.

        Returns:
            What to act on now, of all environments, and their numbers.

        Raises:
            CallOrderError: Before the first `reset`.
            TypeError: It is not a tensor.
            DtypeMismatchError: It is not a bool.
            ShapeError, DeviceMismatchError: It is not as above.

        Example:
            >>> env = AtariEnv("pong", 2, seed=0)
            >>> _ = env.reset()
            >>> _ = env.step(DictTensor({"action": torch.tensor([0, 3])}))
            >>> env.reset_where(torch.tensor([True, False]))[0]["initial_state"]
            tensor([ True, False])
        """
        self._check_was_reset("reset_where")
        check_chosen(chosen, self.n_envs(), self.device)
        return self._steps.reset_where(chosen), self._everyone

    def step(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Steps all environments; see `VecEnv.step`.

        Where no episode ended, the two observations are the same object on a CPU.

        Args:
            action: `action` [n_envs] integers: places in the action space.

        Raises:
            CallOrderError: Before the first `reset`.
            KeyMismatchError: There is no `action`.
            ShapeError, DtypeMismatchError, DeviceMismatchError: `action` is not as above.
            ValueError: There is no such action.
            TypeError: It is not a DictTensor.
        """
        actions = self._actions(action)
        after, following = self._steps.step(actions)
        return (after, self._everyone), (following, self._everyone)

    def step_into(self, action: DictTensor, after: Arrays, following: Arrays) -> None:
        """Steps like `step`, but writes the observations where they are wanted.

        Args:
            action: See `step`.
            after: [n_envs, ...] per key of an observation: written with what the actions led to.
            following: The same; written with what to act on next.

        Raises:
            CallOrderError, ShapeError, DtypeMismatchError, DeviceMismatchError: See `step`.
            ValueError: See `step`.
        """
        actions = self._actions(action)
        self._steps.step_into(actions, after, following)

    def observe(self) -> DictTensor:
        """Returns the observations to act on now, such as after `set_state`.

        Raises:
            CallOrderError: Before the first `reset`.
        """
        self._check_was_reset("observe")
        return self._steps.observe()

    def get_ram(self, ids: Any = None) -> torch.Tensor:
        """Returns the consoles' RAM, [len(ids), 128] uint8 on the environment's device; a copy.

        Args:
            ids: Numbers of environments; None for all.

        Raises:
            CallOrderError: Before the first `reset`.
            TypeError, ValueError: `ids` are not numbers of environments.

        Example:
            >>> env = AtariEnv("pong", 8, seed=0)
            >>> _ = env.reset()
            >>> env.get_ram([0, 5]).shape
            torch.Size([2, 128])
        """
        self._check_was_reset("get_ram")
        return self._batch.ram(self._batch.ids(ids))

    def render(self, ids: Any = None) -> torch.Tensor:
        """Returns the pictures on the screens, [len(ids), height, 160, 3] uint8 RGB.

        Of an environment whose episode has just ended, it is the first of the next one.

        Args:
            ids: Numbers of environments; None for all.

        Raises:
            CallOrderError: Before the first `reset`.
            ValueError: `obs_type` is "ram", for which nothing is drawn; or the screens differ in
                height: some games have 250 lines and others 210.
            TypeError, ValueError: `ids` are not numbers of environments.

        Example:
            >>> env = AtariEnv("pong", 8, seed=0)
            >>> _ = env.reset()
            >>> env.render([0]).shape
            torch.Size([1, 210, 160, 3])
        """
        self._check_was_reset("render")
        return torch.from_numpy(self._batch.render(self._batch.ids(ids))).to(self.device)

    def get_state(self, ids: Any = None) -> torch.Tensor:
        """Returns all that environments are made of, [len(ids), n_bytes] uint8, on their device.

        Console, episode, stack of observations and random streams: from a state that is set, equal
        actions lead to equal results. A state belongs to its game, to the list of actions, to this
        version, and to the options, except for `num_threads` and `decorrelate_steps`.

        Args:
            ids: Numbers of environments; None for all.

        Raises:
            CallOrderError: Before the first `reset`.
            TypeError, ValueError: `ids` are not numbers of environments.
        """
        self._check_was_reset("get_state")
        return self._batch.save(self._batch.ids(ids))

    def set_state(
        self, states: torch.Tensor, ids: Any = None, *, seed: int | Sequence[int] | None = None
    ) -> None:
        """Puts environments where others, or they themselves, have been; see `get_state`.

        Args:
            states: [len(ids), n_bytes] on any device, from `get_state` of an environment with the
                same game and options. To branch, repeat a row.
            ids: Numbers of environments; None for all.
            seed: Of the random streams from here on, sticky actions for instance; or one per
                environment. None: those of the states go on, so that branches of one state draw the
                same.

        Raises:
            CallOrderError: Before the first `reset`.
            TypeError: The states are not a tensor, or `ids` not numbers.
            ShapeError: The states are not as above.
            ValueError: One is of another game, of other options, or damaged; `ids` names an
                environment twice, or one that there is not; or there is not one seed for each.

        Example:
            >>> env = AtariEnv("pong", 3, seed=0)
            >>> _ = env.reset()
            >>> env.set_state(env.get_state([0]).expand(3, -1))  # All go on from the first.
            >>> bool((env.get_ram() == env.get_ram([0])).all())
            True
        """
        self._check_was_reset("set_state")
        if not isinstance(states, torch.Tensor):
            raise TypeError(f"states: expected a tensor, got {type(states).__name__}")
        numbers = self._batch.ids_once(ids)
        seeds = None if seed is None or not numbers else _seeds(seed, len(numbers))
        self._batch.restore(numbers, states, seeds)

    def from_ale(self, ale: Any, ids: Any = None) -> None:
        """Puts environments where a console of ale-py is, as if their episodes began there.

        The stack of observations starts with the console's screen, rewards are counted from 0, and
        the frames of the console's episode count for `max_num_frames_per_episode`; a game that is
        over ends in the first step. See `Console.from_ale` for what ale-py's states do not contain.
        Sticky actions repeat the same random numbers in all of `ids`; `set_state` can give them
        others.

        Args:
            ale: An `ale_py.ALEInterface` with the game that they play.
            ids: Numbers of environments; None for all.

        Raises:
            CallOrderError: Before the first `reset`.
            ValueError: `ale` has another game, or plays it in another mode or difficulty, or with
                another `paddle_max` (which it keeps from some games that were loaded before); or
                `ids` has a number twice.

        Example:
            >>> from ale_py import ALEInterface, LoggerMode, roms
            >>> ALEInterface.setLoggerMode(LoggerMode.Error)
            >>> ale = ALEInterface()
            >>> ale.loadROM(roms.get_rom_path("pong"))
            >>> ale.reset_game()
            >>> score = [ale.act(0) for _ in range(100)]
            >>> env = AtariEnv("pong", 4)
            >>> _ = env.reset()
            >>> env.from_ale(ale)
            >>> bool((env.get_ram().numpy() == ale.getRAM()).all())
            True
        """
        self._check_was_reset("from_ale")
        self._batch.from_ale(self._batch.ids_once(ids), ale)

    def seconds_per_step(self, env: int = 0) -> float:
        """Returns how long a step lasts on a console.

        That is `frameskip` frames, of which there are 60 in a second, or 50 in games for PAL.

        Args:
            env: Number of the environment that plays on it.

        Raises:
            TypeError: It is not an integer.
            ValueError: There is no such environment.

        Example:
            >>> AtariEnv("pong").seconds_per_step()
            0.06666666666666667
        """
        check_integer("env", env, 0, self.n_envs() - 1)
        game = self._batch.game_of[env]
        return self._batch.settings.frameskip / game.frames_per_second

    def bytes_per_env(self) -> int:
        """Returns the bytes that the largest environment takes, its observation stack included.

        Not what the environments of a game share, such as its program.
        """
        return self._batch.bytes_per_env()

    def close(self) -> None:
        """Ends the threads and releases the memory. May be called twice.

        Raises:
            ValueError, RuntimeError: On a GPU: something was wrong that nobody was told yet, such
                as an action that does not exist.
        """
        self._batch.close()

    def __reduce__(self) -> Any:
        return self._batch.__reduce__()  # Which refuses it.

    # --- Actions and seeds. ---

    def _actions(self, action: DictTensor) -> torch.Tensor:
        self._check_was_reset("step")
        if not isinstance(action, DictTensor):
            raise TypeError(f"action: expected a DictTensor, got {action!r}")
        check_has_keys("action", ["action"], action)
        actions = action["action"].detach()
        check_device("action", actions, self.device, "env.step")
        check_shape("action", actions, (self.n_envs(),))
        if actions.dtype not in INTEGERS:
            raise DtypeMismatchError(f"action: expected integers, got {actions.dtype}")
        n = len(self._batch.actions)
        # On a GPU nothing may wait for the answer, except once; from then on the kernel notes it.
        is_looked_at = actions.is_cpu or not self._has_stepped
        if is_looked_at and not 0 <= int(actions.min()) <= int(actions.max()) < n:
            wrong = sorted({number for number in actions.tolist() if not 0 <= number < n})
            raise ValueError(f"action: expected numbers from 0 to {n - 1}, got {wrong[:10]}")
        self._has_stepped = True
        return actions

    def _check_was_reset(self, where: str) -> None:
        self._batch.check_open(where)
        if not self._n_resets:
            raise CallOrderError(f"{where}: expected a reset before, got none")

    def _decorrelate(self) -> DictTensor:
        """Takes a random number of random steps in each environment, and starts to count there."""
        n_most, n_envs = self._decorrelate_steps, self.n_envs()
        n_steps, actions = np.zeros(n_envs, np.int64), np.zeros((n_most, n_envs), np.int64)
        for i, seed in enumerate(self._seeds):
            generator = np.random.default_rng(derived_seed(int(seed), self._n_resets))
            n_steps[i] = generator.integers(0, n_most + 1)
            actions[:, i] = generator.integers(0, len(self._batch.actions), n_most)
        return self._steps.decorrelate(n_steps, actions)


def _names(game: str | None, games: Sequence[str] | None) -> Sequence[str]:
    if (game is None) == (games is None):
        raise ValueError(f"game: expected either game or games, got {game!r} and {games!r}")
    if games is not None:
        # Some have no order, or none that is meant.
        if isinstance(games, (str, bytes, Set, Mapping)) or not isinstance(games, Iterable):
            raise TypeError(f"games: expected a list of names, got {games!r}")
        if not (names := list(games)):
            raise ValueError("games: expected at least one name, got none")
        return names
    if not isinstance(game, str):
        raise TypeError(f"game: expected a name, got {game!r}; several are `games`")
    return [game]


def _settings(options: dict[str, Any]) -> Settings:
    known = [field.name for field in dataclasses.fields(Settings)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        known += ["mode", "difficulty", "num_threads", "decorrelate_steps"]
        arguments = [*known, "game", "n_envs", "device", "seed", "games"]
        close = [difflib.get_close_matches(name, arguments, n=1, cutoff=0.75) for name in unknown]
        hint = f"; closest: {', '.join(sum(close, []))}" if any(close) else ""
        if any(name.startswith("continuous") for name in unknown):
            hint = "; AtariVectorEnv has continuous actions"
        raise TypeError(
            f"options: expected some of {', '.join(known)}, got {', '.join(unknown)}{hint}"
        )
    return Settings(**options)


def _seeds(seed: int | Sequence[int] | None, n_envs: int) -> np.ndarray:
    if seed is None:
        return np.random.SeedSequence().generate_state(n_envs)
    seeds = np.array(env_seeds(seed, n_envs))
    if seeds.min() < 0 or seeds.max() >= 2**32:
        raise ValueError(f"seed: expected seeds from 0 to 2**32 - 1, got {seeds}")
    return seeds.astype(np.uint32)
