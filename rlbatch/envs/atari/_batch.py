"""What batches of environments have in common, on a CPU and on a GPU: who plays what, and states.

A state is a header that says whose it is, and the core's bytes. States stay where they are: of many
environments on a GPU they are gigabytes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlbatch.envs.atari._options import Settings, check_count
from rlbatch.envs.atari.games import SCREEN_WIDTH, Game
from rlbatch.envs.atari.native_library import load_library
from rlbatch.errors import ShapeError

HEADER_BYTES = 16  # Two int64: whose it is, and a checksum of the bytes after them.
_STATE_VERSION = 3
_CHECKED_AT_ONCE = 1 << 24  # Bytes; meanwhile twice as many are taken.


class Batch:
    """What batches have in common, whatever steps their environments.

    Args:
        games: Their games; environment i plays `games[i % len(games)]`.
        n_envs: How many environments there are.
        settings: What is the same for all of them.
        actions: Numbers of the actions that can be chosen; None for those of `games`.

    Attributes:
        n_envs: How many environments there are.
        settings: What is the same for all of them.
        games: The different games, or modes and difficulties of them.
        game_of: The game of each environment.
        actions: Numbers of the actions that can be chosen, see `games.ACTIONS`.
        shape: [n_envs, *observation_shape].
        device: Where they and their states are.

    Raises:
        TypeError, ValueError: An argument, or an option for one of the games, is out of range.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        games: Sequence[Game],
        n_envs: int,
        settings: Settings,
        actions: tuple[int, ...] | None = None,
    ):
        check_count("n_envs", n_envs, 1)
        _check_fits(settings, games)
        self.n_envs, self.settings = int(n_envs), settings
        self.games = list(dict.fromkeys(games))
        self.game_of = [games[i % len(games)] for i in range(self.n_envs)]
        self.actions = actions or actions_of(games, settings.full_action_space)
        self.shape = (self.n_envs, *settings.observation_shape)

    def __reduce__(self) -> Any:
        raise TypeError(
            "copy: expected none of an Atari environment, whose memory is native, got one; "
            "get_state and set_state carry games over"
        )

    def ids(self, ids: Any) -> list[int]:
        """Returns numbers of environments as a list; all of them for None.

        Raises:
            TypeError: They are not integers, but a mask for instance.
            ValueError: There is no such environment.
        """
        if ids is None:
            return list(range(self.n_envs))
        found = np.atleast_1d(np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids))
        if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
            raise TypeError(f"ids: expected integers, got {ids!r}")
        numbers = [int(one) for one in found]
        for number in numbers:
            if not 0 <= number < self.n_envs:
                raise ValueError(f"ids: expected numbers from 0 to {self.n_envs - 1}, got {number}")
        return numbers

    def ids_once(self, ids: Any) -> list[int]:
        """Returns numbers of environments that are to be written; see `ids`.

        Raises:
            ValueError: One of them is there twice, and which is to stay is not known.
        """
        numbers = self.ids(ids)
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"ids: expected every environment once, got {numbers}")
        return numbers

    # --- States: a header that says whose they are, and the core's bytes. ---

    def write_headers(self, ids: list[int], states: torch.Tensor) -> None:
        """Writes the headers of states [n, n_bytes] uint8, of whose bytes they tell."""
        headers = torch.stack([self._owners(ids), checksums(states[:, HEADER_BYTES:])], dim=1)
        states[:, :HEADER_BYTES] = headers.view(torch.uint8)

    def _bodies(
        self, ids: list[int], states: torch.Tensor, n_bytes: int, seeds: np.ndarray | None
    ) -> torch.Tensor:
        """Returns the core's bytes of states, [n, n_bytes] uint8; of new seeds if there are any.

        Raises:
            ShapeError: The states are of another shape or dtype.
            ValueError: One is damaged, or of another game, other options or another version.
        """
        expected = len(ids), HEADER_BYTES + n_bytes
        if states.shape != expected or states.dtype != torch.uint8:
            raise ShapeError(
                f"states: expected {expected} uint8, got {tuple(states.shape)} {states.dtype}"
            )
        # Of a single row, as a part of a wider tensor, `contiguous` would leave the stride.
        states = states.to(self.device).reshape(-1).view(expected)
        bodies = states[:, HEADER_BYTES:]
        headers = states[:, :HEADER_BYTES].clone(memory_format=torch.contiguous_format)
        owners, sums = headers.view(torch.int64).T
        is_own, is_whole = owners == self._owners(ids), sums == checksums(bodies)
        for number, own, whole in zip(ids, is_own.tolist(), is_whole.tolist(), strict=True):
            if not own:
                raise ValueError(
                    f"states: expected one of {self.game_of[number].name} with the options of "
                    f"environment {number}, got one of another game, "
                    "of other options, of another list of actions, or of another version"
                )
            if not whole:
                raise ValueError("states: expected one as it was saved, got one that was changed")
        return bodies if seeds is None else _reseeded(bodies, seeds)

    def _owners(self, ids: list[int]) -> torch.Tensor:
        return torch.tensor([self._owner(one) for one in ids], dtype=torch.int64).to(self.device)

    def _owner(self, number: int) -> int:
        return _owner(self.game_of[number], tuple(self.actions), self.settings)


