"""The agent of A2C: a policy and a value, with or without a memory."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Distribution

from algos.environments import spaces_of
from algos.networks import encoder, linear
from algos.policies import policy_head
from rlbatch import DictTensor, RL_Agent, TemporalDictTensor, Trajectories, masked_tensor
from rlbatch.devices import DeviceLike


class Model(nn.Module):
    """A policy and a value.

    For images, and with a memory, they share features. For vectors each has its own: values in the
    hundreds would dominate shared ones.

    Args:
        observation_space: See `encoder`.
        action_space: See `policy_head`.
        hidden_size: Of the features.
        recurrent: Whether a GRU stands between the features and what is made of them.
        bf16: Whether matrices are multiplied in bfloat16; weights and results are float32.
        compiled: Whether `torch.compile` makes code for the features, when they are first needed.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        hidden_size: int,
        recurrent: bool = False,
        bf16: bool = False,
        compiled: bool = False,
    ):
        super().__init__()
        self._size, self._bf16 = hidden_size, bf16
        options = observation_space, hidden_size, compiled
        self.encoder = encoder(*options)
        is_shared = recurrent or len(observation_space.shape) > 1
        self._value_encoder = None if is_shared else encoder(*options)
        self.memory = nn.GRUCell(hidden_size, hidden_size) if recurrent else None
        self._policy = policy_head(action_space, hidden_size)
        self._value = linear(hidden_size, 1)

    def features(self, frame: Tensor) -> Tensor:
        """Returns features float32 of observations [..., *shape].

        They are [..., hidden_size], or [..., 2 * hidden_size] where policy and value share none.
        """
        with torch.autocast(frame.device.type, torch.bfloat16, enabled=self._bf16):
            features = self.encoder(frame)
            if self._value_encoder is not None:
                features = torch.cat([features, self._value_encoder(frame)], dim=-1)
        return features.float()

    def remember(self, features: Tensor, memory: Tensor) -> Tensor:
        """Returns the memory [B, hidden_size] after features [B, hidden_size] were seen."""
        return self.memory(features, memory)

    def policy(self, features: Tensor) -> Distribution:
        """Returns the distribution over actions, [...], for features."""
        return self._policy(features[..., : self._size])

    def value(self, features: Tensor) -> Tensor:
        """Returns the expected discounted return, [...] float32, of rewards as they are learnt."""
        return self._value(features[..., -self._size :]).squeeze(-1)


class Agent(RL_Agent):
    """Acts by a model's policy; its state is the model's memory, if that has one.

    `agent_info` holds, per environment, `stochastic` (draw the action, or take the likeliest) and
    `seed`; see NOTE [ seeds of episodes ] in algos/environments.py.
    """

    def __init__(self, model: Model, device: DeviceLike):
        self.model = model.to(device)
        self.device = self.info_device = device

    def initial_state(self, agent_info: DictTensor, B: int) -> DictTensor:
        """Seeds what the coming episodes draw, with the seed of the first of them."""
        torch.manual_seed(int(agent_info["seed"][0]))
        if self.model.memory is None:
            return DictTensor()
        size = self.model.memory.hidden_size
        return DictTensor({"memory": torch.zeros(B, size, device=self.device)})

    def __call__(
        self,
        state: DictTensor,
        observation: DictTensor,
        agent_info: DictTensor,
        history: TemporalDictTensor | None = None,
    ) -> tuple[DictTensor, DictTensor]:
        """Returns the actions and their log-probabilities."""
        features = self.model.features(observation["frame"])
        if self.model.memory is not None:
            memory = _begun_anew(state["memory"], observation["initial_state"])
            features = self.model.remember(features, memory)
            state = DictTensor({"memory": features})
        policy = self.model.policy(features)
        action = masked_tensor(policy.mode, policy.sample(), agent_info["stochastic"])
        return DictTensor({"action": action, "log_prob": policy.log_prob(action)}), state

    def update(self, info: dict[str, Tensor]) -> None:
        """Takes over a model's `state_dict`."""
        self.model.load_state_dict(info)

    def replay(self, trajectories: Trajectories) -> TemporalDictTensor:
        """Looks at all steps again, with gradients; features in one call.

        Returns:
            [B, T] float32 each: `log_prob` of the actions that were taken, `entropy` of the
            policy, `value` of what was acted on, and `next_value` of what that led to, without
            gradients; 0 where the episode terminated.
        """
        steps = trajectories.trajectories
        features = self.model.features(steps["observation/frame"])
        if self.model.memory is not None:
            features = self._remembered(features, trajectories)
        policy, value = self.model.policy(features), self.model.value(features)
        outputs = {
            "log_prob": policy.log_prob(steps["action/action"]),
            "entropy": policy.entropy(),
            "value": value,
            "next_value": self._next_value(steps, features, value),
        }
        return TemporalDictTensor(outputs, steps.lengths)

    def _remembered(self, features: Tensor, trajectories: Trajectories) -> Tensor:
        """Returns the memories [B, T, hidden_size] after each step's features."""
        begins = trajectories.trajectories["observation/initial_state"]
        memory, memories = trajectories.info["agent_state/memory"], []
        for t in range(features.shape[1]):
            memory = self.model.remember(features[:, t], _begun_anew(memory, begins[:, t]))
            memories.append(memory)
        return torch.stack(memories, dim=1)

    @torch.no_grad()
    def _next_value(self, steps: TemporalDictTensor, features: Tensor, value: Tensor) -> Tensor:
        """Returns the value of what each step led to.

        Mostly that is what the next step acted on. Only after the last step, and where an episode
        was cut, is it seen nowhere else. On a GPU all of it is looked at: how much that is, is
        something that the host would have to wait for.
        """
        frame = steps["_observation/frame"]
        if value.is_cuda:
            next_value = self._value_after(frame, features)
        else:
            next_value = torch.cat([value[:, 1:], value[:, :1]], dim=1)
            is_unseen = steps["_observation/truncated"].clone()
            is_unseen[:, -1] = True
            next_value[is_unseen] = self._value_after(frame[is_unseen], features[is_unseen])
        return next_value.masked_fill(steps["_observation/terminated"], 0.0)

    def _value_after(self, frame: Tensor, features: Tensor) -> Tensor:
        """Returns the value [...] of frames [..., *shape] that follow features [..., n]."""
        after = self.model.features(frame)
        if self.model.memory is not None:
            memory = features.flatten(0, -2)
            after = self.model.remember(after.flatten(0, -2), memory).view_as(after)
        return self.model.value(after)


def _begun_anew(memory: Tensor, begins: Tensor) -> Tensor:
    return memory.masked_fill(begins.unsqueeze(-1), 0.0)


def create_agent(env_id: str, device: DeviceLike, **options: Any) -> Agent:
    """Creates an agent on a device, with a new model of these options for an environment."""
    return Agent(Model(*spaces_of(env_id), **options), device)
