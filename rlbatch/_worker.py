"""The child's side of a batcher: acquires trajectories, one small function per command.

In a process of its own it is served by `_process.py`, whose other side is `_remote.py`; in the
caller's it is in `_local.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from rlbatch._answers import (
    check_answer,
    check_done,
    check_has,
    check_is_dicttensor,
    check_new_state,
    check_rows,
    check_running,
    two_pairs,
)
from rlbatch._checks import check_left_alone, versions_of
from rlbatch._messages import Ready, Recipe, no_stats
from rlbatch._named_tensors import unshared
from rlbatch._slots import Layout, SlotWriter, no_history, specs_of
from rlbatch.agent import add_device_note, check_devices
from rlbatch.dicttensor import DictTensor, TemporalDictTensor
from rlbatch.envs.base import steps_into
from rlbatch.errors import EnvContractError

_AGENT_INFO = "agent_info/"
_CHANGED = (
    "agent.__call__: expected history and observation to be left as they are, as they are stored, "
    "got one of them changed in place; work on a copy"
)


class Worker:
    """An agent in its environments, writing trajectories into slots.

    It owns both and closes them.

    Args:
        recipe: What to make them from.
        allocate: Called once, at the first step, with the layout; returns the place to write to,
            and how long it waited for others, in seconds.
    """

    # From the first `reset` on:
    _observation: DictTensor  # To act on next.
    _agent_info: DictTensor  # As `_info`, of the environments that run.
    _info: DictTensor  # What a slot holds once, except for the state and the policy's version.
    _is_fresh: bool  # Whether the agent's state is yet to be made.
    # From the first `execute` on:
    _state: DictTensor  # The agent's.
    _first_info: DictTensor  # What slots hold once; until there are slots.

    def __init__(self, recipe: Recipe, allocate: Callable[[Layout], tuple[SlotWriter, float]]):
        self._recipe, self._allocate = recipe, allocate
        self.env = recipe.create_env(**{**recipe.env_args, "seed": recipe.seeds.env})
        check_has("create_env", self.env, "a VecEnv", ("n_envs", "reset", "step", "close"))
        try:
            self.agent = recipe.create_agent(**recipe.agent_args)
            check_has("create_agent", self.agent, "an RL_Agent", ("initial_state", "call_replay"))
            if recipe.seeds.agent is not None:
                self.agent.seed(recipe.seeds.agent)
            self.n_envs = self.env.n_envs()
        except BaseException:  # Nobody else knows of the environment.
            with contextlib.suppress(Exception):
                self.env.close()
            raise
        self.autoreset = bool(getattr(self.env, "autoreset", False))
        self.stats = no_stats()
        self._is_direct = recipe.device.type == "cpu" and self.autoreset and steps_into(self.env)
        if os.environ.get("RLBATCH_PROFILE"):
            self.env, self.agent = _Traced("env", self.env), _Traced("agent", self.agent)
        self._slots: Any = None  # A SlotWriter, from the first step on.
        self._running = torch.empty(0, dtype=torch.int64, device="cpu")
        self._policy_version = 0
        self._is_closed = False

    @property
    def ready(self) -> Ready:
        """What the batcher has to know before the first command."""
        space = getattr(self.env, "action_space", None)
        is_known = type(space).__module__.startswith("gymnasium.")
        return Ready(self.n_envs, self.autoreset, repr(space) if is_known else "")

    def reset(self, agent_info: DictTensor, env_info: DictTensor, first: int) -> int:
        """Starts episodes in all environments; the agent's state follows at the first step.

        Raises:
            EnvContractError: Not all of them run, or what it returns is no pair.
            TypeError: What is in the pair is something else.
            DeviceMismatchError: The observation is not on the batcher's device.
        """
        started = time.perf_counter()
        answer = self.env.reset(env_info.clone())  # What it was given is stored.
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise EnvContractError(f"env.reset: expected (observation, running), got {answer!r}")
        self._observation, running = answer
        self.stats["env_s"] += time.perf_counter() - started
        self._look_at("env.reset", running, observation=self._observation)
        self._running = running.clone()
        if len(self._running) != self.n_envs:
            raise EnvContractError(
                f"reset: expected all {self.n_envs} environments to run, got {len(self._running)}"
            )
        self._is_fresh = True  # The agent's state is made in the first `execute`.
        self._agent_info = agent_info.to(self._recipe.info_device)
        # What a slot holds once is moved here, so that `execute` has nothing to copy to a GPU.
        info = agent_info.prepend_key(_AGENT_INFO) + env_info.prepend_key("env_info/")
        info.set("env_id", torch.arange(first, first + self.n_envs, device="cpu"))
        self._info = info.to(self._recipe.device)
        return len(self._running)

    @torch.no_grad()
    def execute(self, agent_info: DictTensor | None, longest: int) -> int:
        """Acquires up to T steps of the running environments; returns how many run on.

        Args:
            agent_info: For all environments; None to keep it.
            longest: Of the last trajectories, see `SlotStore`.
        """
        if agent_info is not None:
            rows = self._unless_everyone()
            self._replace_agent_info(agent_info if rows is None else agent_info.index(rows.cpu()))
        if self._is_fresh:
            self._state = self.agent.initial_state(self._agent_info, len(self._running))
            check_is_dicttensor("agent.initial_state", "state", self._state)
            check_rows("agent.initial_state: state", self._state, len(self._running))
            check_devices(self._recipe.device, "agent.initial_state", state=self._state)
            self._state = self._state.clone()  # The agent may keep it, and change in place its own.
            self._is_fresh = False
        begun, elsewhere = time.perf_counter(), self._seconds_elsewhere()
        if self._slots is not None:
            self._start_slots(self._slots, self._slot_info(), longest)
            if self._is_direct:
                self._slots.write_observation(0, None, self._observation)
        else:  # Agents may change their state in place, before there are slots.
            self._first_info = self._slot_info().clone()
        for t in range(self._recipe.n_timesteps):
            if not self.autoreset and not len(self._running):
                break
            self._step(t)
        if len(self._running):
            self._slots.set_lengths(self._unless_everyone(), self._recipe.n_timesteps)
        if self._is_direct:  # They may be views of the slots, which are written over.
            self._observation, self._state = self._observation.clone(), self._state.clone()
        spent = time.perf_counter() - begun
        self.stats["storage_s"] += spent - (self._seconds_elsewhere() - elsewhere)
        return len(self._running)

    def update(self, info: Any, policy_version: int) -> int:
        """Gives the agent new weights."""
        self.agent.update(info)
        self._policy_version = policy_version
        return len(self._running)

    def close(self) -> int:
        """Closes the environments and the agent, once."""
        if self._is_closed:
            return 0
        self._is_closed = True
        try:
            self.env.close()
        finally:
            self.agent.close()
        return 0

    def _step(self, t: int) -> None:
        """One step of agent and environment, and its row in the slots."""
        everyone = None if self.autoreset else self._unless_everyone()
        if self._slots is None:
            self._first_step(everyone)
        elif self._is_direct:
            self._direct_step(t)
        else:
            self._plain_step(t, everyone)
        self.stats["n_steps"] += 1

    def _first_step(self, everyone: torch.Tensor | None) -> None:
        """Looks at what agent and environment return; only then there is a place to write to."""
        seen = self._observation.clone()  # What is stored later may be changed until then.
        action, state = self._act(0)
        check_devices(self._recipe.device, "agent.__call__", action=action)
        chosen = action.clone()
        after, following, running = self._step_env(action)
        self._look_at("env.step", running, _observation=after, observation=following)
        if not self.autoreset:
            check_done(after, len(self._running))
        self._start_first_slots(seen, chosen)
        if self._is_direct and self._recipe.n_timesteps > 1:  # As it does itself from now on.
            self._slots.write_observation(1, None, following)
        self._store(0, everyone, state, after, following, running)

    def _plain_step(self, t: int, everyone: torch.Tensor | None) -> None:
        self._slots.write_observation(t, everyone, self._observation)
        action, state = self._act(t)
        self._slots.write_action(t, everyone, action)
        after, following, running = self._step_env(action)
        self._store(t, everyone, state, after, following, running)

    def _direct_step(self, t: int) -> None:
        """As a plain step, of an environment that writes its observations to the slots itself.

        It is trusted to leave the actions as they are, of which others get a copy.
        """
        action, state = self._act(t)
        self._slots.write_action(t, None, action)
        after_arrays, following_arrays, following = self._slots.direct(t)
        begun = time.perf_counter()
        self.env.step_into(action, after_arrays, following_arrays)
        self.stats["env_s"] += time.perf_counter() - begun
        self._observation, self._state = following, state

    def _step_env(self, action: DictTensor) -> tuple[DictTensor, DictTensor, torch.Tensor]:
        """Returns what followed, what to act on next, and the numbers of those that run on."""
        begun = time.perf_counter()
        (after, _), (following, running) = two_pairs(self.env.step(_for_env(action)))
        self.stats["env_s"] += time.perf_counter() - begun
        return after, following, running

    def _seconds_elsewhere(self) -> float:
        """Returns the time that so far did not go into storage."""
        return self.stats["env_s"] + self.stats["agent_s"] + self.stats["wait_s"]

    def _look_at(self, stage: str, running: torch.Tensor, **observations: DictTensor) -> None:
        """Looks at what an environment has returned, once.

        Raises:
            TypeError: It is neither a DictTensor nor a tensor.
            DeviceMismatchError: It is not on the batcher's device.
        """
        for name, observation in observations.items():
            check_is_dicttensor(stage, name, observation)
        if not isinstance(running, torch.Tensor):
            raise TypeError(f"{stage}: running: expected a tensor, got {running!r}")
        check_devices(self._recipe.device, stage, **observations, running=running)

    def _act(self, t: int) -> tuple[DictTensor, DictTensor]:
        """Returns the agent's output and its new state, which may be changed in place.

        Raises:
            TypeError: It returns something else.
            ShapeError: The new state has not one row per environment that ran, or other rows.
            KeyMismatchError, DtypeMismatchError, DeviceMismatchError: Or it differs otherwise from
                the one before.
            ValueError: The agent has changed in place what is stored.
            RuntimeError: PyTorch's, of the agent; with a note if it is about devices.
        """
        history = self._history(t)
        # It may set keys of what it is given; they are not those of the environment.
        state, observation = _shallow(self._state), _shallow(self._observation)
        # An observation is stored before the agent sees it: to change it in place can harm only the
        # environment, and the first two steps are enough to notice.
        versions = versions_of(observation.variables) if t <= 1 else {}
        told = self._agent_info.variables
        of_info = versions_of(told) if told else {}
        stored = None if self._slots is None else self._slots.version()
        begun = time.perf_counter()
        try:
            answer = self.agent(state, observation, _shallow(self._agent_info), history)
        except RuntimeError as error:
            add_device_note(
                error,
                self.agent,
                observation=self._observation,
                state=self._state,
                agent_info=self._agent_info,
                history=history,
            )
            raise
        self.stats["agent_s"] += time.perf_counter() - begun
        if torch.is_grad_enabled():  # Which it has turned on for all that follows.
            torch.set_grad_enabled(False)
        check_answer(answer)
        if versions or of_info:
            check_left_alone("agent.__call__: observation/", self._observation.variables, versions)
            check_left_alone(f"agent.__call__: {_AGENT_INFO}", self._agent_info.variables, of_info)
        if stored is not None and stored != self._slots.version():
            raise ValueError(_CHANGED)
        output, new_state = answer
        if new_state.variables or self._state.variables:  # Most agents have none.
            check_new_state(new_state, self._state, len(self._running))
            others = () if history is None else (history,)
            new_state = unshared(new_state, self._observation, self._agent_info, *others)
        return output, new_state

    def _store(
        self,
        t: int,
        everyone: torch.Tensor | None,
        state: DictTensor,
        after: DictTensor,
        following: DictTensor,
        running: torch.Tensor,
    ) -> None:
        """Writes what a step led to, drops what has ended, and goes on with the rest.

        Raises:
            EnvContractError: Others run on than those that are not done.
        """
        self._slots.write_after(t, everyone, after)
        has_ended = len(running) != len(self._running)
        if has_ended or (running.is_cpu and not self.autoreset):  # On a GPU to look is to wait.
            check_running(self._running[~after["done"]], running)
        if has_ended:
            self._slots.set_lengths(everyone, t + 1)  # Of those that run on it is set again later.
            state = self._narrow(running, state)
            self._running = running.clone()  # The environment may write there again.
        self._observation, self._state = following, state

    def _start_first_slots(self, observation: DictTensor, action: DictTensor) -> None:
        """Gets the place to write to, now that it is known what is written; does so."""
        layout = Layout(
            specs_of("observation", observation),
            specs_of("action", action),
            specs_of("info", self._first_info),
        )
        self._slots, waited_s = self._allocate(layout)
        self.stats["wait_s"] += waited_s
        self._start_slots(self._slots, self._first_info, longest=0)
        self._slots.write_observation(0, self._unless_everyone(), observation)
        self._slots.write_action(0, self._unless_everyone(), action)

    def _start_slots(self, slots: SlotWriter, info: DictTensor, longest: int) -> None:
        """Writes what a slot holds once: with it a trajectory can be replayed from its start."""
        if not self.autoreset:
            slots.clear(longest)
        if len(self._running):
            slots.write_info(self._unless_everyone(), info)

    def _narrow(self, running: torch.Tensor, state: DictTensor) -> DictTensor:
        """Drops what belongs to environments whose episode has ended; returns the state."""
        kept = torch.searchsorted(self._running, running)
        self._agent_info = self._agent_info.index(kept.to(self._recipe.info_device))
        self._info = self._info.index(kept)
        return state.index(kept)

    def _unless_everyone(self) -> torch.Tensor | None:
        """Returns the running environments, None for all of them."""
        return None if len(self._running) == self.n_envs else self._running

    def _history(self, t: int) -> TemporalDictTensor | None:
        if not self.agent.require_history():
            return None
        if self._slots is None:
            return no_history(self._observation)
        return self._slots.history(self._unless_everyone(), t)

    def _replace_agent_info(self, agent_info: DictTensor) -> None:
        self._agent_info = agent_info.to(self._recipe.info_device)
        rest = {k: v for k, v in self._info.items() if not k.startswith(_AGENT_INFO)}
        stored = agent_info.to(self._recipe.device).prepend_key(_AGENT_INFO)
        self._info = DictTensor(rest) + stored

    def _slot_info(self) -> DictTensor:
        """Returns the infos, the state before the first step, and the version of the policy."""
        version = torch.full_like(self._info["env_id"], self._policy_version)
        state = self._state.prepend_key("agent_state/")
        return self._info + state + DictTensor({"policy_version": version})


class _Traced:
    """An environment or agent whose steps have a name in the traces of torch.profiler."""

    def __init__(self, name: str, part: Any):
        self._name, self._part = f"rlbatch/{name}", part

    def __call__(self, *arguments: Any) -> Any:
        with record_function(self._name):
            return self._part(*arguments)

    def step(self, action: DictTensor) -> Any:
        with record_function(self._name):
            return self._part.step(action)

    def step_into(self, *arguments: Any) -> None:
        with record_function(self._name):
            self._part.step_into(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


def _shallow(tensors: DictTensor) -> DictTensor:
    """Returns the same tensors in a dict of their own."""
    return DictTensor.unchecked(tensors.variables.copy())


def _for_env(output: DictTensor) -> DictTensor:
    """Returns an agent's output, with actions that may be changed in place."""
    given = output.variables.copy()
    for key in given:
        if key == "action" or key.startswith("action/"):
            given[key] = given[key].clone()
    return DictTensor.unchecked(given)


def seed_generators(seed: int) -> None:
    """Seeds Python, NumPy and PyTorch on the CPU."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
