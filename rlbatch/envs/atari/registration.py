"""Names for `gymnasium.make_vec`: `rlbatch/Breakout-v5` and its like."""

from __future__ import annotations

import gymnasium

from rlbatch.envs.atari.games import GAMES

NAMESPACE = "rlbatch"


def register() -> None:
    """Registers the 104 games with Gymnasium, with the options of `ALE/...-v5`.

    Importing `rlbatch.envs.atari` does it; doing it again changes nothing.

    Example:
        >>> import rlbatch.envs.atari
        >>> env = gymnasium.make_vec("rlbatch/Breakout-v5", num_envs=4)
        >>> env.reset(seed=0)[0].shape
        (4, 4, 84, 84)
    """
    for name in GAMES:
        identifier = f"{NAMESPACE}/{gymnasium_name(name)}-v5"
        if identifier in gymnasium.registry:
            continue
        gymnasium.register(
            identifier,
            vector_entry_point="rlbatch.envs.atari.vector_env:AtariVectorEnv",
            kwargs={
                "game": name,
                "repeat_action_probability": 0.25,
                "full_action_space": False,
                "frameskip": 4,
                "max_num_frames_per_episode": 108_000,
            },
        )


def gymnasium_name(name: str) -> str:
    """Returns a game's name as Gymnasium writes it.

    Example:
        >>> gymnasium_name("ms_pacman")
        'MsPacman'
    """
    return name.title().replace("_", "")
