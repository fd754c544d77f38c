"""Small networks."""

from __future__ import annotations

import math

from torch import nn


def linear(n_inputs: int, n_outputs: int, gain: float = 1.0) -> nn.Linear:
    """Returns a linear layer with orthogonal weights, scaled by `gain`, and zero bias."""
    layer = nn.Linear(n_inputs, n_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(n_inputs: int, hidden_size: int) -> nn.Sequential:
    """Returns two hidden layers with tanh, from [..., n_inputs] to [..., hidden_size]."""
    return nn.Sequential(
        linear(n_inputs, hidden_size, gain=math.sqrt(2)),
        nn.Tanh(),
        linear(hidden_size, hidden_size, gain=math.sqrt(2)),
        nn.Tanh(),
    )
