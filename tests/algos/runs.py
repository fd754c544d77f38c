"""What tests of training runs share."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from algos import checkpoints
from algos.command_line import RunConfig
from algos.logs import read_table
from rlbatch import DictTensor, RL_Agent
from tests.algos.tasks import COUNTDOWN

_OF_THE_CLOCK = ("seconds", "charts/SPS", "charts/raw_FPS", "charts/UPS")


def contents(folder: Path, algorithm: str) -> dict[str, Any]:
    """Returns all that a run left which has to be the same when it is repeated."""
    content = checkpoints.load(folder, algorithm)
    figures = [
        {name: figure for name, figure in row.items() if name not in _OF_THE_CLOCK}
        for row in read_table(folder / "training.csv")
    ]
    kept = ("model", "optimizer", "others", "generators", "iteration", "n_steps")
    return {"figures": figures, **{key: content[key] for key in kept}}


def assert_same(found: Any, expected: Any) -> None:
    """Asserts that two nested values are equal, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


class Constant(RL_Agent):
    """Always takes the first action, slowly where `wait_s` says so."""

    def __init__(self, device: Any, wait_s: float = 0.0):
        self.wait_s = wait_s

    def __call__(self, state, observation, agent_info, history=None):
        time.sleep(self.wait_s)
        assert not agent_info["stochastic"].any()
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        return DictTensor({"action": action}), DictTensor()

    def update(self, info: Any) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """Of an algorithm that learns nothing."""

    algorithm: ClassVar[str] = "x"


def countdown(**options: Any) -> Config:
    common = {"env_id": COUNTDOWN, "n_envs": 2, "n_processes": 0, "evaluation_episodes": 30}
    return Config(**{**common, **options})


@contextlib.contextmanager
def gradient_norms() -> Iterator[list[float]]:
    """Gives a list of the gradients' lengths, over all weights, in every step of an optimiser."""
    norms: list[float] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield norms
    finally:
        hook.remove()
