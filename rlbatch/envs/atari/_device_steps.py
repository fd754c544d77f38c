"""Steps of environments that a GPU runs: what `AtariEnv` does on CUDA."""

from __future__ import annotations

import functools
import logging

import numpy as np
import torch

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.atari._device import DeviceBatch, DeviceJob
from rlbatch.envs.atari._host_steps import Arrays

_log = logging.getLogger(__name__)

Tensors = dict[str, torch.Tensor]

# Up to about so many environments, each is alone in a warp: an H100 runs two on each of its 528
# schedulers at once, see `_device.py`.
_FEW = 1024


class DeviceSteps:
    """The results of a `DeviceBatch` as observations. Nothing in `step` waits for the device.

    Args:
        batch: The environments, which are stepped from here alone.
    """

    def __init__(self, batch: DeviceBatch):
        if batch.device.type == "cuda" and batch.n_envs < _FEW:
            hint_at_more()
        self.batch = batch

    def reset(self, seeds: np.ndarray | None) -> DictTensor:
        """Starts an episode in every environment; with seeds, [n_envs] uint32, from power-on."""
        self.batch.check_idle("reset")
        with self.batch.left_whole("reset"):
            if seeds is None:
                self.batch.step(DeviceJob.RESET)
            else:
                self.batch.step(DeviceJob.LOAD, seeds=self.batch.uploaded(seeds))
            return self._current()

    def reset_where(self, chosen: torch.Tensor) -> DictTensor:
        """Starts an episode in the chosen environments, [n_envs] bool."""
        with self.batch.left_whole("reset_where"):
            self.batch.step(_jobs(chosen, DeviceJob.RESET))
            return self._current()

    def step(self, action: torch.Tensor) -> tuple[DictTensor, DictTensor]:
        """Steps all environments, [n_envs] integers; returns what followed, and what to act on."""
        last_frames, frames = (self.batch.new_observations() for _ in range(2))
        with self.batch.left_whole("step"):
            self.batch.step(DeviceJob.STEP, actions=action.to(torch.int64).contiguous())
            self.batch.observe(last_frames)
            after = self._after(action)
            self.batch.step(DeviceJob.RESTART)  # What the step led to stays in the results.
            self.batch.observe(frames)
            following = self._restarted(after)
        first, second = {"frame": last_frames, **after}, {"frame": frames, **following}
        return DictTensor.unchecked(first), DictTensor.unchecked(second)

    def step_into(self, action: torch.Tensor, after: Arrays, following: Arrays) -> None:
        """Steps like `step`, and writes to the arrays."""
        for arrays, written in zip((after, following), self.step(action), strict=True):
            for key, tensor in written.items():
                arrays[key][...] = tensor.cpu().numpy()

    def observe(self) -> DictTensor:
        """Returns the observations to act on now."""
        with self.batch.left_whole("observe"):
            self.batch.step(DeviceJob.NONE)
            return self._current()

    def _current(self) -> DictTensor:
        """Returns where all environments are, after a job that was no step."""
        current = self._after(self.batch.results["last_action"])
        current["initial_state"] = current["episode_length"] == 0
        current = self._restarted(current, current["initial_state"])
        frames = self.batch.new_observations()
        self.batch.observe(frames)
        return DictTensor.unchecked({"frame": frames, **current})

    def decorrelate(self, n_steps: np.ndarray, actions: np.ndarray) -> DictTensor:
        """Takes n_steps [n_envs] of the actions [t, n_envs] after a reset; counts from there."""
        steps, chosen = (torch.from_numpy(one).to(self.batch.device) for one in (n_steps, actions))
        frames = self.batch.new_observations()
        with self.batch.left_whole("reset"):
            for t in range(int(n_steps.max())):
                self.batch.step(_jobs(steps > t, DeviceJob.STEP), actions=chosen[t].contiguous())
                self.batch.observe(frames)
                self.batch.step(DeviceJob.RESTART)
                self.batch.observe(frames)
            self.batch.step(DeviceJob.START_COUNT)
            return self._current()

    def _after(self, action: torch.Tensor) -> Tensors:
        """Returns what a step led to, except for frames."""
        results = self.batch.results
        terminated, truncated = results["terminated"].clone(), results["truncated"].clone()
        return {
            "reward": results["reward"].to(torch.float32),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
            "initial_state": torch.zeros_like(terminated),
            "last_action": action.to(torch.int64, copy=True),
            "episode_return": results["episode_return"].to(torch.float32),
            "episode_length": results["episode_length"].to(torch.int64),
            "reward_raw": results["reward_raw"].to(torch.float32),
            "lives": results["lives"].to(torch.int64),
        }

    def _restarted(self, after: Tensors, initial: torch.Tensor | None = None) -> Tensors:
        """Returns what to act on after what a step led to, except for frames."""
        done, ended = after["done"], self.batch.results["has_ended"]
        following = {
            key: after[key].masked_fill(done, 0)
            for key in ("reward", "reward_raw", "terminated", "truncated", "done", "last_action")
        }
        for key in ("episode_return", "episode_length"):
            following[key] = after[key].masked_fill(ended, 0)
        following["initial_state"] = done.clone() if initial is None else initial | done
        following["lives"] = self.batch.results["lives"].to(torch.int64)
        return {key: following[key] for key in after}


def _jobs(chosen: torch.Tensor, job: DeviceJob) -> torch.Tensor:
    """Returns a job for the chosen environments, [n_envs] bool, and `NONE`, 0, for the others."""
    return chosen.to(torch.uint8) * int(job)


@functools.cache  # Once in a process.
def hint_at_more() -> None:
    """Logs why few environments seem slow."""
    _log.warning(
        "AtariEnv: fewer than %d environments on a GPU, where a step of one takes about half as "
        "long as a step of all of these; see docs/gpu.md, One process, many environments",
        _FEW,
    )
