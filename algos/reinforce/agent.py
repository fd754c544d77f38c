"""The agent of REINFORCE: a policy that draws actions, and a baseline for the learner."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Distribution

from algos.environments import spaces_of
from algos.networks import linear, mlp
from algos.policies import policy_head
from rlbatch import DictTensor, RL_Agent, TemporalDictTensor, Trajectories, masked_tensor
from rlbatch.devices import DeviceLike


class Model(nn.Module):
    """A policy and a baseline, two networks that share nothing.

    Args:
        observation_space: Its shape is [n].
        action_space: See `policy_head`.
        hidden_size: Width of the hidden layers.

    Raises:
        ValueError: Observations are no vectors.
    """

    def __init__(self, observation_space: spaces.Box, action_space: spaces.Space, hidden_size: int):
        super().__init__()
        if len(observation_space.shape) != 1:
            raise ValueError(
                f"observation_space: expected a shape [n], got {list(observation_space.shape)}; "
                "algos.a2c and algos.dqn learn from images"
            )
        (n_inputs,) = observation_space.shape
        self._policy = mlp(n_inputs, hidden_size).append(policy_head(action_space, hidden_size))
        self._baseline = mlp(n_inputs, hidden_size).append(linear(hidden_size, 1))

    def policy(self, frame: Tensor) -> Distribution:
        """Returns the distribution over actions, [...], for observations [..., n]."""
        return self._policy(frame)

    def baseline(self, frame: Tensor) -> Tensor:
        """Returns the expected return from observations [..., n] on, [...] float32."""
        return self._baseline(frame).squeeze(-1)


class Agent(RL_Agent):
    """Acts by a model's policy; has no state.

    `agent_info` holds, per environment, `stochastic` (draw the action, or take the likeliest) and
    `seed`; see NOTE [ seeds of episodes ] in algos/environments.py.
    """

    def __init__(self, model: Model, device: DeviceLike):
        self.model = model.to(device)
        self.info_device = device

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
        """Returns the actions and their log-probabilities."""
        policy = self.model.policy(observation["frame"])
        action = masked_tensor(policy.mode, policy.sample(), agent_info["stochastic"])
        return DictTensor({"action": action, "log_prob": policy.log_prob(action)}), state

    def update(self, info: dict[str, Tensor]) -> None:
        """Takes over a model's `state_dict`."""
        self.model.load_state_dict(info)

    def replay(self, trajectories: Trajectories) -> TemporalDictTensor:
        """Looks at all steps again, in one call and with gradients.

        Returns:
            [B, T] float32 each: `log_prob` of the actions that were taken, `entropy` of the
            policy, `baseline`. Entries on padding mean nothing.
        """
        steps = trajectories.trajectories
        policy = self.model.policy(steps["observation/frame"])
        outputs = {
            "log_prob": policy.log_prob(steps["action/action"]),
            "entropy": policy.entropy(),
            "baseline": self.model.baseline(steps["observation/frame"]),
        }
        return TemporalDictTensor(outputs, steps.lengths)


def create_agent(env_id: str, device: DeviceLike, **options: Any) -> Agent:
    """Creates an agent on a device, with a new model of these options for an environment."""
    return Agent(Model(*spaces_of(env_id), **options), device)
