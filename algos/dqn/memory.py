"""The replay memory of DQN: single frames, of which stacks and n-step transitions are made.

NOTE [ entries ]

Every environment has a ring of entries, in the order of time. An entry is what was acted on: a
frame, the action, and the reward that followed. Where an episode ends, one more entry holds its
last frame; nobody acted on it. Entry q of an episode of three steps, k = 3 frames in a stack:

    q            0    1    2    3 (end)   4    5
    frame        f0   f1   f2   f3        g0   g1    g: the next episode
    begins       x    .    .    .         x    .
    is_end       .    .    .    x         .    .
    stack of q   --f0 -f0f1 f0f1f2 f1f2f3 --g0 -g0g1

A transition begins at an entry that is no end and is followed by n entries; it leads to the n-th,
or to the end of its episode. So nothing crosses the edge of an episode.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlbatch import DictTensor, TemporalDictTensor
from rlbatch.devices import DeviceLike
from rlbatch.errors import DtypeMismatchError, ShapeError

# What is drawn may be an end, of which a sensible memory holds few.
_MOST_REDRAWS = 1000

# PyTorch does not write to places of unsigned tensors; their bytes are the same.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class ReplayMemory:
    """Keeps the last steps of every environment, and draws transitions from them.

    Args:
        capacity: Entries, over all environments; rounded down to the same number for each.
        n_envs: How many environments.
        observation_space: Of one environment.
        n_steps: n, the steps of a transition.
        discount: Per step.
        priority_exponent: Transitions are drawn with a probability proportional to their priority
            to this power; 0 draws all alike.
        device: Where the memory is.
        stack: Of how many frames an observation [stack, ...] is, of which the newest is kept; 1
            keeps observations as they are.

    Raises:
        ValueError: There is not room for one transition per environment, or a number is too small.
    """

    def __init__(  # noqa: PLR0913 - what a transition is, and where
        self,
        capacity: int,
        n_envs: int,
        observation_space: spaces.Box,
        n_steps: int = 1,
        discount: float = 0.99,
        priority_exponent: float = 0.0,
        device: DeviceLike = "cpu",
        stack: int = 1,
    ):
        for name, value in (("n_envs", n_envs), ("n_steps", n_steps), ("stack", stack)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        self._is_stacked, self._stack = stack > 1, stack
        self._size, self._n_envs = capacity // n_envs, n_envs
        self._n_steps, self._discount = n_steps, discount
        self._exponent, self._device = priority_exponent, torch.device(device)
        if self._size < self._stack + n_steps:
            least = n_envs * (self._stack + n_steps)
            raise ValueError(f"capacity: expected at least {least}, got {capacity}")
        self._observation_shape = observation_space.shape
        n = n_envs * self._size
        frame_shape = observation_space.shape[1:] if self._is_stacked else observation_space.shape
        frame_dtype = torch.from_numpy(np.empty(0, observation_space.dtype)).dtype
        self._forms: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            # One more, of zeros: the one before an episode.
            "frame": ((n + 1, *frame_shape), frame_dtype),
            "action": ((n,), torch.int64),
            "reward": ((n,), torch.float32),
            **dict.fromkeys(("terminated", "begins", "is_end"), ((n,), torch.bool)),
        }
        if priority_exponent:
            self._forms["priority"] = (n,), torch.float32
        self._entries: dict[str, Tensor] = {}
        self._written = torch.zeros(n_envs, dtype=torch.int64, device=self._device)
        self._highest_priority = torch.ones((), device=self._device)

    def n_bytes(self) -> int:
        """Returns the bytes that it will take, or takes."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._forms.values())

    def allocate(self) -> None:
        """Takes the memory."""
        self._entries = {
            key: torch.zeros(shape, dtype=dtype, device=self._device)
            for key, (shape, dtype) in self._forms.items()
        }

    def n_entries(self) -> int:
        """Returns how many entries were ever written."""
        return int(self._written.sum())

    def add(self, steps: TemporalDictTensor) -> None:
        """Adds the next steps of all environments, [n_envs, T, ...], on any device.

        Raises:
            ShapeError: They are of another number of environments, or other observations.
            DtypeMismatchError: The observations have another dtype.
        """
        self._check(steps["observation/frame"])
        steps = steps.to(self._device)
        everyone = torch.arange(self._n_envs, device=self._device)
        for t in range(steps.n_timesteps()):
            step = steps.temporal_index(t)
            entry = {
                "frame": self._newest(step["observation/frame"]),
                "action": step["action/action"],
                "reward": step["_observation/reward"],
                "terminated": step["_observation/terminated"],
                "begins": step["observation/initial_state"],
            }
            self._write(everyone, entry, is_end=False)
            ended = step["_observation/done"].nonzero().squeeze(-1)
            last = {"frame": self._newest(step["_observation/frame"][ended])}
            self._write(ended, last, is_end=True)

    def cut(self) -> None:
        """Ends all episodes that are under way where they are, as if they were truncated."""
        running = (self._written > 0).nonzero().squeeze(-1)
        self._mark_ends(self._place(running, self._written[running] - 1))

    def sample(self, n: int) -> DictTensor:
        """Draws transitions.

        Args:
            n: How many.

        Returns:
            [n, ...] each: `frame` and `next_frame`, as the agent saw them; `action` int64;
            `reward` float32, the discounted sum; `discount` float32, of the value of `next_frame`,
            0 where the episode terminated; `place` int64, for `set_priorities`; `probability`
            float32, of having been drawn, times the number of entries.

        Raises:
            ValueError: There are no transitions yet, or next to none; or a priority is not finite.
        """
        env, number, probability = self._draw(n)
        total = torch.zeros(n, device=self._device)
        discount = torch.ones(n, device=self._device)
        is_over = torch.zeros(n, dtype=torch.bool, device=self._device)
        has_value, following = ~is_over, number
        for j in range(self._n_steps):
            place = self._place(env, number + j)
            total += torch.where(is_over, 0.0, discount * self._entries["reward"][place])
            discount = torch.where(is_over, discount, discount * self._discount)
            has_value &= is_over | ~self._entries["terminated"][place]
            following = torch.where(is_over, following, number + j + 1)
            is_over = is_over | self._entries["is_end"][self._place(env, following)]
        start = self._place(env, number)
        return DictTensor(
            {
                "frame": self._frames(env, number),
                "next_frame": self._frames(env, following),
                "action": self._entries["action"][start],
                "reward": total,
                "discount": discount * has_value,
                "place": start,
                "probability": probability,
            }
        )

    def set_priorities(self, place: Tensor, priority: Tensor) -> None:
        """Sets the priorities, positive float32, of transitions that were drawn from `place`."""
        if not self._exponent:  # All are alike.
            return
        weight = priority.to(self._device) ** self._exponent
        self._entries["priority"][place.to(self._device)] = weight
        self._highest_priority = torch.maximum(self._highest_priority, weight.max())

    def state_dict(self) -> dict[str, Any]:
        """Returns all that it holds; no copies."""
        return {
            "entries": self._entries,
            "written": self._written,
            "highest_priority": self._highest_priority,
            "priority_exponent": self._exponent,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` returned.

        Raises:
            ValueError: It is from a memory of another size, of other frames, or with another
                exponent of the priorities.
        """
        expected = {"written": ((self._n_envs,), torch.int64), **self._forms}
        tensors = {"written": state["written"], **state["entries"]}
        found = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in tensors.items()}
        # What is kept of a priority is its power.
        expected["priority_exponent"] = self._exponent
        found["priority_exponent"] = state.get("priority_exponent")
        if found != expected:
            raise ValueError(
                f"memory: expected one saved with the same capacity, n_envs and priorities, "
                f"{expected}, got {found}"
            )
        self._entries = {key: tensor.to(self._device) for key, tensor in state["entries"].items()}
        self._written = state["written"].to(self._device)
        self._highest_priority = state["highest_priority"].to(self._device)

    def _check(self, frames: Tensor) -> None:
        expected, dtype = (self._n_envs, *self._observation_shape), self._entries["frame"].dtype
        found = (*frames.shape[:1], *frames.shape[2:])
        if found != expected:
            raise ShapeError(f"observation/frame: expected {expected} in each step, got {found}")
        if frames.dtype != dtype:
            raise DtypeMismatchError(f"observation/frame: expected {dtype}, got {frames.dtype}")

    def _newest(self, frame: Tensor) -> Tensor:
        return frame[:, -1] if self._is_stacked else frame

    def _place(self, env: Tensor, number: Tensor) -> Tensor:
        """Returns where an environment's entries are, by their numbers since the beginning."""
        return env * self._size + number % self._size

    def _write(self, env: Tensor, entry: dict[str, Tensor], is_end: bool) -> None:
        place = self._place(env, self._written[env])
        for key, tensor in self._entries.items():
            written = entry[key].to(tensor.dtype) if key in entry else tensor.new_zeros(1)
            signed = _SIGNED.get(tensor.dtype, tensor.dtype)
            tensor.view(signed)[place] = written.view(signed)
        if self._exponent:
            self._entries["priority"][place] = self._highest_priority
        if is_end:
            self._mark_ends(place)
        self._written[env] += 1

    def _mark_ends(self, place: Tensor) -> None:
        self._entries["is_end"][place] = True
        if self._exponent:
            self._entries["priority"][place] = 0.0

    def _draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns environments, numbers of entries where transitions begin, and probabilities.

        Raises:
            ValueError: There are none, or next to none; or a priority is not finite.
        """
        # A stack needs older frames, which are gone where the ring has come round.
        oldest = (self._written - self._size).clamp(min=0)
        first = torch.where(oldest > 0, oldest + self._stack - 1, 0)
        n_possible = self._written - self._n_steps - first
        if not bool((n_possible > 0).all()):
            raise ValueError("sample: expected transitions of every environment, got none of some")
        if self._exponent:
            sums = self._summed_weights(oldest)
            draw = partial(self._draw_by_priority, n, sums, n_possible.sum())
        else:
            draw = partial(self._draw_alike, n, first, n_possible)

        env, number, probability = draw()
        for _ in range(_MOST_REDRAWS):
            is_wrong = (number < first[env]) | (number >= first[env] + n_possible[env])
            is_wrong |= self._entries["is_end"][self._place(env, number)]
            if not bool(is_wrong.any()):
                return env, number, probability
            env, number, probability = (
                torch.where(is_wrong, new, old)
                for new, old in zip(draw(), (env, number, probability), strict=True)
            )
        if self._exponent and not bool(sums.isfinite().all()):
            raise ValueError("sample: expected finite priorities, got others: has a loss diverged?")
        raise ValueError("sample: expected room for more than the ends of episodes, got too little")

    def _draw_alike(
        self, n: int, first: Tensor, n_possible: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = n_possible.cumsum(0)
        share = torch.rand(n, dtype=torch.float64, device=self._device)
        drawn = (share * sums[-1]).long()  # Counted through all environments.
        env = torch.searchsorted(sums, drawn, right=True)
        number = first[env] + drawn - (sums - n_possible)[env]
        return env, number, torch.ones(n, device=self._device)

    def _summed_weights(self, oldest: Tensor) -> Tensor:
        """Returns the sums of the priorities up to each entry; where no transition begins, 0."""
        weights = self._entries["priority"].double()
        everyone = torch.arange(self._n_envs, device=self._device)
        for age in range(1, self._n_steps + 1):
            weights[self._place(everyone, self._written - age)] = 0.0
        for j in range(self._stack - 1):
            weights[self._place(everyone, oldest + j)] *= oldest == 0
        return weights.cumsum(0)

    def _draw_by_priority(
        self, n: int, sums: Tensor, n_entries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        mass = torch.rand(n, dtype=torch.float64, device=self._device) * sums[-1]
        place = torch.searchsorted(sums, mass, right=True).clamp(max=len(sums) - 1)
        env, at = place // self._size, place % self._size
        last = self._written[env] - 1
        number = last - (last - at) % self._size
        share = self._entries["priority"][place] / sums[-1]
        return env, number, (share * n_entries).float()

    def _frames(self, env: Tensor, number: Tensor) -> Tensor:
        """Returns the observations at entries: stacks, where frames before the episode are 0."""
        if not self._is_stacked:
            return self._entries["frame"][self._place(env, number)]
        places, is_before = [], torch.zeros_like(env, dtype=torch.bool)
        for age in range(self._stack):
            # What comes before the first entry of all is before an episode as well.
            place = self._place(env, (number - age).clamp(min=0))
            places.append(torch.where(is_before, self._n_envs * self._size, place))
            is_before = is_before | self._entries["begins"][place]
        return self._entries["frame"][torch.stack(places[::-1], dim=1)]
