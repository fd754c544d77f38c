"""ROM files: where they lie, and whether they are what they should be.

rlbatch ships none. They come with ale-py, which is found on disk but not imported, or from a path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import stat
from pathlib import Path

from rlbatch.envs.atari.games import GAMES, Game, find_game

# What cartridges without a known MD5 are taken for, by their size in bytes.
_CARTS = {2048: "2K", 4096: "4K", 8192: "F8", 10495: "DPC", 16384: "F6"}

_log = logging.getLogger(__name__)

_BY_MD5 = {game.md5: game for game in GAMES.values()}

RomLike = str | os.PathLike | bytes


class RomError(ValueError):
    """A ROM is not what it should be.

    Attributes:
        where: The file, or the name of the argument.
        expected: What it should have been.
        found: What it is.
    """

    def __init__(self, where: str, expected: str, found: str):
        super().__init__(f"{where}: expected {expected}, got {found}")
        self.where, self.expected, self.found = where, expected, found

    def __reduce__(self) -> tuple:
        return type(self), (self.where, self.expected, self.found), self.__dict__  # With notes.


class RomNotFoundError(RomError, FileNotFoundError):
    """There is no such file, or ale-py is not installed and no file was named."""


def rom_folder() -> Path:
    """Returns the folder of the installed ale-py that holds the ROMs.

    Raises:
        RomNotFoundError: ale-py is not installed.
    """
    # find_spec of a package without a dot imports nothing.
    spec = importlib.util.find_spec("ale_py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place, "roms")
        if folder.is_dir():
            return folder
    raise RomNotFoundError(
        "ROMs", "the package ale-py, or the path of a ROM (`pip install rlbatch[atari]`)", "neither"
    )


def read_rom(game: Game, path: RomLike | None = None) -> bytes:
    """Returns the ROM of a game, after checking that it is that one.

    Args:
        game: The game.
        path: File to read, or its content; the file that comes with ale-py if None.

    Raises:
        RomNotFoundError: There is no such file, or no ale-py.
        RomError: Its size or its MD5 is another one.

    Example:
        >>> from rlbatch.envs.atari import find_game
        >>> len(read_rom(find_game("pong")))
        2048
    """
    source = rom_folder() / f"{game.name}.bin" if path is None else path
    rom, where = rom_content(source)
    digest = rom_md5(rom)
    if digest != game.md5:
        raise RomError(
            where,
            f"{game.name}: {game.size} bytes with MD5 {game.md5}",
            f"{len(rom)} bytes with MD5 {digest}",
        )
    return rom


def rom_content(source: RomLike) -> tuple[bytes, str]:
    """Returns the bytes of a ROM, and how messages call it.

    Raises:
        RomNotFoundError: There is no such file.
        RomError: It cannot be read, or is no cartridge by its size.
        TypeError: `source` is something else.
    """
    if isinstance(source, bytes):
        return source, "rom"
    if not isinstance(source, (str, os.PathLike)):  # Nor the number of an open file.
        raise TypeError(f"rom: expected a path, the name of a game or bytes, got {source!r}")
    source = os.fspath(source)
    where = str(source)
    largest = max(_CARTS)
    try:
        if stat.S_ISFIFO(os.stat(source).st_mode):  # Which may never be written to.
            raise RomError(where, "a ROM file", "a pipe")
        with open(source, "rb") as file:
            rom = file.read(largest + 1)  # No more: it may be anything, even endless.
            size = max(len(rom), os.fstat(file.fileno()).st_size)
    except FileNotFoundError as error:
        raise RomNotFoundError(where, "a ROM file", "no such file") from error
    except OSError as error:
        raise RomError(where, "a ROM file", error.strerror or type(error).__name__) from error
    if size > largest:
        raise RomError(where, f"a ROM of at most {largest} bytes", f"{size} bytes")
    return rom, where


def rom_md5(rom: bytes) -> str:
    """Returns the MD5 of a ROM, which is how games are told apart, as 32 hexadecimal digits."""
    return hashlib.md5(rom, usedforsecurity=False).hexdigest()


def identify(rom: bytes) -> Game | None:
    """Returns the game whose ROM this is; None if it is none of `GAMES`."""
    return _BY_MD5.get(rom_md5(rom))


def guess_cart(rom: bytes, where: str = "rom") -> str:
    """Returns how a cartridge of an unknown game switches banks, going by its size and content.

    Of those with 8 KB that only their code tells apart, none is recognised: they are F8.

    Raises:
        RomError: No known cartridge has this size.

    Example:
        >>> guess_cart(bytes(2048)), guess_cart(bytes(range(256)) * 64)
        ('2K', 'F6')
    """
    cart = _CARTS.get(len(rom))
    if cart is None:
        *sizes, last = map(str, _CARTS)
        raise RomError(where, f"{', '.join(sizes)} or {last} bytes", f"{len(rom)} bytes")
    if cart in ("F8", "F6") and _has_ram_area(rom):
        return f"{cart}SC"
    half = len(rom) // 2
    if cart in ("4K", "F8") and rom[:half] == rom[half:]:
        return "2K" if cart == "4K" else "4K"
    return cart


def _has_ram_area(rom: bytes) -> bool:
    """Whether the part of each bank that RAM would cover holds one value throughout."""
    banks = (rom[start : start + 256] for start in range(0, len(rom), 4096))
    return all(bank == bank[:1] * 256 for bank in banks)


def open_rom(source: RomLike, rule: str | None = None) -> tuple[bytes, Game]:
    """Returns a ROM and its game; what is none of `GAMES` gets the scoring of one of them.

    The game of an unknown ROM has the ROM's own MD5, the scoring, actions and modes of the game
    that is named, and defaults for everything else.

    Args:
        source: A path, the name of a game (the file that comes with ale-py), or the bytes.
        rule: Name of the game for an unknown ROM; if None, the name of the file is taken.

    Raises:
        RomError: There is no such file, it is no cartridge, or nothing says which game it is.
        ValueError: There is no such game, or `rule` names another one than the MD5.
    """
    is_name = isinstance(source, str) and not (
        os.path.isabs(source) or Path(source).suffix or os.path.exists(source)
    )
    if is_name:
        game = find_game(str(source))
        rom = read_rom(game)
    else:
        rom, where = rom_content(source)
        game = identify(rom) or _unknown_game(rom, where, rule)
        rom = rom[: game.size]  # It may be there twice.
    if rule is not None and find_game(rule).name != game.name:
        raise ValueError(f"rule: expected {game.name}, whose ROM this is, got {rule!r}")
    return rom, game


def _unknown_game(rom: bytes, where: str, rule: str | None) -> Game:
    cart, md5 = guess_cart(rom, where), rom_md5(rom)
    try:
        scored = find_game(rule or Path(where).stem)
    except ValueError as error:
        if rule is not None:
            raise
        raise RomError(
            where,
            "the MD5 of a known game, a file with the name of one, or `rule`",
            f"{len(rom)} bytes with MD5 {md5} ({error})",
        ) from error
    _log.warning("%s: unknown MD5 %s, it runs with the scoring of %s", where, md5, scored.name)
    # What ALE knows of a game by its name. By the MD5 it knows the rest, so that is left out.
    return Game(
        scored.name,
        md5,
        cart,
        minimal_actions=scored.minimal_actions,
        modes=scored.modes,
        difficulties=scored.difficulties,
        n_legal_actions=scored.n_legal_actions,
        paddle_max=scored.paddle_max,
        reset_depends_on="play",
    )
