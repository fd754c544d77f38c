"""Agents: the class to derive from, replaying one over trajectories, and a device checker."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rlbatch._checks import (
    check_device,
    check_left_alone,
    check_same_keys,
    check_same_rows,
    versions_of,
)
from rlbatch._named_tensors import unshared
from rlbatch.devices import DeviceLike, as_device, as_present_device
from rlbatch.dicttensor import DictTensor, TemporalDictTensor, Trajectories
from rlbatch.errors import DeviceMismatchError, ShapeError

State = DictTensor


class RL_Agent:
    """A policy, called with a batch of observations and the state that it keeps itself.

    Its state between two calls is not in the object but goes out and comes back as a DictTensor,
    one row per environment, so that a batcher can store it, cut it and replay it. What the object
    itself holds, such as a file, it releases in `close()`, which the batcher calls.

    On a device `d` the state it returns is on `d` (or empty), its action is on `d`, and
    observations and states arrive on `d`; `agent_info` arrives on `info_device`.

    Attributes:
        info_device: Where `agent_info` is during a replay: the CPU, as in a batcher, unless the
            batcher was given another `info_device`.

    Example:
        >>> class Constant(RL_Agent):
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         action = torch.ones(observation.n_elems(), dtype=torch.int64)
        ...         return DictTensor({"action": action}), DictTensor()
        >>> nothing, observation = DictTensor(), DictTensor({"frame": torch.zeros(3)})
        >>> action, state = Constant()(nothing, observation, nothing)
        >>> action["action"]
        tensor([1, 1, 1])
    """

    info_device: DeviceLike = "cpu"

    def require_history(self) -> bool:
        """Returns whether `__call__` is to receive the steps of the slot so far."""
        return False

    def initial_state(self, agent_info: DictTensor, B: int) -> State:
        """Returns the state before the first step of `B` environments.

        Args:
            agent_info: B rows, or empty.
            B: The number of environments.

        Returns:
            B rows, or empty for an agent without a state (the default).
        """
        return DictTensor()

    def __call__(
        self,
        state: State,
        observation: DictTensor,
        agent_info: DictTensor,
        history: TemporalDictTensor | None = None,
    ) -> tuple[DictTensor, State]:
        """Chooses actions.

        Args:
            state: [B, ...], what the last call returned for these environments, or
                `initial_state`'s. Where an environment starts an episode on its own,
                `observation["initial_state"]` is True and the agent starts its state anew.
            observation: [B, ...], one row per running environment. It may be a view of the
                trajectory: it must not be changed in place, and what is kept outside the state
                after `execute` has to be a copy.
            agent_info: [B, ...] or empty.
            history: Where `require_history()` is True, the steps `[B, t, ...]` since the start
                of the slot with the keys `observation/...`, `_observation/...` and, from t = 1
                on, `action/...`; otherwise None.

        Returns:
            The output and the new state, both [B, ...]. Every key of the output is stored in the
            trajectory; the environment reads `action` (or `action/...`).

        Raises:
            NotImplementedError: The agent does not define this method.
        """
        name = type(self).__name__
        raise NotImplementedError(
            f"__call__: expected {name} to define it, got a call (that of nn.Module, which calls "
            "forward, comes first where it is the first base)"
        )

    def update(self, info: Any) -> None:
        """Takes over what was given to `RL_Batcher.update`, usually a model's `state_dict`.

        Its tensors are copies of the caller's. In a process they are on the CPU, in the caller's
        own where they were; `load_state_dict` copies them to wherever the model is.

        Raises:
            NotImplementedError: The agent does not define this method.
        """
        name = type(self).__name__
        raise NotImplementedError(f"update: expected {name} to define it, got a call of update")

    def seed(self, seed: int) -> None:
        """Seeds random generators of the agent's own; torch's global one is seeded already."""

    def close(self) -> None:
        """Releases what the agent holds."""

    def call_replay(
        self, trajectories: Trajectories, t: int, state: State | None
    ) -> tuple[DictTensor, State]:
        """Chooses actions once more for the step `t` of stored trajectories.

        Args:
            trajectories: What a batcher returned, on the device of the agent.
            t: The step. All B rows are replayed; those of at most `t` steps hold padding.
            state: What the last call returned. At `t = 0` it is None: a slot may begin in the
                middle of an episode, and an agent with a memory starts from `agent_state/...` in
                `trajectories.info`, not from `initial_state`. This method does so.

        Returns:
            The output and the new state, as from `__call__`.

        Raises:
            ValueError: The agent has changed an observation, the history or `agent_info` in place.
        """
        if state is None:
            # A copy: an agent may change its state in place.
            state = trajectories.info.truncate_key("agent_state/").clone()
        agent_info = trajectories.info.truncate_key("agent_info/").to(self.info_device)
        steps = trajectories.trajectories
        observation = steps.truncate_key("observation/").temporal_index(t)
        history = steps.temporal_slice(0, t) if self.require_history() else None
        if history is not None and not t:  # In a batcher nobody has acted yet.
            history = history.get(key for key in steps if not key.startswith("action/"))
        versions, of_info = versions_of(steps.variables), versions_of(agent_info.variables)
        answer = self(state, observation, agent_info, history)
        check_left_alone("call_replay: ", steps.variables, versions)
        check_left_alone("call_replay: agent_info/", agent_info.variables, of_info)
        match answer:
            case (output, DictTensor() as new_state):  # Which may be changed in place.
                return output, unshared(new_state, steps, agent_info)
        return answer  # Whoever has called looks at it.


def replay_agent(
    agent: RL_Agent, trajectories: Trajectories, replay_method_name: str = "call_replay"
) -> TemporalDictTensor:
    """Runs an agent over trajectories step by step, passing its state on; gradients flow.

    What an agent draws is drawn anew: its `action` is not the one of the trajectories, and neither
    is a log-probability of it. Let it return the logits, and take that of
    `trajectories.trajectories["action/action"]`.

    Args:
        agent: The agent, on the device of the trajectories.
        trajectories: B trajectories of up to T steps.
        replay_method_name: The method to call with `(trajectories, t, state)`; it returns
            `(output [B, ...], state)`.

    Returns:
        The outputs, [B, T, ...] as the trajectories, and their lengths. Entries on padding mean
        nothing; mask them. Past the longest trajectory, where the agent is not run, they are the
        last ones again.

    Raises:
        ValueError: There are no steps to replay.
        TypeError: They are not Trajectories; a step does not return a pair, or its output is not a
            DictTensor.
        ShapeError: An output has not one row per trajectory.
        KeyMismatchError, DtypeMismatchError, ShapeError, DeviceMismatchError: An output is not
            like the one of the first step.
        RuntimeError: PyTorch's, of the agent; with a note if it is about devices.

    Example:
        >>> class Linear(RL_Agent):
        ...     model = torch.nn.Linear(4, 2)
        ...     def __call__(self, state, observation, agent_info, history=None):
        ...         logits = self.model(observation["frame"])
        ...         return DictTensor({"action": logits.argmax(1), "logits": logits}), DictTensor()
        >>> steps = TemporalDictTensor({"observation/frame": torch.ones(3, 5, 4)})
        >>> replayed = replay_agent(Linear(), Trajectories(DictTensor(), steps))
        >>> replayed["logits"].shape, replayed["logits"].requires_grad
        (torch.Size([3, 5, 2]), True)
    """
    _check_trajectories(trajectories)
    replay = getattr(agent, replay_method_name)
    outputs: list[DictTensor] = []
    state = None
    steps = trajectories.trajectories
    lengths = steps.lengths
    n_steps = int(lengths.max()) if len(lengths) else 0
    if not n_steps:
        raise ValueError("trajectories: expected at least one step to replay, got none")
    for t in range(n_steps):
        try:
            answer = replay(trajectories, t, state)
        except RuntimeError as error:
            add_device_note(error, agent, trajectories=steps, state=state)
            raise
        _check_replayed(f"{replay_method_name}, step {t}", answer, len(lengths), outputs)
        output, state = answer
        outputs.append(output.clone())  # It may share memory with a state that is changed in place.
    # They fit beside the steps of a minibatch of short rows. Zeros might make no distribution.
    outputs += outputs[-1:] * (steps.n_timesteps() - n_steps)
    stacked = {key: torch.stack([output[key] for output in outputs], dim=1) for key in outputs[0]}
    return TemporalDictTensor(stacked, lengths=lengths.clone())


def _check_trajectories(trajectories: Any) -> None:
    if not isinstance(trajectories, Trajectories):
        found = type(trajectories).__name__
        raise TypeError(f"trajectories: expected Trajectories, as of `get`, got a {found}")


def _check_replayed(where: str, answer: Any, B: int, before: list[DictTensor]) -> None:
    """Checks what a step of a replay returns beside those before.

    Raises:
        TypeError: It is not a pair.
        ShapeError: It has not `B` rows, or they have another shape.
        KeyMismatchError: Its keys are others.
        DtypeMismatchError: So is a dtype.
        DeviceMismatchError: So is a device.
    """
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], DictTensor)):
        raise TypeError(f"{where}: expected a pair (DictTensor, state), got {answer!r}")
    output = answer[0]
    if not before:
        for key, tensor in output.items():
            n_rows = len(tensor) if tensor.dim() else "a number"
            if n_rows != B:
                raise ShapeError(f"{where}: {key}: expected {B} rows, got {n_rows}")
        return
    check_same_keys(where, before[0], output)
    for key, tensor in output.items():
        check_same_rows(f"{where}: {key}, as in step 0", tensor, before[0][key], n_common=0)


def replay_agent_stateless(
    agent: RL_Agent, trajectories: Trajectories, replay_method_name: str
) -> TemporalDictTensor:
    """Runs an agent over whole trajectories in one call.

    Args:
        agent: An agent that has such a method.
        trajectories: B trajectories of up to T steps, on the device of the agent.
        replay_method_name: The method to call with `(trajectories,)`.

    Returns:
        What the method returns: a TemporalDictTensor [B, T, ...].

    Raises:
        TypeError: They are no Trajectories.

    Example:
        >>> class Linear(RL_Agent):
        ...     model = torch.nn.Linear(4, 2)
        ...     def replay_all(self, trajectories):
        ...         steps = trajectories.trajectories
        ...         logits = self.model(steps["observation/frame"])
        ...         return TemporalDictTensor({"logits": logits}, steps.lengths)
        >>> steps = TemporalDictTensor({"observation/frame": torch.ones(3, 5, 4)})
        >>> trajectories = Trajectories(DictTensor(), steps)
        >>> replay_agent_stateless(Linear(), trajectories, "replay_all")["logits"].shape
        torch.Size([3, 5, 2])
    """
    _check_trajectories(trajectories)
    return getattr(agent, replay_method_name)(trajectories)


_OWN = ("_checked_agent", "_checked_device", "_checked_info_device")  # Of the class below.


class RL_Agent_CheckDevice(RL_Agent):
    """Wraps an agent and raises where a tensor goes in or comes out on the wrong device.

    It adds checks and changes nothing: every method and attribute of the agent is there, with
    the same results, and what is assigned goes to the agent. A method of the agent's own that is
    given `Trajectories` is checked like `call_replay`.

    Args:
        agent: The agent to check.
        device: Where its observations, states, actions and parameters have to be.
        info_device: Where `agent_info` has to be, as given to `RL_Batcher`.

    Raises:
        ValueError: One of the devices is none, or is not there.
        DeviceMismatchError: From any call; with stage, key, expected and found device.

    Example:
        >>> class OnMeta(RL_Agent):
        ...     def initial_state(self, agent_info, B):
        ...         return DictTensor({"memory": torch.zeros(B, device="meta")})
        >>> checked = RL_Agent_CheckDevice(OnMeta(), "cpu")
        >>> checked.initial_state(DictTensor(), 2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        rlbatch.errors.DeviceMismatchError: initial_state: state/memory: expected ... on meta
    """

    def __init__(self, agent: RL_Agent, device: DeviceLike, info_device: DeviceLike = "cpu"):
        # Past __setattr__, which writes to the agent. The names keep out of the agent's way.
        self.__dict__["_checked_agent"] = agent
        self.__dict__["_checked_device"] = as_present_device(device)
        self.__dict__["_checked_info_device"] = as_present_device(info_device, "info_device")

    def initial_state(self, agent_info: DictTensor, B: int) -> State:
        """Checks `agent_info`, the agent's parameters, and the state that comes out."""
        check_devices(self._checked_info_device, "initial_state", agent_info=agent_info)
        self._check_parameters("initial_state")
        state = self._checked_agent.initial_state(agent_info, B)
        check_devices(self._checked_device, "initial_state", state=state)
        return state

    def __call__(
        self,
        state: State,
        observation: DictTensor,
        agent_info: DictTensor,
        history: TemporalDictTensor | None = None,
    ) -> tuple[DictTensor, State]:
        """Checks everything that goes in and comes out."""
        device = self._checked_device
        check_devices(self._checked_info_device, "call", agent_info=agent_info)
        check_devices(device, "call", state=state, observation=observation, history=history)
        self._check_parameters("call")
        answer = self._checked_agent(state, observation, agent_info, history)
        if isinstance(answer, tuple):  # What else it may be is not looked at here.
            found = dict(zip(("action", "new_state"), answer, strict=False))
            check_devices(device, "call", **found)
        return answer

    def update(self, info: Any) -> None:
        """Updates the agent, then checks its parameters."""
        self._checked_agent.update(info)
        self._check_parameters("update")

    def call_replay(
        self, trajectories: Trajectories, t: int, state: State | None
    ) -> tuple[DictTensor, State]:
        """Checks the trajectories and the state, and the output and state that come out."""
        check_devices(self._checked_device, "call_replay", state=state)
        return self._checking_replay("call_replay")(trajectories, t, state)

    def require_history(self) -> bool:
        """Asks the agent."""
        return self._checked_agent.require_history()

    def seed(self, seed: int) -> None:
        """Seeds the agent."""
        self._checked_agent.seed(seed)

    def close(self) -> None:
        """Closes the agent."""
        self._checked_agent.close()

    def __getattr__(self, name: str) -> Any:
        # Reached for what is not found above: the agent's attributes and methods of its own.
        if name in _OWN:  # While it is being unpickled.
            raise AttributeError(name)
        value = getattr(self._checked_agent, name)
        of_class = inspect.getattr_static(self._checked_agent, name, None)
        is_method = inspect.ismethod(value) or isinstance(of_class, staticmethod)
        return self._checking_replay(name) if is_method else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._checked_agent, name, value)

    @property
    def info_device(self) -> DeviceLike:  # type: ignore[override]
        """The agent's own."""
        return self._checked_agent.info_device

    def _checking_replay(self, name: str) -> Callable:
        """Returns a method of the agent that is checked where it is given Trajectories."""
        method, device = getattr(self._checked_agent, name), self._checked_device

        @functools.wraps(method)
        def checked(*args: Any, **kwargs: Any) -> Any:
            batches = [x for x in (*args, *kwargs.values()) if isinstance(x, Trajectories)]
            for batch in batches:
                check_devices(device, name, info=batch.info, trajectories=batch.trajectories)
                self._check_before_replay(name, batch)
            result = method(*args, **kwargs)
            if batches:
                results = result if isinstance(result, (tuple, list)) else (result,)
                names = ("output", "state", *(f"result {k}" for k in range(2, len(results))))
                check_devices(device, name, **dict(zip(names, results, strict=False)))
            return result

        return checked

    def _check_before_replay(self, name: str, batch: Trajectories) -> None:
        self._check_parameters(name)
        has_info = any(key.startswith("agent_info/") for key in batch.info)
        found = as_device(self._checked_agent.info_device)
        if name == "call_replay" and has_info and found != self._checked_info_device:
            raise DeviceMismatchError("agent.info_device", self._checked_info_device, found, name)

    def _check_parameters(self, stage: str) -> None:
        for name, tensors in _tensors_of({"": self._checked_agent}, set()):
            if name in ("parameters", "buffers"):  # Others may be elsewhere on purpose.
                check_devices(self._checked_device, stage, **{name: tensors})


