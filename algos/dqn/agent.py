"""The agent of DQN: epsilon-greedy over action values."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from algos.environments import spaces_of
from algos.networks import encoder, linear
from rlbatch import DictTensor, RL_Agent, TemporalDictTensor
from rlbatch.devices import DeviceLike


class Model(nn.Module):
    """The values of all actions.

    Args:
        observation_space: See `encoder`.
        action_space: Starts at 0.
        hidden_size: Of the features.
        dueling: Whether a value and advantages are added up, from layers of their own.
        bf16: Whether matrices are multiplied in bfloat16; weights and results are float32.
        compiled: Whether `torch.compile` makes code for the features, when they are first needed.

    Raises:
        TypeError: The actions are not Discrete.
        ValueError: They do not start at 0.

    Source:
        Wang et al., Dueling network architectures for deep reinforcement learning, 2016,
        arXiv:1511.06581, eq. 9.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        hidden_size: int,
        dueling: bool = False,
        bf16: bool = False,
        compiled: bool = False,
    ):
        super().__init__()
        if not isinstance(action_space, spaces.Discrete):
            raise TypeError(f"action_space: expected Discrete, got {action_space}")
        if action_space.start:
            raise ValueError(f"action_space: expected actions from 0 on, got {action_space}")
        self.encoder = encoder(observation_space, hidden_size, compiled)
        self._bf16 = bf16
        self._advantages = linear(hidden_size, int(action_space.n))
        self._value = linear(hidden_size, 1) if dueling else None

    def forward(self, frame: Tensor) -> Tensor:
        """Returns values [..., n_actions] float32 of observations [..., *shape]."""
        with torch.autocast(frame.device.type, torch.bfloat16, enabled=self._bf16):
            features = self.encoder(frame)
        features = features.float()
        advantages = self._advantages(features)
        if self._value is None:
            return advantages
        return self._value(features) + advantages - advantages.mean(-1, keepdim=True)


class Agent(RL_Agent):
    """Takes the action of the highest value; has no state.

    `agent_info` holds, per environment, `seed` (see NOTE [ seeds of episodes ] in
    algos/environments.py), `stochastic` (whether it may take any action) and perhaps `epsilon`
    (with which probability).

    Args:
        model: Of the values.
        device: Of the model.
        epsilon: Where `agent_info` has none.
    """

    def __init__(self, model: Model, device: DeviceLike, epsilon: float):
        self.model = model.to(device)
        self._epsilon, self.info_device = epsilon, device

    def initial_state(self, agent_info: DictTensor, B: int) -> DictTensor:
        """Seeds what the coming episodes draw, with the seed of the first of them."""
        torch.manual_seed(int(agent_info["seed"][0]))
        return DictTensor()

    def __call__(
        self,
        state: DictTensor,
        observation: DictTensor,
        agent_info: DictTensor,
        history: TemporalDictTensor | None = None,
    ) -> tuple[DictTensor, DictTensor]:
        """Returns the actions."""
        values = self.model(observation["frame"])
        best = values.argmax(-1)
        epsilon = agent_info["epsilon"] if "epsilon" in agent_info else self._epsilon
        explores = (torch.rand_like(values[:, 0]) < epsilon) & agent_info["stochastic"]
        drawn = torch.randint_like(best, values.shape[-1])
        return DictTensor({"action": torch.where(explores, drawn, best)}), state

    def update(self, info: dict[str, Tensor]) -> None:
        """Takes over a model's `state_dict`."""
        self.model.load_state_dict(info)


def create_agent(env_id: str, device: DeviceLike, *, epsilon: float, **options: Any) -> Agent:
    """Creates an agent on a device, with a new model of these options for an environment."""
    return Agent(Model(*spaces_of(env_id), **options), device, epsilon)
