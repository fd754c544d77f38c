"""A walk through the steps of an environment, each checked against the contract of `VecEnv`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from rlbatch.devices import as_device
from rlbatch.dicttensor import DictTensor
from rlbatch.envs.base import Observation, VecEnv
from rlbatch.errors import CallOrderError, EnvContractError

_DTYPES = {
    "reward": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "done": torch.bool,
    "initial_state": torch.bool,
    "episode_return": torch.float32,
    "episode_length": torch.int64,
}
_MOST_NAMED = 10  # Environments in a message.
_N_KEPT = 8  # Observations that were returned, and must stay what they are.


class Seen(NamedTuple):
    """What the environment returned, and a copy on the CPU made at once."""

    returned: Observation
    observation: DictTensor
    numbers: torch.Tensor


class Walk:
    """One run through an environment, with what its next step has to agree with.

    Args:
        env: The environment.
        sample_action: Given a number of environments, returns an action for each.
        env_info: Given to every reset, [n_envs, ...]; None for nothing.
    """

    def __init__(
        self,
        env: VecEnv,
        sample_action: Callable[[int], DictTensor],
        env_info: DictTensor | None,
    ):
        self.env, self.sample_action = env, sample_action
        self.device, self.n_envs = as_device(env.device), env.n_envs()
        expect(self.n_envs > 0, "n_envs is at least 1", self.n_envs)
        self.env_info = DictTensor() if env_info is None else env_info
        self.everyone = torch.arange(self.n_envs, device="cpu")
        self.specs: dict[str, Any] | None = None
        self.n_terminated = self.n_truncated = 0
        self.n_begun = self.n_begun_alike = 0  # Episodes after one that has ended.
        self.bounds: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.outside: set[str] = set()  # Keys.
        self.latest: list[Seen] = []
        self.kept: deque[Seen] = deque(maxlen=_N_KEPT)
        self.ended = torch.zeros(self.n_envs, dtype=torch.bool, device="cpu")
        self.terminal = DictTensor()  # [n_envs, ...], the last observation of those.
        self.reset(env_info)

    def reset_again(self, **more: torch.Tensor) -> None:
        """Resets with the same `env_info`, and what is given beside it."""
        self.reset(DictTensor({**self.env_info, **more}))

    def reset(self, env_info: DictTensor | None) -> None:
        """Resets, checks what comes, and starts to follow the episodes from there."""
        given = None if env_info is None else env_info.clone()  # It may write there.
        (first,) = self.take([self.env.reset(given)], "reset")
        expect_equal(first.numbers, self.everyone, "reset: all environments run, in order")
        self.current = first
        self.length = torch.zeros(self.n_envs, dtype=torch.int64, device="cpu")
        self.total = torch.zeros(self.n_envs, dtype=torch.float64, device="cpu")
        self.magnitude = torch.zeros(self.n_envs, dtype=torch.float64, device="cpu")
        # Those whose next step is the reset, and not a step of an episode.
        self.late = torch.zeros(self.n_envs, dtype=torch.bool, device="cpu")
        self.check_first(first.observation, "reset", first.numbers)

    def begin(self, seed: int | list[int]) -> None:
        """Resets with another seed."""
        self.env.seed(seed)  # type: ignore[attr-defined]
        self.reset_again()

    def repeat(self, actions: list[DictTensor]) -> list[DictTensor]:
        """Takes given steps from a seed on; returns all observations."""
        given = iter(actions)
        self.sample_action = lambda _: next(given)
        self.begin(0)
        seen = [self.current.observation]
        for _ in actions:
            self.step()
            seen += [observation for _, observation, _ in self.latest]
        return seen

    def reset_where(self, chosen: torch.Tensor) -> None:
        """Starts episodes in some environments, and checks what comes."""
        before = self.current.observation
        (now,) = self.take([self.env.reset_where(chosen.to(self.device))], "reset_where")  # type: ignore[attr-defined]
        expect_equal(now.numbers, self.everyone, "reset_where: returns all environments, in order")
        for counts in (self.length, self.total, self.magnitude):
            counts[chosen] = 0
        self.late &= ~chosen
        self.check_first(now.observation.index(chosen), "reset_where", self.everyone[chosen])
        for key, tensor in before.items():
            clause = f"reset_where: leaves {key} of the others as it was"
            kept = now.observation[key][~chosen]
            expect_equal(kept, tensor[~chosen], clause, self.everyone[~chosen])
        self.current = now

    def step(self) -> None:
        """Steps once, and checks what comes. Where nothing runs any more, resets before.

        Raises:
            TypeError: The actions are no `DictTensor`.
        """
        if not len(self.current.numbers):
            self.check_refuses_a_step()
            self.reset_again()
        action = self.sample_action(len(self.current.numbers))
        if not isinstance(action, DictTensor):
            raise TypeError(f"sample_action: expected a DictTensor, got {action!r}")
        action = action.to(self.device)
        extra = DictTensor({"no_action": torch.zeros(action.n_elems(), device=self.device)})
        given, before = action + extra, (action + extra).clone()
        after, following = self.take(self.call_step(given, action), "step")
        clause = "step: leaves the actions as they are"
        expect(list(given) == list(before), f"{clause}: {list(before)}", list(given))
        for key, tensor in before.items():
            expect_equal(given[key], tensor, f"{clause}: {key}")
        expect_equal(after.numbers, self.current.numbers, "step: the first pair has all that ran")
        self.check_after(after, before.get(action.keys()).to("cpu"))
        self.remember_ends(after)
        self.check_following(after, following)
        self.n_terminated += int(after.observation["terminated"].sum())
        self.n_truncated += int(
            (~after.observation["terminated"] & after.observation["done"]).sum()
        )
        self.current = following

    def call_step(self, given: DictTensor, action: DictTensor) -> tuple[Observation, Observation]:
        try:
            pairs = self.act(given)
        except Exception as error:
            found = " ".join([repr(error), *getattr(error, "__notes__", [])])
            clause = "step: takes actions"
            with contextlib.suppress(Exception):
                self.act(action)
                clause = "step: ignores other keys beside those of actions"
            raise EnvContractError(f"{clause}: expected no exception, got {found}") from error
        n_pairs = len(pairs) if isinstance(pairs, (tuple, list)) else pairs
        expect(n_pairs == 2, "step: returns two pairs", n_pairs)
        return pairs

    def act(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Has the environment step."""
        return self.env.step(action)

    def take(self, pairs: Any, where: str) -> list[Seen]:
        """Checks the form of what was returned, and that what was returned before is unchanged."""
        wanted = f"{where}: returns pairs of a DictTensor and a tensor"
        for pair in pairs:
            expect(isinstance(pair, tuple) and len(pair) == 2, wanted, type(pair))
            expect(isinstance(pair[0], DictTensor), wanted, type(pair[0]))
            expect(isinstance(pair[1], torch.Tensor), wanted, type(pair[1]))
            self.check_numbers(pair[1], where)
            self.check_form(pair[0], len(pair[1]), where)
        for (observation, numbers), was, were in self.kept:
            expect_equal(numbers.cpu(), were, f"{where}: does not write into the running of before")
            for key, tensor in was.items():
                clause = f"{where}: does not write into the observation of before: {key}"
                expect_equal(observation[key].cpu(), tensor, clause)
        self.latest = [Seen((o, n), o.clone().to("cpu"), n.clone().cpu()) for o, n in pairs]
        self.kept += self.latest
        for key, (low, high) in self.bounds.items():
            frames = [seen.observation[key].numpy() for seen in self.latest]
            # So that NaN is outside.
            if not all(((frame >= low) & (frame <= high)).all() for frame in frames):
                self.outside.add(key)
        return self.latest

    def check_numbers(self, running: torch.Tensor, where: str) -> None:
        clause = f"{where}: running is int64 [B]"
        expect(running.dtype == torch.int64 and running.dim() == 1, clause, running)
        expect(running.device == self.device, f"{where}: running is on env.device", running.device)
        ascends = bool((running[1:] > running[:-1]).all())
        expect(ascends, f"{where}: running ascends", running.tolist())

    def check_form(self, observation: DictTensor, n: int, where: str) -> None:
        for key, tensor in observation.items():
            clause = f"{where}: observations are on env.device: {key}"
            expect(tensor.device == self.device, clause, tensor.device)
            clause = f"{where}: observations have one row per running environment ({n}): {key}"
            expect(tensor.shape[:1] == (n,), clause, tuple(tensor.shape))
        for key, dtype in _DTYPES.items():
            expect(key in observation, f"{where}: observations hold {key}", list(observation))
            found = observation[key]
            right = found.dtype == dtype and found.dim() == 1
            expect(right, f"{where}: {key} is {dtype} [B]", (found.dtype, tuple(found.shape)))
        if self.specs is None:
            self.specs = observation.specs()
            self.check_space(observation)
        specs, clause = observation.specs(), f"{where}: keys stay as in the first reset"
        missing, more = self.specs.keys() - specs.keys(), specs.keys() - self.specs.keys()
        keys = f"{list(specs)} (missing {sorted(missing)}, unexpected {sorted(more)})"
        expect(not missing and not more, f"{clause}, {list(self.specs)}", keys)
        for key, spec in self.specs.items():
            clause = f"{where}: {key} stays as in the first reset, {spec}"
            expect(specs[key] == spec, clause, specs[key])
        either = observation["terminated"] | observation["truncated"]
        expect_equal(observation["done"], either, f"{where}: done is terminated or truncated")

    def check_space(self, observation: DictTensor) -> None:
        if self.env.observation_space is None:
            return
        from rlbatch.envs.spaces import observation_leaves

        space: Any = self.env.observation_space
        for key, leaf in observation_leaves(space).items():
            expect(key in observation, f"observations hold {key} of the space", list(observation))
            expected = (leaf.shape, torch.from_numpy(np.empty(0, leaf.dtype)).dtype)
            found = (tuple(observation[key].shape[1:]), observation[key].dtype)
            expect(found == expected, f"{key} is {expected}, as in observation_space", found)
            self.bounds[key] = _bounds(leaf.space)

    def check_first(self, observation: DictTensor, where: str, numbers: torch.Tensor) -> None:
        """Checks the clauses about first observations of an episode, which all rows are."""
        expect(bool(observation["initial_state"].all()), f"{where}: initial_state is True", False)
        last_actions = [key for key in observation if key.split("/")[0] == "last_action"]
        expect(bool(last_actions), f"{where}: observations hold last_action", list(observation))
        for key in ("reward", "done", *last_actions):
            clause = f"{where}: {key} of a first observation is 0"
            expect_equal(observation[key], torch.zeros_like(observation[key]), clause, numbers)
        goes_on = self.goes_on(observation)
        expected = torch.where(goes_on, self.length[numbers], 0)
        clause = f"{where}: episode_length of a first observation is 0"
        if self.env.counts_on:
            clause += ", or that of before, with counts_on"
        expect_equal(observation["episode_length"], expected, clause, numbers)
        begun = observation["episode_return"][~goes_on]  # Of the others, the next step shows it.
        clause = f"{where}: episode_return of a first observation is 0"
        expect_equal(begun, torch.zeros_like(begun), clause, numbers[~goes_on])
        self.compare_frames(observation, numbers)

    def goes_on(self, first: DictTensor) -> torch.Tensor:
        """Returns of which first observations the counts are those of something longer."""
        return (first["episode_length"] != 0) & self.env.counts_on

    def check_after(self, after: Seen, action: DictTensor) -> None:
        """Checks what the actions led to: steps of episodes, except for late resets."""
        late = self.late[after.numbers]
        where = "step after a last one that did not reset"
        self.check_first(after.observation.index(late), where, after.numbers[late])
        seen, numbers = after.observation.index(~late), after.numbers[~late]
        self.length[numbers] += 1
        # As of Atari games, where `reward` may be clipped.
        reward = seen["reward_raw" if "reward_raw" in seen else "reward"].double()
        self.total[numbers] += reward
        self.magnitude[numbers] += reward.abs()
        expect(not seen["initial_state"].any(), "step: initial_state is False", True)
        clause = "step: episode_length counts the steps of the episode"
        expect_equal(seen["episode_length"], self.length[numbers], clause, numbers)
        clause = "step: episode_return sums the rewards of the episode"
        total, expected = seen["episode_return"].double(), self.total[numbers]
        # float32 rewards are summed here; the environment may sum exact ones, or in float32.
        is_close = (total - expected).abs() <= 1e-4 + 1e-4 * self.magnitude[numbers]
        expect_equal(torch.where(is_close, expected, total), expected, clause, numbers)
        for key, tensor in action.items():
            if key.split("/")[0] == "action":
                expect(f"last_{key}" in seen, f"step: observations hold last_{key}", list(seen))
                last = seen[f"last_{key}"]
                clause = f"step: last_{key} is the action that led to the observation"
                expect_equal(last, tensor[~late].to(last.dtype), clause, numbers)

    def check_following(self, after: Seen, following: Seen) -> None:
        """Checks what to act on next against what the actions led to."""
        done = after.observation["done"]
        if self.env.autoreset:
            clause = "step: with autoreset all environments run on"
            expect_equal(following.numbers, self.everyone, clause)
            fresh = done & following.observation["initial_state"]
            clause = (
                "step: where an episode has ended, initial_state of what is acted on next is True, "
                "with resets_late False"
            )
            expect_equal(fresh, done & (not self.env.resets_late), clause, self.everyone)
            numbers = self.everyone[fresh]
            self.check_first(following.observation.index(fresh), "step that resets", numbers)
            ended = done & ~self.goes_on(following.observation)
            self.length[ended], self.total[ended], self.magnitude[ended] = 0, 0, 0
            self.late = done & ~fresh
            kept, rows = after.observation.index(~fresh), following.observation.index(~fresh)
            numbers = self.everyone[~fresh]
        else:
            clause = "step: with autoreset False those that are not done run on, no others"
            expect_equal(following.numbers, after.numbers[~done], clause)
            kept, rows = after.observation.index(~done), following.observation
            numbers = following.numbers
        for key, tensor in kept.items():
            clause = f"step: both pairs have the same {key}, except for a first observation"
            expect_equal(rows[key], tensor, clause, numbers)

    def remember_ends(self, after: Seen) -> None:
        """Keeps what the episodes ended with that did."""
        rows = after.observation["done"].nonzero().squeeze(1)
        if self.terminal.empty():
            self.terminal = self.current.observation.clone()
        self.terminal.copy_(after.observation, rows, after.numbers[rows])
        self.ended[after.numbers[rows]] = True

    def compare_frames(self, first: DictTensor, numbers: torch.Tensor) -> None:
        """Counts the episodes whose first frame is the last one of the episode before."""
        begun = self.ended[numbers] & ~self.goes_on(first)
        self.ended[numbers] = False
        if not begun.any():
            return
        last, first = self.terminal.index(numbers[begun]), first.index(begun)
        alike = torch.ones(last.n_elems(), dtype=torch.bool, device="cpu")
        for key, tensor in last.items():
            if key not in _DTYPES and key.split("/")[0] != "last_action":
                equal = _equal(first[key], tensor)
                alike &= equal.flatten(1).all(1) if equal.dim() > 1 else equal
        self.n_begun += len(alike)
        self.n_begun_alike += int(alike.sum())

    def check_refuses_a_step(self) -> None:
        action = self.sample_action(1).index([]).to(self.device)
        clause = "step: raises CallOrderError when no environment runs"
        try:
            self.env.step(action)
        except CallOrderError:
            return
        except Exception as error:
            raise EnvContractError(f"{clause}: expected that, got {error!r}") from error
        raise EnvContractError(f"{clause}: expected that, got no exception")


