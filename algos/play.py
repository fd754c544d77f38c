"""`python -m algos.play CHECKPOINT`: plays an episode with the weights of a run, and films it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import tyro

from algos import checkpoints
from algos.command_line import saved_config
from algos.videos import record_episode


@dataclass(frozen=True)
class Options:
    """Plays an episode with the weights of a run, and films it."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    """A checkpoint, or the folder of a run."""
    output: Path = Path("episode.mp4")
    """The film; .mp4 or .gif."""
    seed: int = 0
    """Of the episode; from 0 to 2^63 - 1."""
    stochastic: bool | None = None
    """Whether the agent draws its actions, or takes the likeliest; None for as in the run's
    evaluations."""

    def __post_init__(self) -> None:
        if self.output.suffix not in (".mp4", ".gif"):
            raise ValueError(f"output: expected a name in .mp4 or .gif, got {self.output}")
        if not self.output.parent.is_dir():
            raise ValueError(f"output: expected a folder that exists, got {self.output.parent}")
        if not 0 <= self.seed < 2**63:  # Of an int64, as agents get it.
            raise ValueError(f"seed: expected from 0 to 2^63 - 1, got {self.seed}")


def play(options: Options) -> float:
    """Plays an episode, and returns its return.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: It is no checkpoint, or one of another version, or its environment cannot be
            filmed.
    """
    content = checkpoints.load(options.checkpoint)
    algorithm = import_module(f"algos.{content['algorithm']}.train")
    config = saved_config(algorithm.Config, content, options.checkpoint)
    agent = algorithm.agent_factory(config)(device="cpu")
    agent.update(content["model"])
    draws = not config.greedy_evaluation if options.stochastic is None else options.stochastic
    return record_episode(options.output, agent, content["env_id"], options.seed, draws)


if __name__ == "__main__":
    options = tyro.cli(Options, prog="python -m algos.play")
    print(f"{options.output}: an episode of {play(options):.1f}")
