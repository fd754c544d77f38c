"""Stacks that are rebuilt are those that an environment makes."""

from functools import partial

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.errors import DeviceMismatchError, DtypeMismatchError, ShapeError
from rlbatch.frames import push_frame, stack_frames


def literal_stack(frames, initial_state, before, b, t):
    """The newest k frames of environment b at step t, of this episode only."""
    k, stack = before.shape[1] + 1, []
    for s in range(t, t - k, -1):
        stack.append(frames[b, s] if s >= 0 else before[b, s])
        if s >= 0 and initial_state[b, s]:
            break
    return [torch.zeros_like(frames[b, 0])] * (k - len(stack)) + stack[::-1]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.bool, torch.float32])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_stacks_equal_a_literal_loop(k, shape, dtype, device):
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(1, 255, (5, 9, *shape), generator=generator).to(dtype)
    before = torch.randint(1, 255, (5, k - 1, *shape), generator=generator).to(dtype)
    begins = torch.rand(5, 9, generator=generator) < 0.3
    if dtype.is_floating_point:  # What is forgotten need not be a number that can be multiplied.
        before[:], frames[:, :4] = torch.inf, -torch.inf
    found = stack_frames(frames.to(device), begins.to(device), before.to(device)).cpu()
    assert found.shape == (5, 9, k, *shape)
    assert found.dtype == dtype
    stack = before
    for t in range(9):
        pushed = push_frame(stack, frames[:, t], begins[:, t])
        for b in range(5):
            expected = torch.stack(literal_stack(frames, begins, before, b, t))
            assert torch.equal(found[b, t], expected)
        assert torch.equal(found[:, t], pushed)
        stack = pushed[:, 1:]


@pytest.mark.parametrize("life_loss_info", [False, True])
def test_they_are_those_of_an_environment(life_loss_info):
    pytest.importorskip("ale_py")
    from rlbatch.envs.atari import AtariEnv

    limit = 1_000 if life_loss_info else 30  # A life takes about 40 steps.
    options = {"num_threads": 1, "max_num_frames_per_episode": limit, "noop_max": 0}
    create = partial(AtariEnv, "breakout", 3, seed=1, life_loss_info=life_loss_info, **options)
    stacking, single = create(stack_num=4), create(stack_num=1)
    seen, (observation, _) = [stacking.reset()[0]], single.reset()
    frames, begins = [observation["frame"][:, 0]], [observation["initial_state"]]
    steps = [observation["episode_length"]]
    for numbers in np.random.default_rng(0).integers(0, 4, (limit, 3)):
        action = DictTensor({"action": torch.from_numpy(numbers)})
        seen.append(stacking.step(action)[1][0])
        observation = single.step(action)[1][0]
        frames.append(observation["frame"][:, 0])
        begins.append(observation["initial_state"])
        steps.append(observation["episode_length"])
    begins, whole = torch.stack(begins, 1), torch.stack(steps, 1) == 0
    assert begins.sum() > 6
    assert ((begins & ~whole).sum() > 6) == life_loss_info
    before = torch.zeros(3, 3, 84, 84, dtype=torch.uint8)
    found = stack_frames(torch.stack(frames, 1), begins & whole, before)
    assert torch.equal(found, torch.stack([one["frame"] for one in seen], 1))


def test_devices_that_differ():
    frames, begins = torch.zeros(2, 5, 4), torch.zeros(2, 5, dtype=torch.bool)
    with pytest.raises(DeviceMismatchError, match="frames before: .* on cpu, got one on meta"):
        stack_frames(frames, begins, torch.zeros(2, 3, 4, device="meta"))
    with pytest.raises(DeviceMismatchError, match="initial_state: .* on cpu, got one on meta"):
        push_frame(frames, frames[:, 0], begins[:, 0].to("meta"))


def test_stacks_of_no_steps():
    frames, begins = torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool)
    assert stack_frames(frames, begins, torch.zeros(2, 3, 4)).shape == (2, 0, 4, 4)


def test_shapes_that_do_not_fit():
    frames, begins = torch.zeros(2, 5, 4), torch.zeros(2, 5, dtype=torch.bool)
    with pytest.raises(ShapeError, match="frames before"):
        stack_frames(frames, begins, torch.zeros(2, 3, 5))
    with pytest.raises(ShapeError, match="frames before"):
        stack_frames(frames, begins, torch.zeros(3, 3, 4))
    with pytest.raises(DtypeMismatchError, match="float32"):
        stack_frames(frames, begins, torch.zeros(2, 3, 4, dtype=torch.uint8))
    with pytest.raises(DtypeMismatchError, match="initial_state: expected torch.bool, got .*uint8"):
        stack_frames(frames, begins.byte(), torch.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match="initial_state"):
        stack_frames(frames, begins[:, :4], torch.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match="initial_state"):
        push_frame(torch.zeros(2, 3, 4), torch.zeros(2, 4), begins[0, :3])


def test_a_frame_in_a_stack_of_one_is_suspected():
    expected = (
        r"^frames before: expected \('B', 'k - 1', 1, 4\), as a frame is \(1, 4\), got \(2, 3, 4\)"
        "; is the frame still in a stack of one"
    )
    with pytest.raises(ShapeError, match=expected):
        push_frame(torch.zeros(2, 3, 4), torch.zeros(2, 1, 4), torch.tensor([True, False]))
    begins = torch.zeros(2, 5, dtype=torch.bool)
    with pytest.raises(ShapeError, match=expected):
        stack_frames(torch.zeros(2, 5, 1, 4), begins, torch.zeros(2, 3, 4))


def test_frames_before_without_a_time_are_refused():
    with pytest.raises(ShapeError, match="frames before: expected"):
        push_frame(torch.zeros(2), torch.zeros(2), torch.tensor([True, False]))


def test_complex_nan_of_an_earlier_episode_is_forgotten():
    before = torch.full((1, 2), complex("nan"))
    stack = push_frame(before, torch.zeros(1, dtype=torch.complex64), torch.tensor([True]))
    assert torch.equal(stack, torch.zeros(1, 3, dtype=torch.complex64))