# What PyTorch says of tensors on different devices: in general, and of an LSTM; and, naming types,
# of a convolution, which says the same of different dtypes.
_ABOUT_DEVICES = re.compile(
    r"(expected|same).* device|torch\.cuda\..*torch\.\w+Tensor|torch\.\w+Tensor.*torch\.cuda\.",
    re.IGNORECASE,
)
_REGISTRIES = ("_parameters", "_buffers", "_modules")  # Attributes of a `Module`.


def _tensors_of(
    values: dict[str, Any], seen: set[int], above: str = ""
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yields those of modules and agents, in lists and in attributes of agents too.

    Parameters and buffers together, by that name; another tensor by its own, such as `agent.scale`.
    """
    for path, leaf in pytree.tree_flatten_with_path(values)[0]:
        keys = (str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        name = above + ".".join(keys)
        if isinstance(leaf, torch.nn.Module):
            yield "parameters", dict(leaf.named_parameters(name))
            yield "buffers", dict(leaf.named_buffers(name))
        elif isinstance(leaf, torch.nn.Parameter):
            yield "parameters", {name: leaf}
        elif isinstance(leaf, torch.Tensor):
            yield f"agent.{name}", {name: leaf}
        if isinstance(leaf, RL_Agent) and id(leaf) not in seen:
            seen.add(id(leaf))
            attributes = {key: one for key, one in vars(leaf).items() if key not in _REGISTRIES}
            yield from _tensors_of(attributes, seen, f"{name}." if name else "")


def add_device_note(error: RuntimeError, agent: Any, **containers: Any) -> None:
    """Tells where everything is, if an error of PyTorch is about devices.

    Args:
        error: What an agent has raised.
        agent: The agent.
        containers: DictTensors and TemporalDictTensors that it was given, by their names.
    """
    with contextlib.suppress(Exception):  # Of a class of errors that is frozen, for one.
        if not _ABOUT_DEVICES.search(str(error)):
            return
        hint = ["RL_Agent_CheckDevice names the tensor"]
        if isinstance(agent, RL_Agent_CheckDevice):
            agent, hint = agent._checked_agent, []
        places: dict[str, set[str]] = {}
        for name, tensors in [*containers.items(), *_tensors_of({"": agent}, set())]:
            if tensors is not None:
                found = {str(tensor.device) for tensor in tensors.values()}
                places.setdefault(name, set()).update(found)
        said = [f"{name} on {', '.join(sorted(at))}" for name, at in places.items() if at]
        error.add_note(f"({'; '.join([*said, *hint])})")


def check_devices(device: torch.device, stage: str, **values: Any) -> None:
    """Checks where tensors are, and those in containers; at anything else it does not look.

    Raises:
        DeviceMismatchError: One is elsewhere.
    """
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            check_device(name, value, device, stage)
        elif isinstance(value, (DictTensor, TemporalDictTensor, dict)):
            for key, tensor in value.items():
                check_device(f"{name}/{key}", tensor, device, stage)
        elif isinstance(value, Trajectories):
            parts = {"info": value.info, "trajectories": value.trajectories}
            check_devices(device, stage, **{f"{name}/{part}": of for part, of in parts.items()})
