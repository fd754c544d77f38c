"""What batches of environments have in common, on a CPU and on a GPU: who plays what, and states.

A state is a header that says whose it is, and the core's bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlbatch.envs.atari._options import Settings, check_count
from rlbatch.envs.atari.games import SCREEN_WIDTH, Game
from rlbatch.envs.atari.native_library import load_library
from rlbatch.errors import ShapeError

_HEADER = np.dtype([("owner", np.uint64), ("checksum", np.uint32), ("reserved", np.uint32)])
_STATE_VERSION = 2


class Batch:
    """What batches have in common, whatever steps their environments.

    Attributes:
        n_envs: How many environments there are.
        settings: What is the same for all of them.
        games: The different games, or modes and difficulties of them.
        game_of: The game of each environment.
        actions: Numbers of the actions that can be chosen, see `games.ACTIONS`; of all games.
        shape: [n_envs, *observation_shape].

    Raises:
        TypeError, ValueError: An argument, or an option for one of the games, is out of range.
    """

    def __init__(self, games: Sequence[Game], n_envs: int, settings: Settings):
        check_count("n_envs", n_envs, 1)
        _check_fits(settings, games)
        self.n_envs, self.settings = int(n_envs), settings
        self.games = list(dict.fromkeys(games))
        self.game_of = [games[i % len(games)] for i in range(self.n_envs)]
        self.actions = _actions(self.games, settings.full_action_space)
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

    def _states(self, n: int, n_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns memory for states, and the part of it for the core's bytes."""
        states = np.empty((n, _HEADER.itemsize + n_bytes), np.uint8)
        return states, states[:, _HEADER.itemsize :]

    def _write_headers(self, ids: list[int], states: np.ndarray) -> None:
        for row, number in zip(states, ids, strict=True):
            header = row[: _HEADER.itemsize].view(_HEADER)
            header["owner"], header["reserved"] = self._owner(number), 0
            header["checksum"] = zlib.crc32(row[_HEADER.itemsize :])

    def _bodies(
        self, ids: list[int], states: np.ndarray, n_bytes: int, seeds: np.ndarray | None
    ) -> np.ndarray:
        n_bytes += _HEADER.itemsize
        if states.shape != (len(ids), n_bytes) or states.dtype != np.uint8:
            raise ShapeError(
                f"states: expected {(len(ids), n_bytes)} uint8, got {states.shape} {states.dtype}"
            )
        states = np.ascontiguousarray(states)
        for row, number in zip(states, ids, strict=True):
            header, body = row[: _HEADER.itemsize].view(_HEADER)[0], row[_HEADER.itemsize :]
            if header["owner"] != self._owner(number):
                raise ValueError(
                    f"states: expected one of {self.game_of[number].name} with the options of "
                    f"environment {number}, got one of another game, "
                    "of other options, of another list of actions, or of another version"
                )
            if header["checksum"] != zlib.crc32(body):
                raise ValueError("states: expected one as it was saved, got one that was changed")
        bodies = states[:, _HEADER.itemsize :]
        if seeds is not None:
            bodies, library = bodies.copy(), load_library()
            for body, seed in zip(bodies, seeds, strict=True):
                library.rlb_reseed(body.ctypes.data, int(seed))
        return bodies

    def _owner(self, number: int) -> int:
        return _owner(self.game_of[number], tuple(self.actions), self.settings)


@functools.cache
def _owner(game: Game, actions: tuple[int, ...], settings: Settings) -> int:
    """Returns a number for a game with its options, by which states know whose they are."""
    played = game.md5, game.mode, game.difficulty
    options = dataclasses.asdict(settings)
    del options["full_action_space"]  # What matters of it are the actions.
    text = json.dumps([played, actions, _STATE_VERSION, options])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _check_fits(settings: Settings, games: Sequence[Game]) -> None:
    # The options whose range depends on the game.
    for game in games:
        if settings.obs_type != "ram" and settings.img_height > game.height:
            raise ValueError(
                f"img_height: expected at most {game.height}, the lines of {game.name}, "
                f"got {settings.img_height}"
            )
    if settings.obs_type != "ram" and settings.img_width > SCREEN_WIDTH:
        raise ValueError(f"img_width: expected at most {SCREEN_WIDTH}, got {settings.img_width}")


def _actions(games: Sequence[Game], full_action_space: bool) -> tuple[int, ...]:
    # An action that a game of several does not accept does nothing there.
    if len({game.name for game in games}) > 1:
        return tuple(range(18))
    return games[0].legal_actions if full_action_space else games[0].minimal_actions
