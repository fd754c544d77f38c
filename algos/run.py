"""One training run: what happens around the learning, the same for every algorithm.

NOTE [ segments ]

Environments that reset themselves are in the middle of an episode when a checkpoint is written, and
what is in them is not saved. So all of them begin anew, with new seeds, after every
`checkpoint_every` iterations: a run that is resumed there goes on as the one that was never
interrupted did.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

import rlbatch
from algos import checkpoints
from algos.command_line import RunConfig
from algos.curves import draw_curve
from algos.environments import Episodes, longest_episode, whole_episodes_ended
from algos.evaluation import Evaluation, Score
from algos.folders import open_folder
from algos.logs import Log
from algos.reproducibility import get_generators, set_generators
from algos.stopping import StopRequest
from algos.videos import check_can_draw, record_episode
from rlbatch import RL_Agent, TemporalDictTensor


class Result(NamedTuple):
    """How a run ended.

    Attributes:
        folder: Where everything is that it left.
        score: Of the final weights, over fresh episodes.
        n_iterations: Updates of the weights.
        n_steps: Environment steps in training.
        seconds: Of training, evaluations included.
    """

    folder: Path
    score: Score
    n_iterations: int
    n_steps: int
    seconds: float


class Run:
    """Counts, logs, evaluates and saves. Owns the log and the evaluation; use it in a `with`.

    Every `evaluate_every` iterations it takes the score of the evaluation that was started as many
    iterations ago, and starts the next one. So the score comes from older weights, but always at
    the same iteration, however fast the machine is.

    Ctrl-C or SIGTERM stops it after the iteration that is under way, with a checkpoint; the second
    one at once.

    Args:
        config: Of the run. With `config.resume`, model, optimizer, counters and random generators
            are loaded.
        model: What is trained.
        optimizer: What trains it.
        create_agent: Returns an agent for an evaluation; called with `device`.
        others: What else a checkpoint holds, by name; each has `state_dict` and `load_state_dict`.

    Attributes:
        iteration: Updates of the weights so far.
        begins_segment, ends_segment: See NOTE [ segments ].
        n_steps: Environment steps in training so far.
        solved: Whether `config.target` has been reached.

    Raises:
        ValueError: The run to be resumed was in another environment, or its checkpoint lacks one of
            `others`; or an environment that is to be filmed cannot draw itself.
        FileExistsError, NotADirectoryError, RuntimeError: See `folders`.
    """

    def __init__(  # noqa: PLR0913 - what a checkpoint holds
        self,
        config: RunConfig,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        create_agent: Callable[..., RL_Agent],
        others: Mapping[str, Any] | None = None,
    ):
        self.config = config
        self._others = dict(others or {})
        self._model, self._optimizer = model, optimizer
        self.iteration, self.n_steps, self._seconds, self.solved = 0, 0, 0.0, False
        self._under_way: Any = None  # The evaluation whose score is to be taken.
        # Its score, if `finish` took it before it was due.
        self._reported: Score | None = None
        self._is_due = False  # An evaluation of the present weights is due, but not begun.
        self._n_updates = 0
        self._n_rows: Mapping[str, int] = {}  # Of tables, when the checkpoint was written.
        self._final: tuple[int, Score] | None = None  # The iteration, and the score of its weights.
        self._saved_at: int | None = None  # The iteration.
        self._averages = Averages()
        if config.resume is not None:
            try:
                self._restore(checkpoints.load(config.resume, config.algorithm, config.env_id))
            except KeyError as error:
                raise ValueError(
                    f"resume: expected a checkpoint of this version, got one without {error}"
                ) from error
        if config.capture_video:  # Now, not after the training.
            check_can_draw(config.env_id)
        self._first_iteration = self.iteration
        self._target = config.target
        self._score: Score | None = None  # Of an evaluation that ended before it was due.
        self._latest = "-"
        self._stop = StopRequest()
        self._create_agent = create_agent
        with ExitStack() as opened:  # Closes them where one of them fails.
            opened.push(self._stop.pass_on)  # When all of them are closed.
            self.folder = opened.enter_context(open_folder(config))
            opened.callback(self._forget_unless_begun)
            self._log = Log(
                self.folder, config.total_steps, self.n_steps, self._n_rows, config.track
            )
            opened.callback(self._log.close)
            self._evaluation = Evaluation(config, create_agent)
            opened.callback(self._evaluation.close)
            if self._under_way:
                self._start_evaluation()
            self._opened = opened.pop_all()
        self._tell_what_may_surprise()
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of training so far, before it was resumed included."""
        return self._seconds + time.perf_counter() - self._started

    @property
    def finished(self) -> bool:
        """Whether the training has come to its end."""
        return self.solved or self.n_steps >= self.config.total_steps

    @property
    def begins_segment(self) -> bool:
        """Whether environments that reset themselves are to begin anew."""
        is_first = self.iteration == self._first_iteration
        return is_first or self.iteration % self.config.checkpoint_every == 0

    @property
    def ends_segment(self) -> bool:
        """Whether the iteration that is under way is the last one of a segment."""
        return (self.iteration + 1) % self.config.checkpoint_every == 0

    def report(
        self,
        steps: TemporalDictTensor,
        figures: Mapping[str, float | Tensor],
        n_updates: int = 1,
        n_steps: int | None = None,
    ) -> None:
        """Counts an iteration, logs it, and evaluates and saves when it is time.

        Args:
            steps: [B, T, ...], what was acquired since the last one.
            figures: To log beside returns and speed, by names such as `losses/policy`.
            n_updates: Of the weights.
            n_steps: How many steps of environments; None to add up lengths, for which a GPU is
                waited for.
        """
        self.iteration += 1
        self._n_updates += n_updates
        self.n_steps += int(steps.lengths.sum()) if n_steps is None else n_steps
        self._averages.add(steps, figures)
        if self.iteration % self.config.log_every == 0:
            self._write_row()
        self._score = self._score or self._evaluation.poll()
        self._is_due = self.iteration % self.config.evaluate_every == 0
        if self._is_due and not self._stop.signal:
            self._evaluate()
        if self.iteration % self.config.checkpoint_every == 0 or self._stop.signal:
            self._save()
        self._stop_if_asked()

    def finish(self) -> Result:
        """Scores the final weights, saves them, and draws the curve."""
        if self._averages.n_iterations:
            self._write_row()
        if self._saved_at != self.iteration:
            self._save()  # Before an evaluation, which may take long.
        self._stop.release()  # From here on there is nothing to lose.
        self._stop_if_asked()
        self._reported = self._take_score() or self._reported
        score = self._final_score()
        result = Result(self.folder, score, self.iteration, self.n_steps, self.seconds)
        self._save()
        self._log.say(
            f"{score} after {self.n_steps:,} steps, {result.seconds:.0f} s: {self.folder}"
        )
        draw_curve(self.folder)
        if self.config.capture_video:
            self._capture_video()
        return result

    def __enter__(self) -> Self:
        self._stop.watch()
        self._opened.callback(self._stop.release)
        if self._is_due:  # The run that is resumed was stopped before it.
            try:
                self._evaluate()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(self, *details: Any) -> None:
        self._opened.__exit__(*details)

    def _forget_unless_begun(self) -> None:
        """Leaves the folder to another run, where this one failed before its first iteration."""
        if not self.iteration and self.config.resume is None:
            (self.folder / "config.json").unlink(missing_ok=True)

    def _stop_if_asked(self) -> None:
        if self._stop.signal:
            self._log.say(
                f"stopped after {self.n_steps:,} steps; go on with --resume {self.folder}"
            )
            self._stop.act()

    def _tell_what_may_surprise(self) -> None:
        if self.solved:
            self._log.say(
                f"resumed where the score had reached {self.config.target:g}: it goes on with a "
                "higher --target-return alone"
            )
        longest = self.config.longest_episode
        is_between = self.iteration % self.config.checkpoint_every != 0
        if is_between and longest < math.inf and not self.finished:
            self._log.say(
                f"resumed at iteration {self.iteration:,}, where the run ended: environments begin "
                "anew here, which they do not in one that goes on, as it is no multiple of "
                f"--checkpoint-every {self.config.checkpoint_every}; so results differ"
            )
        if longest < longest_episode(self.config.env_id):
            self._log.say(
                f"in training episodes are cut after {longest:,} steps, at checkpoints, and only "
                "those that end before have returns; see --checkpoint-every"
            )

    def _write_row(self) -> None:
        charts, figures = self._averages.take()  # Before the clock is read: it waits for a GPU.
        seconds = self.seconds
        speed = {
            "charts/SPS": self.n_steps / seconds,
            "charts/raw_FPS": self.n_steps * self.config.frames_per_step / seconds,
            "charts/UPS": self._n_updates / seconds,
        }
        self._log.write("training", self.n_steps, seconds, {**charts, **speed, **figures})
        latest = charts["charts/episodic_return"]
        if not math.isnan(latest):
            self._latest = f"{latest:.1f}"
        line = f"{speed['charts/SPS']:,.0f} steps/s  {speed['charts/UPS']:,.0f} updates/s"
        if self.config.frames_per_step > 1:
            line += f"  {speed['charts/raw_FPS']:,.0f} frames/s"
        if "charts/policy_lag" in figures:
            line += f"  lag {figures['charts/policy_lag']:.1f}"
        self._log.show(self.n_steps, latest=self._latest, speed=line)

    def _capture_video(self) -> None:
        agent = self._create_agent(device="cpu")
        agent.update(self._model.state_dict())
        path = self.folder / "episode.mp4"
        draws = not self.config.greedy_evaluation
        found = record_episode(path, agent, self.config.env_id, self.config.seed, draws)
        self._log.say(f"{path}: an episode of {found:.1f}")

    def _evaluate(self) -> None:
        score, self._reported = self._take_score() or self._reported, None
        self._is_due = False
        # The weights have changed since it was started, and the best of many scores flatters.
        if score and score.mean >= self._target and self._final_score().mean >= self._target:
            self.solved = True
            return
        self._under_way = {
            "weights": {name: tensor.clone() for name, tensor in self._model.state_dict().items()},
            "iteration": self.iteration,
            "n_steps": self.n_steps,
            "seconds": self.seconds,
        }
        self._start_evaluation()

    def _start_evaluation(self) -> None:
        weights, iteration = self._under_way["weights"], self._under_way["iteration"]
        self._evaluation.start(weights, Episodes.EVALUATION, iteration)

    def _take_score(self) -> Score | None:
        """Waits for the evaluation that is under way, if there is one.

        Raises:
            KeyboardInterrupt: The run is to stop, for which it does not wait.
        """
        interrupt: KeyboardInterrupt | None = None
        try:
            self._stop.interrupts = True
            score, self._score = self._score or self._evaluation.finish(), None
        except KeyboardInterrupt as error:
            interrupt = error
        finally:
            self._stop.interrupts = False
        if interrupt:
            self._save()
            self._stop_if_asked()  # Out here, so that there is one traceback.
            raise interrupt
        evaluated, self._under_way = self._under_way, None
        if score is not None:
            self._report_score(score, evaluated["n_steps"], evaluated["seconds"])
        return score

    def _final_score(self) -> Score:
        """Returns the score of the weights as they are, over episodes that nobody has seen."""
        if self._final is None or self._final[0] != self.iteration:
            weights = self._model.state_dict()
            score = self._evaluation.run(weights, Episodes.FINAL_EVALUATION, self.iteration)
            self._report_score(score, self.n_steps, self.seconds)
            self._final = self.iteration, score
        return self._final[1]

    def _report_score(self, score: Score, step: int, seconds: float) -> None:
        figures = {"evaluation/return_mean": score.mean, "evaluation/return_std": score.std}
        self._log.write("evaluation", step, seconds, figures)
        self._log.show(self.n_steps, score=f"{score.mean:.1f}")
        self._log.say(f"step {step:>9,}  {seconds:6.1f} s  score {score}")

    def _save(self) -> None:
        content = {
            "algorithm": self.config.algorithm,
            "env_id": self.config.env_id,
            "rlbatch_version": rlbatch.__version__,
            "config": dataclasses.asdict(self.config),
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "others": {name: other.state_dict() for name, other in self._others.items()},
            "generators": get_generators(),
            "evaluation": self._under_way,
            "reported": self._reported and tuple(self._reported),
            "is_evaluation_due": self._is_due,
            "n_rows": {"evaluation": self._log.n_rows("evaluation")},
            "n_updates": self._n_updates,
            "averages": self._averages.state_dict(),
            "solved": self.solved,
            "final": self._final and (self._final[0], tuple(self._final[1])),
            "iteration": self.iteration,
            "n_steps": self.n_steps,
            "seconds": self.seconds,
        }
        checkpoints.save(self.folder, content)
        self._saved_at = self.iteration

    def _restore(self, content: dict) -> None:
        checkpoints.load_weights(self._model, content, self.config, "resume")
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(content["optimizer"])
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # That of these options, which may be others now.
        for name, other in self._others.items():
            if name not in content["others"]:
                raise ValueError(f"resume: expected a checkpoint with the {name}, got one without")
            other.load_state_dict(content["others"][name])
        set_generators(content["generators"])
        self._under_way, self._is_due = content["evaluation"], content["is_evaluation_due"]
        self._reported = content["reported"] and Score(*content["reported"])
        self._n_rows, self._n_updates = content["n_rows"], content["n_updates"]
        self._averages.load_state_dict(content["averages"])
        self.iteration, self.n_steps = content["iteration"], content["n_steps"]
        self._seconds, self._saved_at = content["seconds"], self.iteration
        if content["final"]:
            iteration, score = content["final"]
            self._final = iteration, Score(*score)
            self.solved = content["solved"] and self._final[1].mean >= self.config.target


