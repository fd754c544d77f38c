"""The options that all examples share, and how they are read from the command line."""

from __future__ import annotations

import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar

import tyro

from algos import checkpoints
from algos.environments import frames_per_step, is_atari, reward_threshold
from rlbatch.errors import as_present_device


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What a run needs whatever the algorithm is; an algorithm's `Config` adds its own."""

    atari: ClassVar[dict[str, Any]] = {}
    """Options whose defaults are others for Atari games."""
    at_least_1: ClassVar[tuple[str, ...]] = (
        *("total_steps", "n_envs", "n_threads", "evaluation_episodes", "evaluation_timesteps"),
        *("evaluate_every", "checkpoint_every", "log_every"),
    )
    """Options that count something there has to be."""
    positive: ClassVar[tuple[str, ...]] = ("learning_rate", "max_gradient_norm")
    """Options that are more than 0, where an algorithm has them."""
    fractions: ClassVar[tuple[str, ...]] = ("discount",)
    """Options from 0 to 1."""
    most: ClassVar[dict[str, int]] = {"seed": 2**64 - 1, "n_threads": 1024}
    """Options that have a limit."""
    may_be_infinite: ClassVar[tuple[str, ...]] = ("target_return", "max_gradient_norm")
    devices: ClassVar[tuple[str, ...]] = ("device", "batcher_device", "evaluation_device")
    """Options that name devices."""

    env_id: str = "CartPole-v1"
    """Environment, as registered with Gymnasium, or module:id; or an Atari game, such as pong or
    PongNoFrameskip-v4, which are the same, or ALE/Pong-v5 with sticky actions."""
    seed: int = 0
    """Everything random in the run follows from this number."""
    total_steps: int = 1_000_000
    """Training ends after this many environment steps, summed over all environments."""
    n_envs: int = 16
    """Environments to train in, over all processes; a multiple of n-processes."""
    n_processes: int = 2
    """Processes that acquire trajectories; 0 acquires in the main process, for a debugger."""
    n_threads: int = 1
    """Threads of PyTorch in the main process, and in evaluations; for small networks more only get
    in the way."""
    device: str = "cpu"
    """Where the loss is computed."""
    batcher_device: str = "cpu"
    """Where the agents act in training."""
    evaluation_device: str = "cpu"
    """Where the agent acts in evaluations."""
    evaluation_processes: int | None = None
    """Processes that evaluate beside the training; with 0 the training waits. None takes 0 where
    n-processes is 0, and else 1."""
    evaluation_episodes: int = 100
    """Complete episodes per evaluation, played side by side, a multiple of evaluation-processes;
    without a limit of the environment's own they are cut after 27,000 steps."""
    evaluation_timesteps: int = 500
    """Steps of an evaluation that are stored at once; longer episodes take several turns."""
    evaluate_every: int = 10
    """Iterations from the start of an evaluation, beside the training, to that of the next."""
    greedy_evaluation: bool = True
    """Whether evaluations take the likeliest action instead of drawing one."""
    target_return: float | Literal["threshold"] | None = "threshold"
    """Training ends when an evaluation and a second one with fresh episodes both reach this mean
    return; "threshold" is what the environment names itself (475 for CartPole-v1), None never."""
    checkpoint_dir: str | None = None
    """The run's folder: checkpoint, config, logs and curve. None is
    runs/{env}__{algorithm}__{seed}__{time}, or the folder of the run that is resumed."""
    checkpoint_every: int = 50
    """Iterations from one checkpoint to the next; there is also one at the end. A multiple of
    log-every."""
    log_every: int = 1
    """Iterations that a row of the log is about."""
    track: bool = False
    """Whether the log goes to Weights & Biases as well."""
    capture_video: bool = False
    """Whether an episode of the final weights is written to episode.mp4."""
    resume: str | None = None
    """Checkpoint or folder of a run to continue; its options hold where none are given here."""
    evaluate: str | None = None
    """Checkpoint or folder of a run to evaluate, and nothing else; its options hold likewise."""
    torch_deterministic: bool = True
    """Whether PyTorch is told to use deterministic algorithms; on CUDA these can be slower."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_sizes()
        for name, divisor in (
            ("n_envs", "n_processes"),
            ("evaluation_episodes", "evaluation_processes"),
            ("checkpoint_every", "log_every"),
        ):
            n, of = getattr(self, name), getattr(self, divisor)
            if of and n % of:
                raise ValueError(f"{name}: expected a multiple of {divisor} ({of}), got {n}")
        if self.resume is not None and self.evaluate is not None:
            raise ValueError(f"evaluate: expected no resume beside it, got {self.resume}")
        if getattr(self, "normalize_frames", False) and not is_atari(self.env_id):
            raise ValueError(f"normalize_frames: expected an Atari game, got {self.env_id}")

    def _check_numbers(self) -> None:
        least = dict.fromkeys(self.at_least_1, 1)
        least |= dict.fromkeys(("n_processes", "evaluation_processes", "seed"), 0)
        for name, number in least.items():
            if (getattr(self, name) or 0) < number:
                raise ValueError(f"{name}: expected at least {number}, got {getattr(self, name)}")
        for name in self.positive:
            if not getattr(self, name, 1.0) > 0:  # Nor nan.
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name)}")
        for name in self.fractions:
            if not 0 <= getattr(self, name, 0.0) <= 1:
                raise ValueError(f"{name}: expected from 0 to 1, got {getattr(self, name)}")

    def _check_sizes(self) -> None:
        for name, most in self.most.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name}: expected at most {most}, got {getattr(self, name)}")
        for name, value in vars(self).items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{name}: expected a number, got nan")
            if value in (math.inf, -math.inf) and name not in self.may_be_infinite:
                raise ValueError(f"{name}: expected a finite number, got {value}")

    def check_devices(self) -> None:
        """Checks that the devices are there: not when it is made, as others may read the options.

        Raises:
            ValueError: One is none, or is not there.
        """
        for name in self.devices:
            as_present_device(getattr(self, name), name)

    @property
    def n_envs_per_process(self) -> int:
        """How many environments each process of the training batcher has."""
        return self.n_envs // max(self.n_processes, 1)

    @property
    def n_evaluation_processes(self) -> int:
        """How many processes evaluate; 0 where the training waits."""
        if self.evaluation_processes is None:
            return min(self.n_processes, 1)
        return self.evaluation_processes

    @property
    def longest_episode(self) -> float:
        """Steps after which an episode is cut in training, whatever the environment's own limit."""
        return float("inf")

    @property
    def frames_per_step(self) -> int:
        """Frames of an emulator per step; 1 where there is none."""
        return frames_per_step(self.env_id)

    @property
    def target(self) -> float:
        """The mean return that ends the training; infinite if none does."""
        target = self.target_return
        if target == "threshold":
            target = reward_threshold(self.env_id)
        return float("inf") if target is None else float(target)


