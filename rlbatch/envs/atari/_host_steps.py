"""Steps of environments that the native library runs: what `AtariEnv` does on the CPU."""

from __future__ import annotations

import numpy as np
import torch

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.atari._native_batch import JobKind, NativeBatch

Arrays = dict[str, np.ndarray]


class HostSteps:
    """The results of a `NativeBatch` as observations.

    Args:
        batch: The environments, which are stepped from here alone.
    """

    def __init__(self, batch: NativeBatch):
        self.batch = batch
        # What episodes ended with, until it is copied. Kept: two arrays that are made and forgotten
        # in every step are given back to the system each time, and faulted in anew.
        self._ends = self._new_frames()

    def reset(self, seeds: np.ndarray | None) -> DictTensor:
        """Starts an episode in every environment; with seeds, [n_envs] uint32, from power-on."""
        frames = self._new_frames()
        if seeds is None:
            self.batch.run(JobKind.RESET, frames)
        else:
            self.batch.run(JobKind.LOAD, frames, seed=seeds)
        return self._current(frames)

    def reset_where(self, chosen: torch.Tensor) -> DictTensor:
        """Starts an episode in the chosen environments, [n_envs] bool."""
        frames = self._new_frames()
        self.batch.run(np.where(chosen.numpy(), JobKind.RESET, JobKind.LOOK), frames)
        return self._current(frames)

    def step(self, action: torch.Tensor) -> tuple[DictTensor, DictTensor]:
        """Steps all environments, [n_envs] integers; returns what followed, and what to act on."""
        actions = action.numpy()
        frames = self._new_frames()
        self.batch.run(JobKind.STEP_THROUGH, frames, self._ends, action=actions)
        after = self._after(actions)
        done = after["done"]
        if not done.any():
            both = _tensors({"frame": frames, **after})
            return both, both
        following = {key: array.copy() for key, array in after.items()}
        self._restart(following, done)
        last_frames, ended = frames.copy(), self.batch.results["has_ended"]
        last_frames[ended] = self._ends[ended]
        after["lives"][ended] = self.batch.results["after_lives"][ended]
        pairs = (last_frames, after), (frames, following)
        first, second = (_tensors({"frame": frame, **rest}) for frame, rest in pairs)
        return first, second

    def step_into(self, action: torch.Tensor, after: Arrays, following: Arrays) -> None:
        """Steps like `step`, and writes to the arrays."""
        actions = action.numpy()
        frames = [self._frames_for(arrays["frame"]) for arrays in (following, after)]
        self.batch.run(JobKind.STEP_THROUGH, *frames, has_all_after=True, action=actions)
        for arrays, written in zip((following, after), frames, strict=True):
            if written is not arrays["frame"]:
                arrays["frame"][...] = written
        for key, array in self._after(actions).items():
            after[key][...] = array
            following[key][...] = array
        after["lives"][...] = self.batch.results["after_lives"]
        if after["done"].any():
            self._restart(following, after["done"])

    def observe(self) -> DictTensor:
        """Returns the observations to act on now."""
        frames = self._new_frames()
        self.batch.run(JobKind.LOOK, frames)
        return self._current(frames)

    def decorrelate(self, n_steps: np.ndarray, actions: np.ndarray) -> DictTensor:
        """Takes n_steps [n_envs] of the actions [t, n_envs], and starts to count there."""
        frames = self._new_frames()
        for t in range(int(n_steps.max())):
            kind = np.where(n_steps > t, JobKind.STEP_THROUGH, JobKind.LOOK)
            self.batch.run(kind, frames, action=actions[t])
        self.batch.run(JobKind.START_COUNT, frames)
        return self._current(frames)

    def _new_frames(self) -> np.ndarray:
        return np.empty(self.batch.shape, np.uint8)

    def _frames_for(self, array: np.ndarray) -> np.ndarray:
        """Returns the array, if the library can write there, or one to copy from."""
        return array if array.flags.c_contiguous else self._new_frames()

    def _after(self, actions: np.ndarray) -> Arrays:
        """Returns what a step led to, except for frames; lives are those after a reset."""
        results = self.batch.results
        terminated, truncated = results["terminated"].copy(), results["truncated"].copy()
        return {
            "reward": results["reward"].astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
            "initial_state": np.zeros(len(actions), np.bool_),
            "last_action": actions.astype(np.int64),
            "episode_return": results["episode_return"].astype(np.float32),
            "episode_length": results["episode_length"].astype(np.int64),
            "reward_raw": results["reward_raw"].astype(np.float32),
            "lives": results["lives"].astype(np.int64),
        }

    def _restart(self, following: Arrays, done: np.ndarray) -> None:
        """Turns what led to an end into what an episode begins with, except for frames."""
        for key in ("reward", "reward_raw", "terminated", "truncated", "done", "last_action"):
            following[key][done] = 0
        following["initial_state"][done] = True
        ended = self.batch.results["has_ended"]
        for key in ("episode_return", "episode_length"):
            following[key][ended] = 0
        following["lives"][ended] = self.batch.results["lives"][ended]

    def _current(self, frames: np.ndarray) -> DictTensor:
        """Returns where all environments are, after a job that was no step."""
        results = self.batch.results
        current = self._after(results["last_action"])
        current["initial_state"] = results["episode_length"] == 0
        self._restart(current, current["done"].copy())  # It is written to.
        return _tensors({"frame": frames, **current})


def _tensors(arrays: Arrays) -> DictTensor:
    return DictTensor.unchecked({key: torch.from_numpy(array) for key, array in arrays.items()})
