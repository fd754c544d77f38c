"""The settings of a console, by ALE's names."""

from __future__ import annotations

import numpy as np

from rlbatch.envs.atari.games import SYSTEM_SEED

Setting = int | float | bool | str

INT32 = range(-(2**31), 2**31)

# ALE's settings and their values at the start; the type of a value is that of the setting.
DEFAULTS: dict[str, Setting] = {
    "random_seed": -1,
    "system_random_seed": SYSTEM_SEED,
    "frame_skip": 1,
    "max_num_frames": 0,
    "max_num_frames_per_episode": 0,
    "reward_min": INT32.start,
    "reward_max": INT32.stop - 1,
    "paddle_min": -1,
    "paddle_max": -1,
    "repeat_action_probability": 0.25,
    "truncate_on_loss_of_life": False,
    "color_averaging": False,
    "display_screen": False,
    "restricted_action_set": False,
    "send_rgb": False,
    "sound_obs": False,
    "cpu": "low",
    "palette": "standard",
    "record_screen_dir": "",
    "record_sound_filename": "",
    "rom_file": "",
}

# What would have to do something else than at the start, and is not built.
_FIXED = {"color_averaging", "cpu", "display_screen", "paddle_min", "palette", "sound_obs"}
_FIXED |= {"record_screen_dir", "record_sound_filename"}


def as_stored(value: float) -> float:
    """Returns a number as ALE keeps it: in 32 bits, and of these six decimal digits."""
    return float(np.float32(f"{np.float32(value):.6g}"))


def check_setting(key: str, value: Setting) -> None:
    """Checks a new value.

    Raises:
        KeyError: No setting of that name is of its type.
        ValueError: This setting cannot be changed.
    """
    kind = type(value)
    if type(DEFAULTS.get(key)) is not kind:
        known = ", ".join(name for name, default in DEFAULTS.items() if type(default) is kind)
        raise KeyError(
            f"setting: expected one of {known} for a value of {kind.__name__}, got {key}"
        )
    if key in _FIXED and value != DEFAULTS[key]:
        raise ValueError(f"{key}: expected {DEFAULTS[key]!r}, the only value, got {value!r}")