C = TypeVar("C", bound=RunConfig)


def parse(config_type: type[C], algorithm: str, args: Sequence[str] | None = None) -> C:
    """Reads the command line.

    With `--resume` or `--evaluate` the options of that run take the place of the defaults, with an
    Atari game `config_type.atari` does.

    Args:
        config_type: The algorithm's `Config`.
        algorithm: Its name.
        args: The command line; None for the program's own.

    Raises:
        ImportError: The program is a copy of the algorithm, of which this one is still a part.
    """
    _check_is_own(algorithm)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A "±" that it can not write is no reason to end.
            stream.reconfigure(errors="replace")
    program = f"python -m algos.{algorithm}"
    basis, _ = tyro.cli(_Basis, args=args, return_unknown_args=True, add_help=False)
    path = basis.evaluate if basis.resume is None else basis.resume
    if path is not None:
        here = {"checkpoint_dir": None, "resume": basis.resume, "evaluate": basis.evaluate}
        content = checkpoints.load(path, algorithm, mmap=True)
        default = saved_config(config_type, content, path, **here)
    elif basis.env_id and is_atari(basis.env_id):
        default = config_type(**config_type.atari, env_id=basis.env_id)
    else:
        default = config_type()
    return tyro.cli(config_type, prog=program, args=args, default=default)


def saved_config(config_type: type[C], content: dict[str, Any], path: str, **others: Any) -> C:
    """Returns the options of a checkpoint, with some others.

    Raises:
        ValueError: It has options that there are not, being of another version.
    """
    saved, there = content["config"], {field.name for field in dataclasses.fields(config_type)}
    if unknown := sorted(saved.keys() - there):
        version = content["rlbatch_version"]
        raise ValueError(f"{path}: expected options of today, got {unknown} of rlbatch {version}")
    return config_type(**{**saved, **others})


@dataclasses.dataclass
class _Basis:
    """The options that decide on the defaults of the others."""

    env_id: str | None = None
    resume: str | None = None
    evaluate: str | None = None


def _check_is_own(algorithm: str) -> None:
    """Stops a copied folder that would train what it was copied from, without a word.

    Raises:
        ImportError: The program is such a folder.
    """
    package = getattr(sys.modules["__main__"].__spec__, "parent", "")
    if package.startswith("algos.") and package != f"algos.{algorithm}":
        name = package.removeprefix("algos.")
        raise ImportError(
            f"{package}: expected its files to name it, got {algorithm}: "
            f"sed -i 's/\\b{algorithm}\\b/{name}/g' algos/{name}/*.py"
        )
