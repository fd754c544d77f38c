"""Atari 2600 games, emulated natively and equal to ALE's. Nothing is compiled at import.

Importing it registers `rlbatch/Breakout-v5` and its like for `gymnasium.make_vec`.
"""

from rlbatch.envs.atari.build import BuildError
from rlbatch.envs.atari.console import Action, Console
from rlbatch.envs.atari.console_state import ConsoleState
from rlbatch.envs.atari.env import AtariEnv
from rlbatch.envs.atari.games import ACTIONS, GAMES, Game, find_game
from rlbatch.envs.atari.registration import register
from rlbatch.envs.atari.roms import RomError, RomNotFoundError, read_rom
from rlbatch.envs.atari.vector_env import AtariVectorEnv
from rlbatch.envs.atari.video import record_video

__all__ = [
    "ACTIONS",
    "GAMES",
    "Action",
    "AtariEnv",
    "AtariVectorEnv",
    "BuildError",
    "Console",
    "ConsoleState",
    "Game",
    "RomError",
    "RomNotFoundError",
    "find_game",
    "read_rom",
    "record_video",
    "register",
]

register()
