"""Small networks, and the features of an observation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn


def linear(n_inputs: int, n_outputs: int, gain: float = 1.0) -> nn.Linear:
    """Returns a linear layer with orthogonal weights, scaled by `gain`, and zero bias."""
    return _orthogonal(nn.Linear(n_inputs, n_outputs), gain)


class MLP(nn.Sequential):
    """An `nn.Sequential` whose `forward` `torch.compile` compiles; it skips PyTorch's own."""

    def forward(self, features: Tensor) -> Tensor:
        """Returns what the last layer makes of [..., n_inputs], of any real dtype."""
        features = features.float()
        for layer in self:
            features = layer(features)
        return features


def mlp(n_inputs: int, hidden_size: int) -> MLP:
    """Returns two hidden layers with tanh, from [..., n_inputs] to [..., hidden_size]."""
    return MLP(
        linear(n_inputs, hidden_size, gain=math.sqrt(2)),
        nn.Tanh(),
        linear(hidden_size, hidden_size, gain=math.sqrt(2)),
        nn.Tanh(),
    )


def encoder(observation_space: spaces.Box, hidden_size: int, compiled: bool = False) -> nn.Module:
    """Returns a module from observations to features [..., hidden_size].

    Args:
        observation_space: Of shape [n], for an MLP, or [stack, height, width] uint8, for a
            `NatureCNN`.
        hidden_size: Of the features.
        compiled: Whether `torch.compile` makes code for it, when it is first called.

    Raises:
        ValueError: The observations are neither.
    """
    shape = observation_space.shape
    if len(shape) == 1:
        made: nn.Module = mlp(shape[0], hidden_size)
    elif len(shape) == 3 and observation_space.dtype == "uint8":
        made = NatureCNN(shape, hidden_size)
    else:
        raise ValueError(
            "observation_space: expected [n] or [stack, height, width] uint8, "
            f"got {observation_space}"
        )
    if compiled:
        made.compile()
    return made


class NatureCNN(nn.Module):
    """The convolutions of DQN, and one linear layer.

    Weights and activations are channels-last, which convolutions on CPUs and tensor cores prefer.
    Frames are centred and scaled inside; `mean` and `scale` say how.

    Args:
        shape: [stack, height, width] of an observation.
        hidden_size: Of the features; 512 in the source.

    Attributes:
        mean: [height, width] float32, what is subtracted from every frame: whole numbers, so that
            nothing is lost in bfloat16; 0 at first.
        scale: float32, what frames are divided by after that; 255 at first.

    Source:
        Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015,
        "Model architecture" in the methods.
    """

    def __init__(self, shape: Sequence[int], hidden_size: int):
        super().__init__()
        gain = math.sqrt(2)
        self._first = _orthogonal(nn.Conv2d(shape[0], 32, kernel_size=8, stride=4), gain)
        self._others = nn.Sequential(
            nn.ReLU(),
            _orthogonal(nn.Conv2d(32, 64, kernel_size=4, stride=2), gain),
            nn.ReLU(),
            _orthogonal(nn.Conv2d(64, 64, kernel_size=3, stride=1), gain),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            n_features = self._others(self._first(torch.zeros(1, *shape))).shape[-1]
        self._others.extend([linear(n_features, hidden_size, gain), nn.ReLU()])
        self.register_buffer("mean", torch.zeros(shape[1:]))
        self.register_buffer("scale", torch.tensor(255.0))
        self.to(memory_format=torch.channels_last)

    def normalize(self, mean: Tensor, scale: Tensor) -> None:
        """Sets what is subtracted from frames and what they are divided by; see the attributes."""
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, frame: Tensor) -> Tensor:
        """Returns features [..., hidden_size] of frames [..., stack, height, width] uint8."""
        device = frame.device.type
        is_mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_mixed else torch.float32
        # Bytes are exact in bfloat16 too. Scaling the weights is less work than scaling the frames.
        frames = frame.flatten(0, -4).contiguous(memory_format=torch.channels_last).to(dtype)
        weight, bias = self._first.weight / self.scale, self._first.bias
        first = torch.conv2d(frames - self.mean.to(dtype), weight, bias, self._first.stride)
        return self._others(first).unflatten(0, frame.shape[:-3])


def _orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
