"""The options that all examples share, and how they are read from the command line."""

from __future__ import annotations

import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

import tyro

from algos import checkpoints
from algos.environments import frames_per_step, is_atari, reward_threshold
from rlbatch.devices import as_present_device


class Limits(NamedTuple):
    """The numbers that an option may be, written on its type. Others are finite, and no more."""

    at_least: float = -math.inf
    at_most: float = math.inf
    more_than: float | None = None
    is_finite: bool = True

    def check(self, name: str, value: float) -> None:
        """Checks a number that is given for the option `name`.

        Raises:
            ValueError: It is beyond the limits.
        """
        if math.isnan(value):
            raise ValueError(f"{name}: expected a number, got nan")
        if self.is_finite and math.isinf(value):
            raise ValueError(f"{name}: expected a finite number, got {value}")
        if value < self.at_least:
            raise ValueError(f"{name}: expected at least {self.at_least}, got {value}")
        if value > self.at_most:
            raise ValueError(f"{name}: expected at most {self.at_most}, got {value}")
        if self.more_than is not None and value <= self.more_than:
            raise ValueError(f"{name}: expected more than {self.more_than}, got {value}")


Count = Annotated[int, Limits(at_least=1)]
Fraction = Annotated[float, Limits(at_least=0, at_most=1)]
Positive = Annotated[float, Limits(more_than=0)]
# Which may also be infinite, for none.
Maximum = Annotated[float, Limits(more_than=0, is_finite=False)]


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """What a run needs whatever the algorithm is; an algorithm's `Config` adds its own."""

    algorithm: ClassVar[str]
    """Its name, which is that of its folder."""
    atari: ClassVar[dict[str, Any]] = {}
    """Options whose defaults are others for Atari games."""
    devices: ClassVar[tuple[str, ...]] = ("device", "batcher_device", "evaluation_device")
    """Options that name devices."""

    env_id: str = "CartPole-v1"
    """Environment, as registered with Gymnasium, or module:id; or an Atari game, such as pong or
    PongNoFrameskip-v4, which are the same, or ALE/Pong-v5 with sticky actions."""
    seed: Annotated[int, Limits(at_least=0, at_most=2**64 - 1)] = 0
    """Everything random in the run follows from this number."""
    total_steps: Count = 1_000_000
    """Training ends after this many environment steps, summed over all environments."""
    n_envs: Count = 16
    """Environments to train in, over all processes; a multiple of n-processes."""
    n_processes: Annotated[int, Limits(at_least=0)] = 2
    """Processes that acquire trajectories; 0 acquires in the main process, for a debugger."""
    n_threads: Annotated[int, Limits(at_least=1, at_most=1024)] = 1
    """Threads of PyTorch in the main process, and in evaluations; for small networks more only get
    in the way."""
    device: str = "cpu"
    """Where the loss is computed."""
    batcher_device: str = "cpu"
    """Where the agents act in training."""
    evaluation_device: str = "cpu"
    """Where the agent acts in evaluations."""
    evaluation_processes: Annotated[int | None, Limits(at_least=0)] = None
    """Processes that evaluate beside the training; with 0 the training waits. None takes 0 where
    n-processes is 0, and else 1."""
    evaluation_episodes: Count = 100
    """Complete episodes per evaluation, played side by side, a multiple of evaluation-processes;
    without a limit of the environment's own they are cut after 27,000 steps."""
    evaluation_timesteps: Count = 500
    """Steps of an evaluation that are stored at once; longer episodes take several turns."""
    evaluate_every: Count = 10
    """Iterations from the start of an evaluation, beside the training, to that of the next."""
    greedy_evaluation: bool = True
    """Whether evaluations take the likeliest action instead of drawing one."""
    target_return: Annotated[float | Literal["threshold"] | None, Limits(is_finite=False)] = (
        "threshold"
    )
    """Training ends when an evaluation and a second one with fresh episodes both reach this mean
    return; "threshold" is what the environment names itself (475 for CartPole-v1), None never."""
    checkpoint_dir: str | None = None
    """The run's folder: checkpoint, config, logs and curve. None is
    runs/{env}__{algorithm}__{seed}__{time}, or the folder of the run that is resumed."""
    checkpoint_every: Count = 50
    """Iterations from one checkpoint to the next; there is also one at the end. A multiple of
    log-every."""
    log_every: Count = 1
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
        hints = get_type_hints(type(self), include_extras=True)
        for name, value in vars(self).items():
            if isinstance(value, (int, float)):
                limits = getattr(hints[name], "__metadata__", [Limits()])[0]
                limits.check(name, value)
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


def parse(config_type: type[C], args: Sequence[str] | None = None) -> C:
    """Reads the command line.

    With `--resume` or `--evaluate` the options of that run take the place of the defaults, with an
    Atari game `config_type.atari` does.

    Args:
        config_type: The algorithm's `Config`.
        args: The command line; None for the program's own.

    Raises:
        ImportError: The program, whose own command line it is, is a copy of the algorithm, of which
            this one is still a part.
    """
    if args is None:
        _check_is_own(config_type.algorithm)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A "±" that it cannot write is no reason to end.
            stream.reconfigure(errors="replace")
    program = f"python -m algos.{config_type.algorithm}"
    basis, _ = tyro.cli(_Basis, args=args, return_unknown_args=True, add_help=False)
    path = basis.evaluate if basis.resume is None else basis.resume
    if path is not None:
        here = {"checkpoint_dir": None, "resume": basis.resume, "evaluate": basis.evaluate}
        content = checkpoints.load(path, config_type.algorithm, mmap=True)
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
