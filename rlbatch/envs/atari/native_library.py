"""The native library of the host: its C functions, and what they are told of a cartridge."""

from __future__ import annotations

import ctypes
import functools

from rlbatch.envs.atari.build import BuildError, host_library
from rlbatch.envs.atari.games import CARTS, Game


class ConsoleConfig(ctypes.Structure):
    """What the native code has to know of a cartridge: `Config` in `native/state.h`.

    `cart` is a place in `CARTS`. With `detect_format`, `pal` is decided as ALE does, by counting
    the lines of the first frames; for PAL the height becomes 250.
    """

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rule", "cart", "rom_size", "ystart", "height")),
        *((name, ctypes.c_int32) for name in ("pal", "detect_format", "hmove_blanks", "paddles")),
        *((name, ctypes.c_int32) for name in ("swap_ports", "swap_paddles", "n_legal_actions")),
        *((name, ctypes.c_int32) for name in ("paddle_max", "detection_difficulty")),
        ("system_seed", ctypes.c_uint32),
    ]


def console_config(
    game: Game, rom_size: int, system_seed: int, paddle_max: int, *, detect_format: bool = False
) -> ConsoleConfig:
    """Returns the configuration of a console for one game.

    Args:
        game: The game; its `pal` and `height` are where the detection starts, if there is one.
        rom_size: Bytes of the ROM.
        system_seed: Seed of what is random in the console: its RAM and timer at power-on.
        paddle_max: Largest resistance of a paddle, in ohms.
        detect_format: Whether `pal` is to be found out, for a ROM that nobody knows.
    """
    return ConsoleConfig(
        rule=game.rule,
        cart=CARTS.index(game.cart),
        rom_size=rom_size,
        ystart=game.ystart,
        height=game.height,
        pal=game.pal,
        detect_format=detect_format,
        hmove_blanks=game.hmove_blanks,
        paddles=game.paddles,
        swap_ports=game.swap_ports,
        swap_paddles=game.swap_paddles,
        n_legal_actions=game.n_legal_actions,
        paddle_max=paddle_max,
        detection_difficulty=game.detection_difficulty,
        system_seed=system_seed,
    )


@functools.cache
def load_library() -> ctypes.CDLL:
    """Returns the host library, made first where that is necessary.

    Raises:
        BuildError: There is neither a library nor a compiler, or one of them does not work.
    """
    path = host_library()
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _signatures().items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BuildError(
            f"{path}: expected a library of this version, got {error}; "
            "`python -m rlbatch.doctor` says what to do"
        ) from error
    check_size(library, "Config", ctypes.sizeof(ConsoleConfig))
    return library


def check_size(library: ctypes.CDLL, name: str, n_bytes: int) -> None:
    """Checks that a structure is as large here as in the library, which reads and writes it.

    Raises:
        BuildError: It is not.
    """
    found = library.rlb_size_of(name.encode())
    if found != n_bytes:
        raise BuildError(f"host.cpp: expected a {name} of {n_bytes} bytes, as here, got {found}")


def _signatures() -> dict[str, tuple]:
    """Lists the functions of the library: type of the result, then those of the arguments."""
    pointer, i32, u32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32
    i64, real, none = ctypes.c_int64, ctypes.c_double, None
    return {
        "rlb_console_new": (pointer, ctypes.c_char_p, ctypes.POINTER(ConsoleConfig)),
        "rlb_console_free": (none, pointer),
        "rlb_console_load": (none, pointer, u32),
        "rlb_console_reset": (none, pointer),
        "rlb_console_act": (i32, pointer, i32, ctypes.c_float),
        "rlb_console_get": (real, pointer, i32),
        "rlb_console_set": (none, pointer, i32, real),
        "rlb_console_ram": (pointer, pointer),
        "rlb_console_set_ram": (none, pointer, i32, i32),
        "rlb_console_screen": (pointer, pointer),
        "rlb_console_rgb": (none, pointer, pointer),
        "rlb_console_gray": (none, pointer, pointer),
        "rlb_console_state_size": (i64, pointer, i32),
        "rlb_console_save": (none, pointer, pointer, i32),
        "rlb_console_restore": (i32, pointer, ctypes.c_char_p, i64),
        "rlb_console_import": (i32, pointer, ctypes.c_char_p, ctypes.c_char_p, i64, pointer),
        "rlb_batch_import": (i32, pointer, i32, ctypes.c_char_p, ctypes.c_char_p, i64, pointer),
        "rlb_size_of": (i64, ctypes.c_char_p),
        "rlb_resize": (i32, i32, i32, i32, pointer),
        "rlb_batch_new": (pointer, i32, i32, *[pointer] * 4, i32, i32),
        "rlb_batch_threads": (i32, pointer),
        "rlb_batch_free": (none, pointer),
        "rlb_batch_send": (none, pointer, i32, pointer, pointer),
        "rlb_batch_under_way": (i32, pointer),
        "rlb_batch_wait": (none, pointer, i32),
        "rlb_batch_recv": (none, pointer, i32, pointer),
        "rlb_batch_run": (none, pointer, i32, pointer, pointer),
        "rlb_batch_ram": (pointer, pointer, i32),
        "rlb_batch_rgb": (none, pointer, i32, pointer),
        "rlb_batch_height": (i32, pointer, i32),
        "rlb_batch_bytes": (i64, pointer),
        "rlb_batch_state_size": (i64, pointer),
        "rlb_batch_save": (none, pointer, i32, pointer),
        "rlb_batch_restore": (none, pointer, i32, pointer),
        "rlb_reseed": (none, pointer, u32),
        "rlb_batch_power_on": (none, pointer, i32, pointer),
        "rlb_batch_known_resets": (none, pointer, i32, pointer),
        "rlb_batch_list_known": (none, pointer, i32, pointer, pointer),
        "rlb_batch_save_known": (none, pointer, i32, i32, pointer),
    }