@functools.cache
def _owner(game: Game, actions: tuple[int, ...], settings: Settings) -> int:
    """Returns a number for a game with its options, by which states know whose they are."""
    played = game.md5, game.mode, game.difficulty
    options = dataclasses.asdict(settings)
    del options["full_action_space"]  # What matters of it are the actions.
    text = json.dumps([played, actions, _STATE_VERSION, options])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def checksums(bodies: torch.Tensor) -> torch.Tensor:
    """Returns a checksum of each row of [n, n_bytes] uint8, as int64; the same on every device.

    It is the sum of 32-bit words, each times an odd number of its own, modulo 2^64. So no change of
    a single word leaves it as it was.
    """
    if not bodies.numel():
        return torch.zeros(len(bodies), dtype=torch.int64, device=bodies.device)
    if bodies.shape[1] % 4 or bodies.storage_offset() % 4:
        bodies = torch.nn.functional.pad(bodies, (0, -bodies.shape[1] % 4))
    if bodies.is_cpu:  # PyTorch takes memory for all products, and threads that wait for others.
        words = bodies.numpy().view(np.int32)
        odd = 2 * np.arange(words.shape[1]) + 1
        return torch.from_numpy(np.einsum("rw,w->r", words, odd) * _ODD)
    return checksums_anywhere(bodies)


def checksums_anywhere(bodies: torch.Tensor) -> torch.Tensor:
    """Returns the same of rows of whole words, on any device."""
    factors = (2 * torch.arange(bodies.shape[1] // 4, device=bodies.device) + 1) * _ODD
    parts = bodies.split(max(1, _CHECKED_AT_ONCE // bodies.shape[1]))
    return torch.cat([(part.view(torch.int32) * factors).sum(1) for part in parts])


# 2^64 divided by the golden ratio, as a number with a sign (Knuth, The Art of Computer Programming,
# vol. 3, 6.4).
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)


def _reseeded(bodies: torch.Tensor, seeds: np.ndarray) -> torch.Tensor:
    """Returns copies of a core's bytes with other seeds, which are in their first part."""
    library = load_library()
    n_bytes = library.rlb_size_of(b"Reseeded")
    firsts = bodies[:, :n_bytes].cpu().numpy().copy()
    for first, seed in zip(firsts, seeds, strict=True):
        library.rlb_reseed(first.ctypes.data, int(seed))
    bodies = bodies.clone()
    bodies[:, :n_bytes] = torch.from_numpy(firsts).to(bodies.device)
    return bodies


def _check_fits(settings: Settings, games: Sequence[Game]) -> None:
    # The options whose range depends on the game.
    if settings.is_ram:
        return
    for game in games:
        if settings.img_height > game.height:
            raise ValueError(
                f"img_height: expected at most {game.height}, the lines of {game.name}, "
                f"got {settings.img_height}"
            )
    if settings.img_width > SCREEN_WIDTH:
        raise ValueError(f"img_width: expected at most {SCREEN_WIDTH}, got {settings.img_width}")


def actions_of(games: Sequence[Game], full_action_space: bool) -> tuple[int, ...]:
    """Returns the numbers of the actions that can be chosen in all of some games.

    An action that a game of several does not accept does nothing there.
    """
    if len({game.name for game in games}) > 1:
        return tuple(range(18))
    return games[0].legal_actions if full_action_space else games[0].minimal_actions
