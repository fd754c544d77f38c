"""The last layer of a policy: from features to a distribution over an action space."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from algos.networks import linear

# Actions start out nearly uniform, whatever the features.
_GAIN = 0.01


def policy_head(action_space: spaces.Space, n_features: int) -> nn.Module:
    """Returns a module from features [..., n_features] to a distribution over actions.

    The distribution has the batch shape of the features. Its actions have the shape of the action
    space, and `log_prob` and `entropy` are sums over that shape.

    Args:
        action_space: Discrete or MultiDiscrete (both starting at 0), or Box of floating-point
            numbers.
        n_features: The size of the last dimension of the features.

    Raises:
        TypeError: The action space is none of these.
        ValueError: It does not start at 0.
    """
    if isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete)):
        if action_space.start.any():
            raise ValueError(f"action_space: expected actions from 0 on, got {action_space}")
        if isinstance(action_space, spaces.Discrete):
            return CategoricalHead(n_features, int(action_space.n))
        return MultiCategoricalHead(n_features, torch.from_numpy(action_space.nvec))
    if isinstance(action_space, spaces.Box) and action_space.dtype.kind == "f":
        return NormalHead(n_features, action_space.shape)
    raise TypeError(
        "action_space: expected Discrete, MultiDiscrete or a Box of floating-point numbers, got "
        f"{action_space}"
    )


class CategoricalHead(nn.Module):
    """One of `n_actions` actions."""

    def __init__(self, n_features: int, n_actions: int):
        super().__init__()
        self.logits = linear(n_features, n_actions, _GAIN)

    def forward(self, features: Tensor) -> Distribution:
        """Returns a distribution over int64 actions [...]."""
        return Categorical(logits=self.logits(features), validate_args=False)


class MultiCategoricalHead(nn.Module):
    """Several independent choices, each of a number of actions of its own."""

    def __init__(self, n_features: int, n_actions: Tensor):
        super().__init__()
        impossible = torch.arange(int(n_actions.max())) >= n_actions.unsqueeze(-1)
        self.register_buffer("impossible", impossible)
        self.logits = linear(n_features, impossible.numel(), _GAIN)

    def forward(self, features: Tensor) -> Distribution:
        """Returns a distribution over int64 actions [..., *shape of the choices]."""
        logits = self.logits(features).unflatten(-1, self.impossible.shape)
        choices = Categorical(
            logits=logits.masked_fill(self.impossible, -torch.inf), validate_args=False
        )
        return Independent(choices, self.impossible.dim() - 1, validate_args=False)


class NormalHead(nn.Module):
    """Real numbers, unbounded; their standard deviations are learned but ignore the features."""

    def __init__(self, n_features: int, shape: tuple[int, ...]):
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(shape))
        self.mean = linear(n_features, self.log_std.numel(), _GAIN)

    def forward(self, features: Tensor) -> Distribution:
        """Returns a distribution over float32 actions [..., *shape]."""
        mean = self.mean(features).reshape(*features.shape[:-1], *self.log_std.shape)
        normal = Normal(mean, self.log_std.exp().expand_as(mean), validate_args=False)
        return Independent(normal, self.log_std.dim(), validate_args=False)