class WalkInto(Walk):
    """A run in which the environment writes into arrays that it is given."""

    def act(self, action: DictTensor) -> tuple[Observation, Observation]:
        """Has the environment write into memory that holds something else before."""
        after, following = self.memory(0), self.memory(1)
        arrays = ({key: one.numpy() for key, one in part.items()} for part in (after, following))
        self.env.step_into(action, *arrays)  # type: ignore[attr-defined]
        return (after, self.everyone.clone()), (following, self.everyone.clone())

    def memory(self, byte: int) -> DictTensor:
        """Returns an observation of bytes that mean nothing."""
        like = self.current.observation
        empty = {key: torch.zeros_like(tensor) for key, tensor in like.items()}
        for tensor in empty.values():
            tensor.numpy().reshape(-1).view(np.uint8)[:] = byte
        return DictTensor(empty)


def _bounds(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and the highest values of a space without parts."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    n = space.n if isinstance(space, spaces.Discrete) else space.nvec
    low = np.asarray(space.start)
    return low, low + n - 1


def different_keys(one: DictTensor, other: DictTensor) -> set[str]:
    return {key for key, tensor in one.items() if not bool(_equal(tensor, other[key]).all())}


def expect(holds: bool, clause: str, found: Any) -> None:
    if not holds:
        raise EnvContractError(f"{clause}: expected that, got {found}")


def expect_equal(
    found: torch.Tensor, expected: torch.Tensor, clause: str, numbers: torch.Tensor | None = None
) -> None:
    # Where the environments' numbers are given, one for each row, those that differ are named.
    if found.shape == expected.shape:
        equal = _equal(found, expected)
        if bool(equal.all()):
            return
        if numbers is not None:
            rows = (~equal).reshape(len(found), -1).any(1).nonzero().squeeze(1)[:_MOST_NAMED]
            clause += f", of environments {numbers[rows].tolist()}"
            found, expected = found[rows], expected[rows]
    raise EnvContractError(f"{clause}: expected {expected}, got {found}")


def _equal(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    both_nan = (found != found) & (expected != expected)
    return (found == expected) | both_nan
