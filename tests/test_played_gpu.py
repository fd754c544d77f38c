"""The GPU that the CPU plays notices what a real one would wait for, copy or refuse."""

import pytest
import torch

from tests.played_gpu import GPU, PlayedGPU


def numbers() -> torch.Tensor:
    return torch.tensor([4.0, 0.0, 2.0], device=GPU)


@pytest.mark.parametrize(
    ("use", "crosses"),
    [
        (lambda x: x.to("cuda") + torch.ones(3, device="cuda"), None),
        (lambda x: x[1:].sum().clone() * 2, None),
        (lambda x: x[torch.arange(2, device="cuda")], None),
        (lambda x: x.index_fill_(0, torch.zeros(1, dtype=torch.int64, device="cuda"), 3.0), None),
        (lambda x: x.__setitem__(x > 1, 0.0), None),
        (lambda x: x.copy_(torch.zeros(3)), "to the GPU"),
        (lambda x: x[[0, 2]], "to the GPU"),
        (lambda x: torch._foreach_copy_([x, x], [torch.ones(3), x]), "to the GPU"),
        (lambda x: torch._foreach_copy_([x, x], [x, torch.ones(3)]), "to the GPU"),
        (lambda x: x.to("cpu"), "to the host"),
        (lambda x: x.item() if x.dim() == 0 else x[0].item(), "waits"),
        (lambda x: x.tolist(), "to the host"),
        (lambda x: bool((x > 1).any()), "waits"),
        (lambda x: x[x > 1], "waits"),
        (lambda x: x.nonzero(), "waits"),
        (lambda x: x.unique(), "waits"),
        (lambda x: x.unique(dim=0), "waits"),
        (lambda x: x.unique_consecutive(), "waits"),
        (lambda x: x.long().bincount(), "waits"),
        (lambda x: torch.allclose(x, x), "waits"),
        (lambda x: x.repeat_interleave(x.long()), "waits"),
        (lambda x: x.repeat_interleave(x.long(), output_size=6), None),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_what_crosses_is_noticed(played_gpu: PlayedGPU, use, crosses) -> None:
    x = numbers()
    played_gpu.crossings.clear()
    use(x)
    assert [crosses in line for line in played_gpu.crossings] == ([] if crosses is None else [True])
    if crosses is not None:
        with played_gpu.alone(), pytest.raises(AssertionError, match=crosses):
            use(x)


def test_one_of_two(two_played_gpus: PlayedGPU) -> None:
    gpu, second = two_played_gpus, torch.device("cuda:1")
    x = torch.arange(3, device=second)
    assert x[1:].device == (x * 2)[[0]].device == x.new_zeros(2).device == second
    assert gpu.used == {second}
    gpu.crossings.clear()
    y = x.to("cuda")
    assert gpu.crossings == ["aten._to_copy.default, to the other GPU"]
    assert y.device == GPU
    assert gpu.used == {GPU, second}
    with pytest.raises(RuntimeError, match="expected tensors on cuda:1 alone"):
        x + y
    with pytest.raises(RuntimeError, match="expected tensors on cuda:0 alone"):
        y + x[0]


def test_devices_are_not_mixed(played_gpu: PlayedGPU) -> None:
    with pytest.raises(RuntimeError, match="expected tensors on cuda:0 alone"):
        numbers() + torch.ones(3)
    assert (numbers() + torch.tensor(1.0)).tolist() == [5.0, 1.0, 3.0]


def test_a_module_moves_there(played_gpu: PlayedGPU) -> None:
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        expected = module(torch.ones(1, 3))
        found = module.to("cuda")(torch.ones(1, 3, device="cuda"))
    assert found.device == GPU
    assert torch.equal(found.cpu(), expected)
