"""Whole episodes from a batcher: exactly as many as asked for, short ones not over-represented."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from rlbatch._checks import check_integer
from rlbatch._memory import check_free_memory
from rlbatch._rows import put_rows, take_rows
from rlbatch.batcher import RL_Batcher
from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories

_log = logging.getLogger(__name__)

# Steps of one episode from which on it is logged; a game of Atari is cut after 27,000.
_LONG = 50_000


def acquire_episodes(
    batcher: RL_Batcher,
    n_episodes: int,
    agent_info: DictTensor | None = None,
    env_info: DictTensor | None = None,
    *,
    keys: Iterable[str] | None = None,
    max_length: int | None = None,
) -> Trajectories:
    """Resets a batcher, and acquires whole episodes with it.

    How many each environment contributes is fixed beforehand: `n_episodes // B`, and one more of
    the first `n_episodes % B`. To take those that end first would favour short ones. What the
    environments play beyond that, until the slowest is done, is dropped; so a multiple of B wastes
    least.

    No episode holds steps of two policies: all begin after the last `update`, and end before the
    next. The batcher has to be reset before it goes on, also after an error once it has begun.

    Args:
        batcher: One that may be reset. Its `n_timesteps` are free: episodes are put together from
            as many slots as they take.
        n_episodes: N.
        agent_info: See `RL_Batcher.reset`.
        env_info: See `RL_Batcher.reset`. Environments that do not reset themselves are reset as
            often as needed, each time with the same infos: with a seed among them, every time to
            the same episode.
        keys: What to keep of each step; None for everything. A replay also needs what the agent
            looks at. The result has N times as many steps as the longest episode.
        max_length: Of an episode, in steps; None for any, where the environment has a limit itself.

    Returns:
        One row per episode, on the batcher's device: those of environment 0 in the order in which
        they were played, then those of environment 1, and so on. T is the longest. `info` is that
        of the slot in which the episode began. For a replay to give what the agent did, it has to
        begin its state anew where `initial_state` is set. And it must not look at `history`: when
        it acts that is of the slot, in a replay of the episode.

    Raises:
        KeyMismatchError: One of the keys is not there.
        TypeError: `keys` is one string.
        ValueError: An episode is longer than `max_length`, or one of the numbers is less than 1.
        SharedMemoryError: They do not fit into memory (on a CPU).
        WorkerTimeoutError: See `RL_Batcher.get`, which has to be called before a reset then.
        Exception: Whatever else `RL_Batcher.reset` and `execute` raise.

    Example:
        >>> import gymnasium
        >>> from rlbatch import RL_Agent
        >>> from rlbatch.envs import GymEnvInf
        >>> class Left(RL_Agent):
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        ...         return DictTensor({"action": action}), DictTensor()
        >>> def create_env(seed):
        ...     return GymEnvInf([gymnasium.make("CartPole-v1") for _ in range(2)], seed)
        >>> with RL_Batcher(8, Left, {}, create_env, {}, n_processes=0, seeds=0) as batcher:
        ...     episodes = acquire_episodes(batcher, 5)
        >>> episodes.info["env_id"]
        tensor([0, 0, 0, 1, 1])
        >>> steps = episodes.trajectories
        >>> steps.temporal_multi_index(steps.lengths - 1)["_observation/done"].all()
        tensor(True)
    """
    check_integer("n_episodes", n_episodes, 1)
    if max_length is not None:
        check_integer("max_length", max_length, 1)
    episodes = _Episodes(n_episodes, batcher.n_elems(), batcher.device(), keys)
    batcher.reset(agent_info, env_info)
    try:
        _play(batcher, episodes, agent_info, env_info, max_length)
    finally:
        batcher.require_reset()  # What runs has these infos, and is in the middle of something.
    return episodes.joined()


# A function of its own: what a signal handler raises where a loop jumps back can bypass a `try`
# around that loop in the same function (CPython's issues 108214 and 130279).
def _play(
    batcher: RL_Batcher,
    episodes: _Episodes,
    agent_info: DictTensor | None,
    env_info: DictTensor | None,
    max_length: int | None,
) -> None:
    """Steps a batcher that has been reset, until all episodes have ended."""
    n_running = batcher.n_elems()
    while not episodes.are_complete():
        if not n_running:
            batcher.reset(agent_info, env_info)
        batcher.execute()
        trajectories, n_running = batcher.get(copy=False)
        episodes.add(trajectories)
        if max_length is not None:
            episodes.check_lengths(max_length)
        else:
            episodes.warn_of_long()


class _Episodes:
    """Episodes in pieces, as they come.

    Args:
        n_episodes: N.
        n_envs: B.
        device: Where they are.
        keys: What to keep of each step; None for everything.
    """

    def __init__(
        self, n_episodes: int, n_envs: int, device: torch.device, keys: Iterable[str] | None
    ):
        # A string is left for `TemporalDictTensor.get` to refuse.
        self._keys = keys if keys is None or isinstance(keys, str) else list(keys)
        env_id = torch.arange(n_envs, device=device)
        self._n_wanted = n_episodes // n_envs + (env_id < n_episodes % n_envs).long()
        self._n_ended = torch.zeros_like(env_id)
        # Of each environment its first episode, of each episode its environment and its steps.
        self._first = self._n_wanted.cumsum(0) - self._n_wanted
        self._env_id = env_id.repeat_interleave(self._n_wanted)
        self._lengths = torch.zeros_like(self._env_id)
        self._has_warned = False
        # Steps [K, ...] with the episode [K] of each; infos [M, ...] with the episode [M] of each.
        self._steps: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
        self._infos: list[tuple[torch.Tensor, DictTensor]] = []

    def are_complete(self) -> bool:
        """Returns whether all have ended."""
        return bool((self._n_ended >= self._n_wanted).all())

    def check_lengths(self, max_length: int) -> None:
        """Checks that none is too long.

        Raises:
            ValueError: One is.
        """
        longest = int(self._lengths.argmax())
        if self._lengths[longest] > max_length:
            raise ValueError(
                f"max_length: expected episodes of at most {max_length} steps, got one of "
                f"{int(self._lengths[longest])} or more in environment {int(self._env_id[longest])}"
            )

    def warn_of_long(self) -> None:
        """Logs, once, that an episode may have no end."""
        longest = int(self._lengths.argmax())
        if not self._has_warned and self._lengths[longest] > _LONG:
            self._has_warned = True
            _log.warning(
                "acquire_episodes: environment %d has played %d steps of one episode, which is "
                "waited for; if it does not end, give max_length, or the environment a time limit",
                int(self._env_id[longest]),
                int(self._lengths[longest]),
            )

    def add(self, trajectories: Trajectories) -> None:
        """Takes what belongs to them out of some trajectories (copies)."""
        steps, env_id = trajectories.trajectories, trajectories.info["env_id"]
        # The step in which some environments reset themselves is none.
        is_step = steps.mask(torch.bool) & ~steps["observation/done"]
        ends = is_step & steps["_observation/done"]
        ended_before = self._n_ended[env_id].unsqueeze(1) + ends.cumsum(1) - ends.long()
        is_wanted = is_step & (ended_before < self._n_wanted[env_id].unsqueeze(1))
        episode = self._first[env_id].unsqueeze(1) + ended_before
        self._n_ended[env_id] += ends.sum(1)

        # Step after step, as slots are stored.
        places = is_wanted.T.flatten().nonzero().squeeze(1)
        episode = episode.T.flatten()[places]
        kept = steps if self._keys is None else steps.get(self._keys)
        taken = {k: take_rows(v.transpose(0, 1).flatten(0, 1), places) for k, v in kept.items()}
        self._steps.append((episode, taken))

        n_steps = episode.bincount(minlength=len(self._lengths))
        begun = ((self._lengths == 0) & (n_steps > 0)).nonzero().squeeze(1)
        # Where one begins, all environments run: each has a row.
        self._infos.append((begun, trajectories.info.index(self._env_id[begun])))
        self._lengths += n_steps

    def joined(self) -> Trajectories:
        """Returns one row per episode; the pieces are gone.

        Raises:
            SharedMemoryError: It does not fit into the memory of a CPU.
        """
        n_episodes, longest = len(self._lengths), int(self._lengths.max())
        if self._lengths.device.type == "cpu":
            per_step = sum(one[0].nbytes for one in self._steps[0][1].values())
            advice = "take fewer episodes, some of the keys, or a max_length"
            check_free_memory(n_episodes * longest * per_step, advice)
        places = self._places(longest)
        steps = {}
        for key in list(self._steps[0][1]):
            pieces = [taken.pop(key) for _, taken in self._steps]
            rows = pieces[0].new_zeros(n_episodes * longest, *pieces[0].shape[1:])
            for where, piece in zip(places, pieces, strict=True):
                put_rows(rows, where, piece)
            steps[key] = rows.unflatten(0, (n_episodes, longest))
        begun = torch.cat([episode for episode, _ in self._infos])
        info = DictTensor.cat(info for _, info in self._infos).index(begun.argsort())
        return Trajectories(info, TemporalDictTensor.unchecked(steps, self._lengths))

    def _places(self, longest: int) -> tuple[torch.Tensor, ...]:
        """Returns for the steps of each piece which of all rows, `longest` per episode, is theirs.

        Those of an episode came in their order.
        """
        episode = torch.cat([piece for piece, _ in self._steps])
        order = episode.argsort(stable=True)
        begins = (self._lengths.cumsum(0) - self._lengths).repeat_interleave(self._lengths)
        time = torch.empty_like(order)
        time[order] = torch.arange(len(order), device=order.device) - begins
        return (episode * longest + time).split([len(piece) for piece, _ in self._steps])