class Averages:
    """Means over some iterations; nothing waits for a GPU before they are taken."""

    def __init__(self) -> None:
        self.n_iterations = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns what has been added since the last were taken."""
        if not self.n_iterations:
            return {"n_iterations": 0}
        figures = {name: float(sum_) for name, sum_ in self._figures.items()}
        episodes = self._episodes.tolist()
        return {"n_iterations": self.n_iterations, "episodes": episodes, "figures": figures}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.n_iterations = state["n_iterations"]
        if self.n_iterations:
            self._figures = state["figures"]
            self._episodes = torch.tensor(state["episodes"], dtype=torch.float64)

    def add(self, steps: TemporalDictTensor, figures: Mapping[str, float | Tensor]) -> None:
        """Adds an iteration: the episodes that ended in its steps [B, T, ...], and figures."""
        episodes = episode_sums(steps)
        if self.n_iterations == 0:
            self._episodes, self._figures = episodes, dict(figures)
        else:
            self._episodes = self._episodes.to(episodes.device) + episodes
            self._figures = {name: self._figures[name] + figures[name] for name in figures}
        self.n_iterations += 1

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns the charts of the episodes (NaN if none ended) and the figures; begins anew."""
        returns, lengths, n_episodes = self._episodes.tolist()
        charts = {
            "charts/episodic_return": returns / n_episodes if n_episodes else math.nan,
            "charts/episodic_length": lengths / n_episodes if n_episodes else math.nan,
        }
        figures = {name: float(sum_) / self.n_iterations for name, sum_ in self._figures.items()}
        self.n_iterations = 0
        return charts, figures


def episode_sums(steps: TemporalDictTensor) -> Tensor:
    """Returns the sums of returns and lengths of the episodes that ended, and their number."""
    ended = whole_episodes_ended(steps) & steps.mask(torch.bool)
    returns, lengths = steps["_observation/episode_return"], steps["_observation/episode_length"]
    sums = [torch.where(ended, x.double(), 0.0).sum() for x in (returns, lengths)]
    return torch.stack([*sums, ended.double().sum()])
