"""The last steps of all environments, which groups of them take turns to be learnt from.

NOTE [ staggered groups ]

With G groups and windows of N steps, every acquisition of N / G steps is followed by an update,
with the last N steps of one group. So there are G updates in the time in which each step is learnt
from once, and only the last steps of a window were taken by the newest policy. One group is plain
A2C.

Source: Dalton et al., Accelerating Reinforcement Learning through GPU Atari Emulation, 2020,
arXiv:1907.08467, section 4 ("batching strategy").
"""

from __future__ import annotations

from collections import deque

import torch

from rlbatch import DictTensor, TemporalDictTensor, Trajectories


class Window:
    """Keeps trajectories that follow each other, as many as there are groups.

    Args:
        n_groups: G, how many groups the environments are dealt into.
    """

    def __init__(self, n_groups: int):
        self._parts: deque[Trajectories] = deque(maxlen=n_groups)
        self._n_groups = n_groups

    def clear(self) -> None:
        """Forgets everything: what comes next does not follow on it."""
        self._parts.clear()

    def add(self, part: Trajectories) -> None:
        """Adds the next steps, [B, T, ...]."""
        self._parts.append(part)

    def group(self, number: int) -> Trajectories:
        """Returns the steps that it holds of the environments of a group, the oldest first.

        With each step its `policy_version`, [B / G, N] int64.
        """
        B = self._parts[0].n_elems()
        number %= self._n_groups
        rows = slice(number * B // self._n_groups, (number + 1) * B // self._n_groups)
        info = DictTensor({key: tensor[rows] for key, tensor in self._parts[0].info.items()})
        parts = [part.trajectories for part in self._parts]
        steps = {key: torch.cat([part[key][rows] for part in parts], dim=1) for key in parts[0]}
        versions = [part.info["policy_version"][rows] for part in self._parts]
        steps["policy_version"] = torch.stack(versions, 1).repeat_interleave(
            parts[0].n_timesteps(), dim=1
        )
        return Trajectories(info, TemporalDictTensor(steps))
