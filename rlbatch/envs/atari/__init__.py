"""Atari 2600 games, emulated natively and equal to ALE's. Nothing is compiled at import."""

from rlbatch.envs.atari.build import BuildError
from rlbatch.envs.atari.console import Action, Console
from rlbatch.envs.atari.console_state import ConsoleState
from rlbatch.envs.atari.games import ACTIONS, GAMES, Game, find_game
from rlbatch.envs.atari.roms import RomError, RomNotFoundError, read_rom

__all__ = [
    "ACTIONS",
    "GAMES",
    "Action",
    "BuildError",
    "Console",
    "ConsoleState",
    "Game",
    "RomError",
    "RomNotFoundError",
    "find_game",
    "read_rom",
]
