"""`AtariVectorEnv`: the class of that name in ale-py, for a change of one import.

Source: the public Python part of ale-py 0.12.1, and experiments with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlbatch._checks import check_bool, check_number
from rlbatch.envs.atari._native_batch import JobKind, NativeBatch
from rlbatch.envs.atari._options import (
    LARGEST,
    MOST_STRENGTH,
    OneOrSeveral,
    Settings,
    check_count,
    games_in_turn,
)
from rlbatch.envs.atari.games import find_game
from rlbatch.errors import CallOrderError

Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]

_INFOS = ("lives", "frame_number", "episode_frame_number")
_ROWS = (*_INFOS, "reward", "terminated", "truncated", "has_ended")

# Actions by left, middle, right; down, middle, up; without and with FIRE.
_POLAR_ACTIONS = np.array(
    [
        [[9, 17], [4, 12], [7, 15]],
        [[5, 13], [0, 1], [2, 10]],
        [[8, 16], [3, 11], [6, 14]],
    ],
    np.int32,
)

_log = logging.getLogger(__name__)


class AtariVectorEnv(VectorEnv):
    """A Gymnasium vector environment that answers as ale-py's `AtariVectorEnv` does, faster.

    Same arguments and a few more, same spaces, dtypes and infos; and with equal options, seeds and
    actions the same observations, rewards and flags, bit for bit. Where ale-py's crashes, waits
    for ever or returns uninitialised memory, this one raises an error or returns zeros. Known to
    differ are two things more: `reset` forgets the steps that are under way, of which ale-py's then
    returns the results; and where sticky actions have a probability over 0.99, a reset of
    double_dunk plays other frames.

    It owns threads and memory; `close` releases them. It belongs to one thread of the caller at a
    time. A child that is forked can use it too, except for steps that are under way then.

    Args:
        game: One of the 104; `ms_pacman`, or any other form that `find_game` understands.
        num_envs: How many environments.
        batch_size: How many of them `recv` waits for; 0 for all. With fewer, `step` takes actions
            for, and returns, whoever finished first: see `infos["env_id"]`. Environments with short
            steps are then in more of the batches than others.
        num_threads: 0 means one per core. The calling thread is one of them: it steps environments
            in `recv`, and with a single thread nothing happens between `send` and `recv`.
        thread_affinity_offset: Accepted, and without effect.
        max_num_frames_per_episode: After how many frames an episode is truncated.
        repeat_action_probability: With which probability, in every frame, the last action is
            repeated; as in ALE, six digits of it count.
        full_action_space: Whether all actions of the console can be chosen, rather than those
            that have an effect.
        continuous: Whether actions are (radius, angle, fire) rather than numbers.
        continuous_action_threshold: From where on a stick counts as pressed.
        autoreset_mode: `AutoresetMode.NEXT_STEP` or `SAME_STEP`, or their values.
        img_height: Rows of an observation; at most those of the screen.
        img_width: Columns; at most 160.
        grayscale: Whether observations are gray rather than RGB.
        stack_num: Observations in a stack.
        frameskip: Frames per step.
        maxpool: Whether an observation is the maximum of the last two frames.
        noop_max: An episode begins with a random number of frames without an action, fewer than
            this.
        episodic_life: Whether the loss of a life ends the episode.
        life_loss_info: Whether it sets `terminated`, and the game goes on.
        reward_clipping: Whether rewards are cut to -1, 0 and 1.
        use_fire_reset: Whether episodes begin with FIRE, in games that have it.
        mode: Of the game, see `Game.modes`: one for all environments, or a list that they take in
            turn; None for its default. Not in ale-py's.
        difficulty: The same, see `Game.difficulties`.
        render_mode: "rgb_array", as Gymnasium's wrappers want it that record, or None; with a
            `batch_size`, None. Not in ale-py's.

    Raises:
        TypeError, ValueError: An argument is out of its range, or there is no such game.
        RomError, BuildError: There is no ROM, or no native library.

    Example:
        >>> env = AtariVectorEnv("pong", num_envs=2)
        >>> observations, infos = env.reset(seed=0)
        >>> observations.shape, infos["lives"]
        ((2, 4, 84, 84), array([0, 0], dtype=int32))
        >>> env.close()
    """

    closed = True  # Until there is something to close: Gymnasium 1.2 closes what it deletes.

    def __init__(  # noqa: PLR0913 - the arguments of ale-py.
        self,
        game: str,
        num_envs: int,
        *,
        batch_size: int = 0,
        num_threads: int = 0,
        thread_affinity_offset: int = -1,
        max_num_frames_per_episode: int = 108_000,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        continuous: bool = False,
        continuous_action_threshold: float = 0.5,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        img_height: int = 84,
        img_width: int = 84,
        grayscale: bool = True,
        stack_num: int = 4,
        frameskip: int = 4,
        maxpool: bool = True,
        noop_max: int = 30,
        episodic_life: bool = False,
        life_loss_info: bool = False,
        reward_clipping: bool = True,
        use_fire_reset: bool = True,
        mode: OneOrSeveral = None,
        difficulty: OneOrSeveral = None,
        render_mode: str | None = None,
    ):
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        if render_mode is not None and not _is_one_of(render_mode, ["rgb_array"]):
            raise ValueError(f"render_mode: expected 'rgb_array' or None, got {render_mode!r}")
        self.render_mode = render_mode
        if render_mode and batch_size not in (0, num_envs):  # Some are always under way.
            raise ValueError(
                f"render_mode: expected None with a batch_size of {batch_size}, got {render_mode!r}"
            )
        check_bool("continuous", continuous)
        check_bool("full_action_space", full_action_space)
        found = find_game(game)
        if continuous and found.n_legal_actions != 18:
            raise ValueError(f"continuous: expected a game with FIRE, got {found.name}")
        check_count("num_envs", num_envs, 1)
        check_count("batch_size", batch_size, 0, num_envs)
        check_count("num_threads", num_threads, -LARGEST)
        check_count("thread_affinity_offset", thread_affinity_offset, -LARGEST)
        check_number("continuous_action_threshold", continuous_action_threshold, -inf, inf)
        if thread_affinity_offset >= 0:
            _log.warning("thread_affinity_offset has no effect, got %s", thread_affinity_offset)
        settings = Settings(
            frameskip=frameskip,
            grayscale=grayscale,
            stack_num=stack_num,
            img_height=img_height,
            img_width=img_width,
            maxpool=maxpool,
            noop_max=noop_max,
            use_fire_reset=use_fire_reset,
            episodic_life=episodic_life,
            life_loss_info=life_loss_info,
            reward_clipping=reward_clipping,
            max_num_frames_per_episode=max_num_frames_per_episode,
            repeat_action_probability=repeat_action_probability,
            full_action_space=bool(full_action_space or continuous),
        )
        if render_mode:
            fps = found.frames_per_second / frameskip
            self.metadata |= {"render_modes": [render_mode], "render_fps": fps}
        games = games_in_turn([found], mode, difficulty, num_envs)
        self._batch = NativeBatch(games, num_envs, settings, max(num_threads, 0))
        self.closed = False
        self.num_envs, self.batch_size = num_envs, batch_size or num_envs
        self.grayscale, self.continuous = grayscale, continuous
        self.episodic_life, self.life_loss_info = episodic_life, life_loss_info
        self.continuous_action_threshold = continuous_action_threshold
        self._make_spaces(settings)
        self._is_over = np.zeros(num_envs, np.bool_)  # The next step is a reset.
        self._ids: np.ndarray | None = None  # Who acts next; None before a reset.
        self._after: np.ndarray | None = None
        if self._is_async:
            self._observations = np.zeros(self._batch.shape, np.uint8)
            if self._is_same_step:
                self._after = np.zeros(self._batch.shape, np.uint8)

    def _make_spaces(self, settings: Settings) -> None:
        if self.continuous:
            low, high = np.array([[0, -np.pi, 0], [1, np.pi, 1]], np.float32)
            self.single_action_space: spaces.Space = spaces.Box(low, high)
        else:
            self.single_action_space = spaces.Discrete(len(self._batch.actions))
        shape = settings.observation_shape
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.batch_size)
        self.action_space = batch_space(self.single_action_space, self.batch_size)

    @property
    def _is_async(self) -> bool:
        return self.batch_size < self.num_envs

    @property
    def _is_same_step(self) -> bool:
        return self.autoreset_mode is AutoresetMode.SAME_STEP

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Starts episodes.

        Args:
            seed: An int for consecutive seeds from there on, or one each for the environments that
                are reset; a negative one stands for none. None: the random streams go on.
            options: `reset_mask` [num_envs] bool says who is reset; the others are left as they
                are, and shown. Not before the first reset, nor with a `batch_size`.

        Returns:
            The observations [batch_size, ...], and infos.

        Raises:
            TypeError, ValueError: An argument is not as above.
            CallOrderError: The first reset is not of all environments.
        """
        self._batch.check_open("reset")
        mask = self._mask(options)
        seeds, has_seed = self._seeds(seed, mask)
        if self._batch.n_pending:
            self._batch.recv(self._batch.n_pending)
        self._is_over[mask] = False
        kind = np.where(mask, np.where(has_seed, JobKind.LOAD, JobKind.RESET), JobKind.LOOK)
        self._send(np.arange(self.num_envs), kind, seed=seeds)
        observations, *_, infos = self.recv()
        infos.pop("final_obs", None)  # Of a life lost by one that plays on: its step has told it.
        return observations, infos

    def _mask(self, options: dict[str, Any] | None) -> np.ndarray:
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"options: expected a dict or None, got {options!r}")
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, np.bool_)
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            found = f"{type(mask)} of dtype {getattr(mask, 'dtype', None)}"
            raise TypeError(f"reset_mask: expected a boolean numpy array, got {found}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask: expected shape {(self.num_envs,)}, got {mask.shape}")
        if mask.all():
            return mask
        if self._is_async:
            raise ValueError("reset_mask: expected batch_size == num_envs, got fewer")
        if self._ids is None:
            raise CallOrderError(
                "reset_mask: expected a reset of all environments before, got none"
            )
        return mask

    def _seeds(self, seed: int | np.ndarray | None, mask: np.ndarray) -> tuple[Any, np.ndarray]:
        """Returns seeds, and who has one, [num_envs] each.

        Raises:
            TypeError: They are no integers.
            ValueError: They are too many, too few or too large.
        """
        n = int(mask.sum())
        if seed is None:
            given = np.full(n, -1)
        elif isinstance(seed, np.ndarray) and seed.ndim:
            given = seed
        elif isinstance(seed, (int, np.integer)):
            if not -LARGEST <= seed <= LARGEST:
                raise ValueError(f"seed: expected a 32-bit integer, got {seed}")
            given = np.arange(int(seed), int(seed) + n)
        else:
            raise TypeError(f"seed: expected an int, an array or None, got {seed!r}")
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"seed: expected integers, got {given.dtype}")
        if given.shape != (n,):
            raise ValueError(
                f"seed: expected one per environment that is reset, {(n,)}, got {given.shape}"
            )
        if n and (given.max() >= 2**31 or given.min() < -(2**31)):
            raise ValueError(f"seed: expected 32-bit integers, got {given}")
        seeds = np.full(self.num_envs, -1)
        seeds[mask] = given
        if self._ids is None:  # Something has to be loaded.
            random = np.random.default_rng().integers(0, 2**31, self.num_envs)
            seeds = np.where(seeds < 0, random, seeds)
        return np.maximum(seeds, 0), seeds >= 0

    def step(self, actions: np.ndarray) -> Step:
        """Sends actions, and waits for `batch_size` results.

        Returns:
            Observations, rewards (int32), terminations, truncations, and infos: `env_id`, `lives`,
            `frame_number`, `episode_frame_number`, all int32. With `SAME_STEP`, and if any
            environment is terminated or truncated, also `final_obs` [batch_size, ...], with zeros
            in the rows of the others.

        Raises:
            CallOrderError: Before the first `reset`, or while another step is under way.
            TypeError, ValueError: The actions do not fit the action space.
        """
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Gives actions to the environments of the last `recv`, in that order; see `step`.

        Args:
            actions: [batch_size] int32 or int64; [batch_size, 3] float32 if they are continuous.

        Raises:
            CallOrderError: Before the first `reset`, or when they have one already.
            TypeError, ValueError: The actions do not fit the action space.
        """
        self._batch.check_open("send")
        if self._ids is None:
            raise CallOrderError("send: expected a reset before the first actions, got none")
        if not len(self._ids):
            what = "recv after the last actions" if self._batch.n_pending else "reset"
            raise CallOrderError(f"send: expected a {what}, got none")
        numbers, strength = self._numbers(actions)
        kind: Any
        if self._is_same_step:
            kind = JobKind.STEP_THROUGH
        else:
            is_over = self._is_over[self._ids]
            kind = np.where(is_over, JobKind.RESET, JobKind.STEP) if is_over.any() else JobKind.STEP
        self._send(self._ids, kind, action=numbers, strength=strength)

    def _numbers(self, actions: np.ndarray) -> tuple[np.ndarray, Any]:
        """Returns places in the action set, and how far paddles are turned.

        Raises:
            ValueError: An action is not in the set, or no number near it.
        """
        _check_array(actions, "f" if self.continuous else "i", self.action_space.shape)
        if not self.continuous:
            n = len(self._batch.actions)
            if len(actions) and (actions.min() < 0 or actions.max() >= n):
                raise ValueError(f"actions: expected numbers from 0 to {n - 1}, got {actions}")
            return actions, 1.0
        if not (np.abs(actions) <= MOST_STRENGTH).all():
            raise ValueError(f"actions: expected numbers in the action space, got {actions}")
        radius, angle, fire = actions.T
        horizontal = self._side(radius * np.cos(angle))
        vertical = self._side(radius * np.sin(angle))
        is_fire = (fire > self.continuous_action_threshold).astype(np.int32)
        return _POLAR_ACTIONS[horizontal, vertical, is_fire], radius

    def _side(self, position: np.ndarray) -> np.ndarray:
        threshold = self.continuous_action_threshold
        return 1 + (position > threshold).astype(np.int32) - (position < -threshold)

    def _send(self, ids: np.ndarray, kind: Any, **columns: Any) -> None:
        if self._ids is not None:  # Before: Ctrl-C may come after.
            self._ids = self._ids[:0]
        if not self._is_async:
            # The caller's from `recv` on. Of `after` only the rows that are written take memory.
            self._observations = np.empty(self._batch.shape, np.uint8)
            if self._is_same_step:
                self._after = np.zeros(self._batch.shape, np.uint8)
        self._batch.send(ids, kind, self._observations, self._after, **columns)

    def recv(self) -> Step:
        """Waits for `batch_size` environments; see `step`.

        Raises:
            CallOrderError: Fewer than that are under way.
        """
        ids = self._batch.recv(self.batch_size)
        results = self._batch.results
        if self._is_async:
            rows = {name: results[name][ids] for name in _ROWS}
        else:
            ids = np.arange(self.num_envs, dtype=np.int32)
            rows = {name: results[name].copy() for name in _ROWS}
        self._ids = ids
        has_ended = rows["has_ended"]
        self._is_over[ids] = has_ended
        infos = {"env_id": ids.copy(), **{name: rows[name] for name in _INFOS}}
        observations = self._observations[ids] if self._is_async else self._observations
        done = rows["terminated"] | rows["truncated"]
        if self._after is not None and done.any():
            lost = done & ~has_ended
            infos["final_obs"] = self._final(self._after, ids, has_ended, observations, lost)
        return observations, rows["reward"], rows["terminated"], rows["truncated"], infos

    def _final(
        self,
        after: np.ndarray,
        ids: np.ndarray,
        has_ended: np.ndarray,
        observations: np.ndarray,
        lost: np.ndarray,
    ) -> np.ndarray:
        """Returns the last observations of episodes; where a life was `lost`, the game goes on."""
        final = after
        if self._is_async:
            final = np.zeros((self.batch_size, *self._batch.shape[1:]), np.uint8)
            final[has_ended] = after[ids[has_ended]]
        if lost.any():
            final[lost] = observations[lost]
        return final

    def render(self) -> tuple[np.ndarray, ...]:
        """Returns the pictures on the screens, [height, 160, 3] uint8 RGB each.

        With `SAME_STEP`, of an environment whose episode has just ended, it is the first of the
        next one.

        Raises:
            CallOrderError: Before the first `reset`, or between `send` and `recv`.
        """
        if self._ids is None:
            raise CallOrderError("render: expected a reset before, got none")
        return tuple(self._batch.render(list(range(self.num_envs))))

    def xla(self) -> None:
        """Is not offered: there are no functions for JAX.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("xla: expected a call of step; there are no functions for JAX")

    def __reduce__(self) -> Any:
        return self._batch.__reduce__()  # Which refuses it.

    def close_extras(self, **kwargs: Any) -> None:
        """Releases what the environments hold."""
        self._batch.close()


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    known = [one.value for one in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)]
    name = mode.value if isinstance(mode, AutoresetMode) else mode
    if not _is_one_of(name, known):
        raise ValueError(f"autoreset_mode: expected one of {known}, got {mode!r}")
    return AutoresetMode(name)


def _is_one_of(name: Any, known: list[str]) -> bool:
    return isinstance(name, str) and name in known


def _check_array(actions: Any, kind: str, shape: tuple[int, ...] | None) -> None:
    dtypes = (np.float32,) if kind == "f" else (np.int32, np.int64)
    if not isinstance(actions, np.ndarray) or actions.dtype not in dtypes:
        names = " or ".join(np.dtype(one).name for one in dtypes)
        found = getattr(actions, "dtype", type(actions))
        raise TypeError(f"actions: expected an array of {names}, got {found}")
    if actions.shape != shape:
        raise ValueError(f"actions: expected shape {shape}, got {actions.shape}")
