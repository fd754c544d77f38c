"""Storage of trajectories: one block of memory, shared with the workers, carved up by key.

NOTE [ time alignment ]

A slot is the storage of one trajectory, and belongs to one environment. Row `t` of a slot is
written in three parts:

    observation/...   what the environment showed; before the agent is asked,
    action/...        what the agent answered; before the environment is given it,
    _observation/...  what the environment returned after that action.

So whoever changes in place what it is given, or what it has returned, changes nothing that is
stored. An environment that writes into the slots itself (`step_into`) writes the last part, and
the first one of `t + 1`.

With an environment that resets itself, `observation/...` at `t + 1` is not `_observation/...` at
`t` where an episode ended at `t`; elsewhere the two are equal. Rows at and after `lengths[slot]`
are zero.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from typing import Any, NamedTuple

import numpy as np
import torch

from rlbatch._checks import check_same_keys, check_same_rows, check_shape
from rlbatch._rows import put_rows, take_rows
from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories
from rlbatch.errors import DtypeMismatchError, ShapeError

# Views of other dtypes have to start at a multiple of their item size; 64 is a cache line.
_ALIGNMENT = 64

# For how many steps views of the slots are kept, which take some 10 KB each.
_MOST_KEPT = 1000

Arrays = dict[str, np.ndarray]


class Spec(NamedTuple):
    """The shape of one row (or one step) of a key, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def n_bytes(self, *leading: int) -> int:
        """Returns the bytes of a tensor `[*leading, *shape]`, rounded up to the alignment."""
        count = 1
        for size in (*leading, *self.shape):
            count *= size
        return -(-count * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


class Layout(NamedTuple):
    """The table of keys: what a slot holds per step, and once.

    Attributes:
        observation: Of the environment's observations; stored twice, before and after a step.
        action: Of the agent's output.
        info: Once per slot: `agent_info/...`, `env_info/...`, `agent_state/...` and the like.
    """

    observation: dict[str, Spec]
    action: dict[str, Spec]
    info: dict[str, Spec]

    @property
    def steps(self) -> dict[str, Spec]:
        """All keys per step, in the order in which they are written."""
        return {
            **{f"observation/{key}": spec for key, spec in self.observation.items()},
            **{f"action/{key}": spec for key, spec in self.action.items()},
            **{f"_observation/{key}": spec for key, spec in self.observation.items()},
        }

    def no_rows(self, prefix: str) -> DictTensor:
        """Returns no rows, on the CPU, of the infos whose keys have a prefix, without it."""
        return DictTensor(
            {
                key.removeprefix(prefix): torch.empty(0, *shape, dtype=dtype, device="cpu")
                for key, (shape, dtype) in self.info.items()
                if key.startswith(prefix)
            }
        )

    def n_bytes(self, n_slots: int, n_timesteps: int) -> int:
        """Returns the bytes of a store."""
        steps = sum(spec.n_bytes(n_slots, n_timesteps) for spec in self.steps.values())
        return steps + sum(spec.n_bytes(n_slots) for spec in (*self.info.values(), _LENGTH))


_LENGTH = Spec((), torch.int64)


def specs_of(where: str, container: DictTensor) -> dict[str, Spec]:
    """Returns the shape of one row and the dtype of every key.

    Raises:
        TypeError: A tensor is sparse or quantised.
    """
    for key, tensor in container.items():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = tensor.dtype if tensor.is_quantized else tensor.layout
            raise TypeError(f"storage: {where}/{key}: expected a dense tensor, got {kind}")
    return {key: Spec(tuple(v.shape[1:]), v.dtype) for key, v in container.items()}


def check_same_layout(where: str, expected: Layout, found: Layout) -> None:
    """Checks that a worker stores what the first one does.

    Raises:
        KeyMismatchError: It has other keys.
        ShapeError: A row has another shape.
        DtypeMismatchError: A tensor has another dtype.
    """
    for part in Layout._fields:
        first, other = getattr(expected, part), getattr(found, part)
        check_same_keys(f"{where}: {part}", first, other)
        for key, spec in first.items():
            name, there = f"{where}: {part}/{key}", other[key]
            if spec.shape != there.shape:
                raise ShapeError(f"{name}: expected rows of shape {spec.shape}, got {there.shape}")
            if spec.dtype != there.dtype:
                raise DtypeMismatchError(f"{name}: expected {spec.dtype}, got {there.dtype}")


class SlotStore:
    """The slots of all environments, as tensors over one block of memory.

    Args:
        layout: The keys.
        n_slots: B, the number of environments.
        n_timesteps: T.
        block: [n_bytes] uint8, at least `layout.n_bytes(n_slots, n_timesteps)`.

    Attributes:
        steps: [B, T, ...] per key.
        info: [B, ...] per key.
        lengths: [B] int64, 0 for an environment that did not run.
        longest: What the last `read` has returned, in steps, unless the environments reset
            themselves: the caller may have views of that, and have written to its padding.
    """

    def __init__(self, layout: Layout, n_slots: int, n_timesteps: int, block: torch.Tensor):
        self.layout, self.n_slots, self.n_timesteps = layout, n_slots, n_timesteps
        self._block, self._address = block, block.data_ptr()
        rest = _Rest(block)
        self.steps = {
            key: rest.take(spec, n_timesteps, n_slots).transpose(0, 1)  # A step is one piece.
            for key, spec in layout.steps.items()
        }
        self.info = {key: rest.take(spec, n_slots) for key, spec in layout.info.items()}
        self.lengths = rest.take(_LENGTH, n_slots)
        self.longest = 0

    def check_place(self) -> None:
        """Checks that the memory is still the one that others read and write.

        Raises:
            RuntimeError: PyTorch has moved it, as with some sharing strategies; see `map_block`.
        """
        if self._block.data_ptr() != self._address:
            raise RuntimeError(
                "storage: expected the trajectories where they have been written, got moved "
                "memory: with the sharing strategy 'file_system', PyTorch moves what it shares, "
                "and with a view (get(copy=False), an observation, a history) all of it; share a "
                "clone()"
            )

    def read(self, autoreset: bool, copy: bool) -> Trajectories:
        """Returns what the environments that ran have written.

        Args:
            autoreset: Every slot is full; then nothing here depends on data.
            copy: Return memory of its own, not views of the store.

        Raises:
            RuntimeError: See `check_place`.
        """
        self.check_place()
        steps, lengths, info = self.steps, self.lengths, self.info
        if not autoreset:
            self.longest = int(lengths.max())
            steps = {key: tensor[:, : self.longest] for key, tensor in steps.items()}
            ran = lengths > 0
            if not bool(ran.all()):
                rows = ran.nonzero().squeeze(1)
                steps = {key: take_rows(tensor, rows) for key, tensor in steps.items()}
                info = {key: take_rows(tensor, rows) for key, tensor in info.items()}
                lengths, copy = lengths[rows], False  # These are copies already.
        if copy:
            steps, info, lengths = _copies(steps), _copies(info), lengths.clone()
        # The dicts are copied in any case: the caller may add keys.
        return Trajectories(
            DictTensor.unchecked(dict(info)), TemporalDictTensor.unchecked(dict(steps), lengths)
        )


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: v.clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


class _Part(NamedTuple):
    """One of the three parts of a row."""

    name: str
    keys: KeysView[str]
    place: slice  # Among all keys.


class SlotWriter:
    """Writes the slots of one worker's environments.

    Args:
        store: All slots.
        first: The first of the worker's environments among all of them.
        n_envs: How many environments the worker has.
    """

    def __init__(self, store: SlotStore, first: int, n_envs: int):
        mine = slice(first, first + n_envs)
        self._store, self.n_timesteps, self.n_envs = store, store.n_timesteps, n_envs
        self.steps = {key: tensor[mine] for key, tensor in store.steps.items()}
        self.info = {key: tensor[mine] for key, tensor in store.info.items()}
        self.lengths = store.lengths[mine]
        layout = store.layout
        self._rows_at: dict[int, list[torch.Tensor]] = {}
        self._arrays_at: dict[int, list[np.ndarray | None]] = {}
        self._direct_at: dict[int, tuple[Arrays, Arrays, DictTensor]] = {}
        # By part: how many rows were written last, and their forms.
        self._checked: dict[str, tuple[int, list]] = {}
        n, n_actions = len(layout.observation), len(layout.action)
        self._observation = _Part("observation", layout.observation.keys(), slice(0, n))
        self._action = _Part("action", layout.action.keys(), slice(n, n + n_actions))
        self._after = _Part("_observation", layout.observation.keys(), slice(n + n_actions, None))

    def version(self) -> int:
        """Returns how often the slots were changed in place, except for what NumPy wrote."""
        return self.lengths._version  # All are views of one block, which share a counter.

    def clear(self, longest: int) -> None:
        """Forgets the last trajectories, so that padding is zero; see `SlotStore.longest`."""
        self.lengths.zero_()
        for tensor in self.steps.values():
            tensor[:, :longest].zero_()

    def write_info(self, running: torch.Tensor | None, info: DictTensor) -> None:
        """Writes what a slot holds once.

        Args:
            running: The environments that run, [N] int64; None for all.
            info: [N, ...].

        Raises:
            KeyMismatchError: The keys are not those of the first slot.
            ShapeError: A row has another shape.
            DtypeMismatchError: A tensor has another dtype.
            DeviceMismatchError: A tensor is on another device.
        """
        if info.keys() != self.info.keys():
            check_same_keys("storage: info, as in the first step", self.info, info)
        for key, tensor in info.items():
            target = self.info[key]
            check_same_rows(key, tensor, target, n_common=1, stage="storage")
            if running is None:
                target.copy_(tensor)
            else:
                put_rows(target, running, tensor)

    def write_observation(
        self, t: int, running: torch.Tensor | None, observation: DictTensor
    ) -> None:
        """Writes `observation/...`, see NOTE [ time alignment ].

        Nothing is cast, moved, spread or left out.

        Args:
            t: The step in the slot.
            running: The environments that run, [N] int64; None for all.
            observation: [N, ...] before the step.

        Raises:
            KeyMismatchError: The keys are not those of the first step.
            ShapeError: A tensor has another shape, or another number of rows.
            DtypeMismatchError: A tensor has another dtype.
            DeviceMismatchError: A tensor is on another device.
            RuntimeError: See `SlotStore.check_place`.
        """
        self._write(self._observation, t, running, observation)

    def write_action(self, t: int, running: torch.Tensor | None, action: DictTensor) -> None:
        """Writes `action/...`, [N, ...]; see `write_observation`."""
        self._write(self._action, t, running, action)

    def write_after(self, t: int, running: torch.Tensor | None, after: DictTensor) -> None:
        """Writes `_observation/...`, [N, ...]; see `write_observation`."""
        self._write(self._after, t, running, after)

    def _write(self, part: _Part, t: int, running: torch.Tensor | None, found: DictTensor) -> None:
        self._store.check_place()  # Else NumPy might write to memory that is no more.
        if found.keys() != part.keys:
            check_same_keys(f"storage: {part.name}, as in the first step", part.keys, found)
        values, rows = [found.variables[key] for key in part.keys], self._rows(t)[part.place]
        n_running = self.n_envs if running is None else len(running)
        # As whole lists, which is cheap; only a difference is looked at key by key.
        forms = n_running, [(value.shape, value.dtype, value.device) for value in values]
        if forms != self._checked.get(part.name):
            self._check_values(part, rows, values, n_running)
            self._checked[part.name] = forms
        if running is not None:
            self._put(part, t, running, rows, values)
        elif rows:
            torch._foreach_copy_(rows, values)

    def _put(
        self,
        part: _Part,
        t: int,
        running: torch.Tensor,
        rows: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> None:
        """Writes to some of the rows; as arrays on a CPU, where PyTorch copies by the element."""
        is_kept = t < _MOST_KEPT
        arrays = (
            self._row_arrays(t)[part.place] if is_kept else [_array_or_none(row) for row in rows]
        )
        places = running.numpy() if self.lengths.is_cpu else None
        for row, array, value in zip(rows, arrays, values, strict=True):
            if array is None:
                put_rows(row, running, value)
            else:
                array[places] = value.numpy(force=True)

    def _check_values(
        self, part: _Part, rows: list[torch.Tensor], values: list[torch.Tensor], n_running: int
    ) -> None:
        for key, row, value in zip(part.keys, rows, values, strict=True):
            where = f"{part.name}/{key}"
            check_same_rows(where, value, row, n_common=1, stage="storage")
            check_shape(f"storage: {where}", value, (n_running, *row.shape[1:]))

    def direct(self, t: int) -> tuple[Arrays, Arrays, DictTensor]:
        """Returns where a step may be written by the environment itself, on a CPU.

        Returns:
            The arrays of `_observation/...` at `t`; those of `observation/...` at `t + 1`, or past
            the end of the slot of a buffer of their own; and the latter as tensors. All [n_envs,
            ...], and views.
        """
        return self._kept(self._direct_at, t, self._make_direct)

    def _make_direct(self, t: int) -> tuple[Arrays, Arrays, DictTensor]:
        keys = self._observation.keys
        after = {key: self.steps[f"_observation/{key}"][:, t] for key in keys}
        if t + 1 < self.n_timesteps:
            following = {key: self.steps[f"observation/{key}"][:, t + 1] for key in keys}
        else:
            following = {key: torch.empty_like(row) for key, row in after.items()}
        return _arrays(after), _arrays(following), DictTensor(following)

    def set_lengths(self, running: torch.Tensor | None, length: int) -> None:
        """Says how many steps of some slots, or with None of all, have been written.

        Raises:
            RuntimeError: See `SlotStore.check_place`.
        """
        self._store.check_place()
        if running is None:
            self.lengths.fill_(length)
        else:
            self.lengths[running] = length

    def _rows(self, t: int) -> list[torch.Tensor]:
        return self._kept(self._rows_at, t, self._make_rows)

    def _make_rows(self, t: int) -> list[torch.Tensor]:
        return [tensor[:, t] for tensor in self.steps.values()]

    def _row_arrays(self, t: int) -> list[np.ndarray | None]:
        return self._kept(self._arrays_at, t, self._make_row_arrays)

    def _make_row_arrays(self, t: int) -> list[np.ndarray | None]:
        return [_array_or_none(row) for row in self._rows(t)]

    def _kept(self, kept: dict[int, Any], t: int, make: Callable[[int], Any]) -> Any:
        """Returns the views of a step, mostly made once: that costs more than writing them."""
        if t in kept:
            return kept[t]
        views = make(t)
        if t < _MOST_KEPT:
            kept[t] = views
        return views

    def history(self, running: torch.Tensor | None, t: int) -> TemporalDictTensor:
        """Returns the steps before `t` of the environments that run, [N, t, ...]."""
        steps = self.steps
        if not t:
            steps = {key: v for key, v in steps.items() if not key.startswith("action/")}
        past = {key: tensor[:, :t] for key, tensor in steps.items()}
        if running is not None:
            past = {key: take_rows(tensor, running) for key, tensor in past.items()}
        n = self.n_envs if running is None else len(running)
        return TemporalDictTensor.unchecked(past, torch.full((n,), t, device=self.lengths.device))


def _array_or_none(tensor: torch.Tensor) -> np.ndarray | None:
    """Returns the same memory; None on a GPU, or where NumPy has no such dtype."""
    if not tensor.is_cpu:
        return None
    try:
        return tensor.numpy()
    except TypeError:
        return None


def _arrays(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {key: tensor.numpy() for key, tensor in tensors.items()}


class _Rest:
    """The part of a block that is not taken yet."""

    def __init__(self, block: torch.Tensor):
        self._block = block

    def take(self, spec: Spec, *leading: int) -> torch.Tensor:
        """Returns the next tensor `[*leading, *spec.shape]`."""
        shape = torch.Size((*leading, *spec.shape))
        taken = self._block[: shape.numel() * spec.dtype.itemsize]
        self._block = self._block[spec.n_bytes(*leading) :]
        return taken.view(spec.dtype).view(shape)


def no_history(observation: DictTensor) -> TemporalDictTensor:
    """Returns the history before the very first step: [N, 0, ...], with no actions yet."""
    both = {**observation.prepend_key("observation/"), **observation.prepend_key("_observation/")}
    past = {key: v.new_empty(len(v), 0, *v.shape[1:]) for key, v in both.items()}
    return TemporalDictTensor(past)
