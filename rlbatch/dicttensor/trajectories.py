"""Trajectories: what a batcher returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from rlbatch._checks import check_is, check_same_keys
from rlbatch._interop import known_to_torch, new_tensordict
from rlbatch._named_tensors import Index
from rlbatch.devices import DeviceLike, as_device
from rlbatch.dicttensor.dict_tensor import DictTensor
from rlbatch.dicttensor.temporal_dict_tensor import TemporalDictTensor
from rlbatch.errors import DeviceMismatchError, ShapeError


@known_to_torch
class Trajectories:
    """A batch of trajectories.

    Args:
        info: One row per trajectory; from a batcher `agent_info/...`, `env_info/...`,
            `agent_state/...` at its first step, `env_id` and `policy_version`. May be empty.
        trajectories: `observation/...`, `action/...`, `_observation/...` per step.

    Raises:
        TypeError: `info` is not a DictTensor, or `trajectories` not a TemporalDictTensor.
        DeviceMismatchError: The two are not on one device.
        ShapeError: They have not the same number of rows.

    Example:
        >>> steps = TemporalDictTensor({"_observation/reward": torch.ones(2, 5)})
        >>> Trajectories(DictTensor({"env_id": torch.arange(2)}), steps)
        Trajectories
          info: DictTensor(n_elems=2, device=cpu)
            env_id  [2]  int64
          trajectories: TemporalDictTensor(n_elems=2, n_timesteps=5, device=cpu)
            _observation/reward  [2, 5]  float32
    """

    __slots__ = ("info", "trajectories")

    def __init__(self, info: DictTensor, trajectories: TemporalDictTensor):
        check_is("info", info, DictTensor)
        check_is("trajectories", trajectories, TemporalDictTensor)
        if not info.empty():
            if info.device() != trajectories.device():
                raise DeviceMismatchError("info", trajectories.device(), info.device())
            if info.n_elems() != trajectories.n_elems():
                raise ShapeError(
                    f"info: expected {trajectories.n_elems()} rows, got {info.n_elems()}"
                )
        self.info = info
        self.trajectories = trajectories

    def __getitem__(self, key: Any) -> NoReturn:
        """Tells where keys are; see `index` for rows.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"Trajectories: expected trajectories[key] or info[key] of it, got [{key!r}] itself"
        )

    def device(self) -> torch.device:
        """Returns the device of all tensors."""
        return self.trajectories.device()

    def n_elems(self) -> int:
        """Returns the number of trajectories, B."""
        return self.trajectories.n_elems()

    def to(self, device: DeviceLike, non_blocking: bool = False) -> Trajectories:
        """Moves everything to a device; the same object where it is there already.

        See `DictTensor.to` for `non_blocking`.
        """
        if as_device(device) == self.device():
            return self
        return Trajectories(
            self.info.to(device, non_blocking), self.trajectories.to(device, non_blocking)
        )

    def clone(self) -> Trajectories:
        """Returns a copy of every tensor."""
        return Trajectories(self.info.clone(), self.trajectories.clone())

    def pin_memory(self) -> Trajectories:
        """Returns a copy in page-locked memory. Needs CUDA."""
        return Trajectories(self.info.pin_memory(), self.trajectories.pin_memory())

    def index(self, index: Index) -> Trajectories:
        """Returns some of the trajectories; see `DictTensor.index`."""
        return Trajectories(self.info.index(index), self.trajectories.index(index))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Trajectories:
        """Returns `n` different trajectories, drawn uniformly (a copy).

        Args:
            n: How many.
            generator: What draws them; None for torch's global one on the CPU.

        Raises:
            ValueError: There are fewer than `n`.

        Example:
            >>> steps = TemporalDictTensor({"_observation/reward": torch.ones(8, 5)})
            >>> memory = Trajectories(DictTensor({"env_id": torch.arange(8)}), steps)
            >>> memory.sample(3, torch.Generator().manual_seed(0)).n_elems()
            3
        """
        if not 0 <= n <= self.n_elems():
            raise ValueError(f"n: expected 0 to {self.n_elems()} trajectories, got {n}")
        device = generator.device if generator else "cpu"
        return self.index(torch.randperm(self.n_elems(), generator=generator, device=device)[:n])

    @staticmethod
    def cat(trajectories: Iterable[Trajectories]) -> Trajectories:
        """Joins batches of trajectories (a copy); see `TemporalDictTensor.cat`."""
        trajectories = list(trajectories)
        for batch in trajectories:
            check_is("cat", batch, Trajectories)
        return Trajectories(
            DictTensor.cat(batch.info for batch in trajectories),
            TemporalDictTensor.cat(batch.trajectories for batch in trajectories),
        )

    def to_tensordict(self) -> Any:
        """Returns a `tensordict.TensorDict` [B] with `info` and `trajectories` (no copies).

        Raises:
            ImportError: tensordict is not installed (`pip install rlbatch[tensordict]`).
            KeyMismatchError: A key of the trajectories is (or is below) `lengths`.
        """
        parts = {
            "info": self.info.to_nested(),
            "trajectories": self.trajectories.to_tensordict(),
        }
        return new_tensordict(parts, [self.n_elems()])

    @staticmethod
    def from_tensordict(source: Any) -> Trajectories:
        """Builds Trajectories of the same tensors, the inverse of `to_tensordict`.

        Raises:
            KeyMismatchError: There is more beside `info` and `trajectories`, or one is missing.
        """
        check_same_keys("from_tensordict", ("info", "trajectories"), source.keys())
        return Trajectories(
            DictTensor.from_tensordict(source["info"]),
            TemporalDictTensor.from_tensordict(source["trajectories"]),
        )

    def __repr__(self) -> str:
        info = repr(self.info).replace("\n", "\n  ")
        trajectories = repr(self.trajectories).replace("\n", "\n  ")
        return f"Trajectories\n  info: {info}\n  trajectories: {trajectories}"

    def _flatten(self) -> tuple[list[Any], None]:
        return [self.info, self.trajectories], None

    @classmethod
    def _unflatten(cls, children: Iterable[Any], _: None) -> Trajectories:
        new = cls.__new__(cls)
        new.info, new.trajectories = children
        return new
