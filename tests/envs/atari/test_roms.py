"""ROM files: found, checked, and what is said of those that are none."""

import importlib.util
import os
import pickle
import subprocess
import sys

import pytest

from rlbatch.envs.atari import GAMES, Console, RomError, RomNotFoundError, find_game, read_rom
from rlbatch.envs.atari.roms import guess_cart, identify, open_rom, rom_folder

pytest.importorskip("ale_py")

PONG = GAMES["pong"]


def test_every_game_has_its_rom():
    assert len(GAMES) == 104
    for game in GAMES.values():
        rom = read_rom(game)  # The MD5 is checked there.
        assert len(rom) == game.size
        assert identify(rom) is game


def test_finding_roms_does_not_import_ale_py():
    code = (
        "import sys; from rlbatch.envs.atari import GAMES, read_rom; read_rom(GAMES['pong']); "
        "print('ale_py' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False"]


def test_without_ale_py_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RomNotFoundError, match=r"pip install rlbatch\[atari\]"):
        read_rom(PONG)


def test_an_ale_py_without_roms_is_none(monkeypatch, tmp_path):
    (tmp_path / "ale_py").mkdir()
    monkeypatch.delitem(sys.modules, "ale_py", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(RomNotFoundError, match=r"ROMs: expected the package ale-py"):
        read_rom(PONG)


def test_a_rom_may_come_from_a_path_or_as_bytes(rom_file):
    rom = read_rom(PONG)
    path = rom_file("anything.rom", rom)
    assert read_rom(PONG, path) == read_rom(PONG, str(path)) == read_rom(PONG, rom) == rom


@pytest.mark.parametrize(
    ("change", "size"),
    [
        pytest.param(lambda rom: rom[:-8], 2040, id="truncated"),
        pytest.param(lambda rom: b"", 0, id="empty"),
        pytest.param(lambda rom: rom + b"\0", 2049, id="longer"),
        pytest.param(lambda rom: rom[::-1], 2048, id="other content"),
    ],
)
def test_a_rom_that_is_another_one_is_refused(rom_file, change, size):
    path = rom_file("pong.bin", change(read_rom(PONG)))
    expected = rf"pong\.bin: expected pong: 2048 bytes with MD5 {PONG.md5}, got {size} bytes"
    with pytest.raises(RomError, match=expected) as caught:
        read_rom(PONG, path)
    assert caught.value.where == str(path)


def test_an_oversized_file_is_not_read_to_its_end(rom_file):
    with pytest.raises(RomError, match="at most 16384 bytes, got 1000000 bytes"):
        read_rom(PONG, rom_file("pong.bin", bytes(1_000_000)))
    with pytest.raises(RomError, match="/dev/zero: expected a ROM of at most 16384 bytes"):
        read_rom(PONG, "/dev/zero")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(RomNotFoundError, match=r"nothing\.bin: expected a ROM file, got no such"):
        read_rom(PONG, tmp_path / "nothing.bin")
    with pytest.raises(RomError, match="expected a ROM file, got Is a directory"):
        read_rom(PONG, tmp_path)
    with pytest.raises(TypeError):
        read_rom(PONG, 3)  # type: ignore[arg-type]


def test_a_missing_file_is_also_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_rom(PONG, tmp_path / "nothing.bin")


def test_errors_pickle():
    for kind in (RomError, RomNotFoundError):
        original = kind("pong.bin", "a ROM", "nothing")
        original.add_note("in environment 3")
        error = pickle.loads(pickle.dumps(original))
        assert error.__notes__ == ["in environment 3"]
        assert type(error) is kind
        assert (error.where, error.expected, error.found) == ("pong.bin", "a ROM", "nothing")
        assert str(error) == "pong.bin: expected a ROM, got nothing"


def test_the_kind_of_most_cartridges_shows_in_their_size():
    # Those of 8 KB that switch banks in another way than F8 are known by their MD5 alone.
    for game in GAMES.values():
        if game.cart not in ("E0", "FE"):
            assert guess_cart(read_rom(game)) == game.cart, game.name


@pytest.mark.parametrize(("size", "cart"), [(4096, "2K"), (8192, "4K"), (16384, "F6")])
def test_a_small_rom_whose_halves_are_equal_counts_as_one_of_them(size, cart):
    half = bytes(range(256)) * (size // 512)
    assert guess_cart(half * 2) == cart


@pytest.mark.parametrize("n_halves", [2, 4])
def test_a_rom_that_is_there_twice_is_opened_once(n_halves):
    rom, game = open_rom(read_rom(PONG) * n_halves, rule="pong")
    assert (len(rom), game.cart) == ((2048, "2K") if n_halves == 2 else (4096, "4K"))
    console = Console()
    console.loadROM(read_rom(PONG) * n_halves, rule="pong")
    assert [console.act(0) for _ in range(3)] == [0, 0, 0]


def test_a_pipe_is_no_rom(tmp_path):
    os.mkfifo(tmp_path / "pong.bin")
    with pytest.raises(RomError, match=r"pong.bin: expected a ROM file, got a pipe"):
        read_rom(PONG, tmp_path / "pong.bin")


@pytest.mark.parametrize("size", [0, 1, 2047, 4097, 10494, 16383])
def test_other_sizes_are_no_cartridge(size):
    message = f"rom: expected 2048, 4096, 8192, 10495 or 16384 bytes, got {size} bytes"
    with pytest.raises(RomError, match=message):
        guess_cart(bytes(size))


@pytest.mark.parametrize("name", ["ms_pacman", "MsPacman", "ALE/MsPacman-v5"])
def test_a_game_is_opened_by_its_name(name):
    rom, game = open_rom(name)
    assert game.name == "ms_pacman"
    assert identify(rom) is game


def test_the_md5_decides_before_the_name_of_the_file(rom_file):
    assert open_rom(rom_file("breakout.bin", read_rom(PONG)))[1] is PONG
    assert open_rom(read_rom(PONG))[1] is PONG


def test_an_unknown_rom_gets_the_rule_of_the_game_its_file_is_named_after(rom_file):
    path = rom_file("surround.bin", bytes(range(256)) * 32)
    game = open_rom(path)[1]
    surround = GAMES["surround"]
    assert (game.name, game.rule, game.modes) == ("surround", surround.rule, surround.modes)
    assert game.cart == "4K"
    assert game.md5 != surround.md5
    assert surround.swap_ports
    assert not game.swap_ports  # That belongs to the ROM.


def test_an_unknown_rom_may_be_given_a_rule():
    assert open_rom(bytes(4096), rule="Pitfall2")[1].name == "pitfall2"
    assert open_rom(bytes(4096), rule="skiing")[1].n_legal_actions == 9
    assert open_rom(bytes(4096), rule="breakout")[1].difficulties == (0, 1)
    for name in ("pong", "skiing"):
        game = open_rom(bytes(4096), rule=name)[1]
        assert game.minimal_actions == GAMES[name].minimal_actions
    with pytest.raises(ValueError, match="^game: expected one of the 104"):
        open_rom(bytes(4096), rule="chess_2000")


def test_an_unknown_rom_without_a_rule_is_refused(rom_file):
    path = rom_file("homebrew.bin", bytes(4096))
    with pytest.raises(
        RomError, match=r"homebrew\.bin: expected the MD5 of a known game, .*`rule`"
    ):
        open_rom(path)
    with pytest.raises(RomError, match="rom: expected the MD5 of a known game"):
        open_rom(bytes(4096))


def test_a_rule_that_contradicts_the_md5_is_refused():
    with pytest.raises(ValueError, match="rule: expected pong, whose ROM this is, got 'breakout'"):
        open_rom(read_rom(PONG), rule="breakout")
    assert open_rom("pong", rule="pong")[1] is PONG


def test_games_for_two_players_are_refused():
    with pytest.raises(ValueError, match="single player, got 'combat'"):
        open_rom("combat")
    with pytest.raises(RomError, match=r"combat\.bin: .*single player"):
        open_rom(rom_folder() / "combat.bin")


def test_a_path_is_not_taken_for_the_name_of_a_game(tmp_path):
    for path in ("pong.bin", str(tmp_path / "pong")):
        with pytest.raises(RomNotFoundError, match="no such file"):
            open_rom(path)
    assert find_game("pong") is PONG


def test_ram_in_a_cartridge_is_known_by_all_of_its_banks():
    with_ram, without = bytes(256) + bytes(range(256)) * 15, bytes(range(256)) * 16
    assert guess_cart(with_ram + without) == "F8"
    assert guess_cart(with_ram + with_ram[:-1] + b"\1") == "F8SC"


def test_a_changed_rom_with_the_rule_of_a_game_has_its_paddles():
    game = next(one for one in GAMES.values() if one.paddle_max != GAMES["pong"].paddle_max)
    rom = bytearray(read_rom(game))
    rom[0] ^= 1
    assert open_rom(bytes(rom), game.name)[1].paddle_max == game.paddle_max


def test_a_file_in_the_current_folder_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "cartridge").write_bytes(read_rom(GAMES["pong"]))
    monkeypatch.chdir(tmp_path)
    assert open_rom("cartridge")[1].name == "pong"
