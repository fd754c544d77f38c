"""Stacks of frames, made where they are needed from frames that are stored once.

An environment that stacks its last k frames hands each of them out k times, and a batcher stores
an observation before and after every step: 2k copies. With `stack_num=1` in the environment, the
frames before in the agent's state, and `stack_frames` on what was acquired, it is 2.

    stacks of 4:   observation/frame [B, T, 4, 84, 84]
    single frames: observation/frame [B, T, 1, 84, 84], agent_state/frames [B, 3, 84, 84] once

With `stack_num=1` an observation is a stack of one frame; take the frame out: `frame[:, 0]` for
`push_frame`, `frame[:, :, 0]` for `stack_frames`. docs/atari.md has the whole of it.

With `life_loss_info` a lost life begins what counts as an episode, but the environment's stacks go
on: there `initial_state & (episode_length == 0)` stands in for `initial_state`. After the random
steps of `decorrelate_steps` an environment's stack holds the frames before the first observation;
here they count as 0.
"""

from __future__ import annotations

import torch

from rlbatch._checks import check_device, check_dtype, check_shape
from rlbatch._rows import SIGNED
from rlbatch.errors import ShapeError


def push_frame(
    frames: torch.Tensor, frame: torch.Tensor, initial_state: torch.Tensor
) -> torch.Tensor:
    """Adds a frame to the ones before it.

    Args:
        frames: [B, k - 1, ...]: the frames before, the newest last.
        frame: [B, ...], of the same dtype, such as `frame[:, 0]` with `stack_num=1`.
        initial_state: [B] bool: where an episode begins; the frames before count as 0 there.

    Returns:
        [B, k, ...]: the stack. `stack[:, 1:]` is what to keep for the next step.

    Raises:
        ShapeError: The shapes do not fit.
        DtypeMismatchError: Frames of two dtypes.
        DeviceMismatchError: Tensors on different devices.

    Example:
        >>> frames = torch.tensor([[1, 2], [1, 2]])
        >>> push_frame(frames, torch.tensor([3, 3]), torch.tensor([False, True]))
        tensor([[1, 2, 3],
                [0, 0, 3]])
    """
    _check(frames, frame.unsqueeze(1), initial_state.unsqueeze(1))
    stack = torch.cat([frames, frame.unsqueeze(1)], 1)
    _forget(stack[:, :-1], initial_state)
    return stack


def stack_frames(
    frames: torch.Tensor, initial_state: torch.Tensor, before: torch.Tensor
) -> torch.Tensor:
    """Returns the stack that was seen at every step of a trajectory.

    Take it for some rows at a time, such as a minibatch: the result is k times as large.

    Args:
        frames: [B, T, ...]: single frames, such as `observation/frame[:, :, 0]` with `stack_num=1`.
        initial_state: [B, T] bool, `observation/initial_state`.
        before: [B, k - 1, ...]: the frames before the first step, the newest last, such as
            `agent_state/frames`.

    Returns:
        [B, T, k, ...]: as from an environment with `stack_num=k`; frames of an earlier episode
        are 0. What came after each step is `torch.cat([stacks[:, :, 1:], following], 2)`, with
        `_observation/frame` [B, T, 1, ...] as `following`.

    Raises:
        ShapeError: The shapes do not fit.
        DtypeMismatchError: Frames of two dtypes.
        DeviceMismatchError: Tensors on different devices.

    Example:
        >>> frames = torch.tensor([[3, 4, 5]])
        >>> begins = torch.tensor([[False, True, False]])
        >>> stack_frames(frames, begins, torch.tensor([[2]]))
        tensor([[[2, 3],
                 [0, 4],
                 [4, 5]]])
    """
    _check(before, frames, initial_state)
    n_before, n_steps = before.shape[1], frames.shape[1]
    row = torch.cat([before, frames], 1)
    # Episodes are numbered; what comes before the trajectory belongs to its first one.
    episode = initial_state.long().cumsum(1)
    episode = torch.cat([episode.new_zeros(len(episode), n_before), episode], 1)
    stacks = torch.stack(_shifts(row, n_steps), 2)
    _forget(stacks, torch.stack(_shifts(episode, n_steps), 2) != episode[:, n_before:, None])
    return stacks


def _shifts(row: torch.Tensor, n_steps: int) -> list[torch.Tensor]:
    """Returns views of so many steps [B, n_steps, ...], each beginning one later."""
    return [row[:, first : first + n_steps] for first in range(row.shape[1] - n_steps + 1)]


def _forget(frames: torch.Tensor, is_gone: torch.Tensor) -> None:
    """Writes 0 to some frames, [*is_gone.shape, ...]."""
    is_gone = is_gone.reshape(*is_gone.shape, *[1] * (frames.dim() - is_gone.dim()))
    if frames.is_floating_point() or frames.is_complex():
        frames.masked_fill_(is_gone, 0)
    else:
        # Several times as fast on a CPU; but NaN times 0 is not 0. CUDA multiplies no unsigned
        # numbers but bytes; signed ones of the same bits it does.
        frames = frames.view(SIGNED.get(frames.dtype, frames.dtype))
        frames.mul_((~is_gone).to(frames.dtype))


def _check(before: torch.Tensor, frames: torch.Tensor, initial_state: torch.Tensor) -> None:
    if (
        before.dim() < 2
        or before.shape[:1] + before.shape[2:] != frames.shape[:1] + frames.shape[2:]
    ):
        frame = tuple(frames.shape[2:])
        is_stack = frame == (1, *before.shape[2:])
        hint = "; is the frame still in a stack of one, with stack_num=1?" if is_stack else ""
        raise ShapeError(
            f"frames before: expected {('B', 'k - 1', *frame)}, as a frame is {frame}, got "
            f"{tuple(before.shape)}{hint}"
        )
    check_device("frames before", before, frames.device)
    check_device("initial_state", initial_state, frames.device)
    check_dtype("frames before", before, frames.dtype)
    check_dtype("initial_state", initial_state, torch.bool)  # ~ of a number is another number.
    check_shape("initial_state", initial_state, frames.shape[:2])
