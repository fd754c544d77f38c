"""`Console` beside `ale_py.ALEInterface`: the same names, meanings and values."""

import copy
import inspect
import itertools
import logging
import os
import pickle
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

from rlbatch.envs.atari import ACTIONS, GAMES, Action, Console, ConsoleState, RomError, read_rom
from rlbatch.envs.atari.roms import rom_folder
from rlbatch.errors import CallOrderError, DtypeMismatchError, ShapeError
from scripts.cartridges import cartridge

ale_py = pytest.importorskip("ale_py")

# What ale-py has and a console here does not.
LEFT_OUT = {"getAudio", "getAudioSize"}


def ale_console(**settings):
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return configured(ale_py.ALEInterface(), **settings)


def configured(console, **settings):
    for key, value in settings.items():
        kind = {bool: "Bool", int: "Int", float: "Float"}[type(value)]
        getattr(console, f"set{kind}")(key, value)
    return console


def both(game, **settings):
    """ale-py's console and ours with the same game and settings."""
    settings = {"random_seed": 1, "repeat_action_probability": 0.0, **settings}
    consoles = ale_console(**settings), configured(Console(), **settings)
    for console in consoles:
        console.loadROM(str(rom_folder() / f"{game}.bin"))
    return consoles


def play(console, n_steps, actions=(0, 1, 3, 4)):
    """What an agent sees of some steps."""
    seen = []
    for action in itertools.islice(itertools.cycle(actions), n_steps):
        reward = console.act(action)
        flags = console.game_over(), console.game_truncated(), console.lives()
        counters = console.getFrameNumber(), console.getEpisodeFrameNumber()
        seen.append((reward, *flags, *counters, console.getRAM().tobytes()))
    return seen


def test_has_the_methods_of_ale_py():
    names = {name for name in dir(ale_py.ALEInterface) if not name.startswith("_")}
    assert len(names) > 30
    assert names - set(dir(Console)) == LEFT_OUT


def test_has_the_methods_of_ale_pys_states():
    names = {name for name in dir(ale_py.ALEState) if not name.startswith("_")}
    assert names <= set(dir(ConsoleState))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_console_is_not_copied(copied):
    with pytest.raises(TypeError, match="^Console: expected no copy of it"):
        copied(Console())


def test_settings_start_as_in_ale_py():
    ale, console = ale_console(), Console()
    for key in (*console._settings, "no such setting"):
        for kind in ("Int", "Float", "Bool", "String"):
            if kind in ("Int", "Float") and type(console._settings.get(key)) is str:
                continue  # ale-py reads the text as a number.
            expected = getattr(ale, f"get{kind}")(key)
            assert getattr(console, f"get{kind}")(key) == expected, (key, kind)


def test_settings_are_kept_as_in_ale_py():
    ale, console = ale_console(), Console()
    for each in (ale, console):
        configured(each, frame_skip=7, repeat_action_probability=0.1, send_rgb=True)
    for key in ("frame_skip", "repeat_action_probability", "send_rgb"):
        for kind in ("Int", "Float", "Bool", "String"):
            expected = getattr(ale, f"get{kind}")(key)
            assert getattr(console, f"get{kind}")(key) == expected, (key, kind)


@pytest.mark.parametrize(
    ("kind", "key", "value", "error", "message"),
    [
        ("Int", "no such setting", 1, KeyError, "expected one of random_seed, .* got|of int"),
        ("Int", "repeat_action_probability", 1, KeyError, "random_seed, system_random_seed"),
        ("Float", "frame_skip", 1.0, KeyError, "repeat_action_probability"),
        ("Bool", "frame_skip", True, KeyError, "truncate_on_loss_of_life"),
        ("String", "random_seed", "1", KeyError, "record_screen_dir"),
        ("Int", "frame_skip", 2.0, TypeError, "integer"),
        ("Bool", "send_rgb", 1, TypeError, "expected a bool, got 1"),
        ("String", "cpu", 1, TypeError, "expected a str, got 1"),
        ("Int", "frame_skip", 0, ValueError, "frame_skip: expected at least 1, got 0"),
        ("Int", "random_seed", 2**31, ValueError, "32-bit integer, got 2147483648"),
        ("Float", "repeat_action_probability", 1.5, ValueError, r"in \[0, 1\], got 1.5"),
        ("Float", "repeat_action_probability", np.nan, ValueError, r"in \[0, 1\], got nan"),
        ("Bool", "sound_obs", True, ValueError, "expected False, the only value, got True"),
        ("Bool", "color_averaging", True, ValueError, "the only value"),
        ("String", "cpu", "high", ValueError, "expected 'low', the only value, got 'high'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(kind, key, value, error, message):
    with pytest.raises(error, match=message):
        getattr(Console(), f"set{kind}")(key, value)


@pytest.mark.parametrize("value", [1.0, 1 + 1e-9, 1])
def test_a_number_is_rounded_before_it_is_looked_at(value):
    console = Console()
    console.setFloat("repeat_action_probability", value)
    assert console.getFloat("repeat_action_probability") == 1


@pytest.mark.parametrize("value", [1 / 3, 0.1000004, 0.00012345678, 0.9999996, 1e-7, 0.25, 0.0])
def test_as_many_digits_of_a_probability_count_as_in_ale(value):
    ale_py = pytest.importorskip("ale_py")
    found = []
    for console in (ale_py.ALEInterface(), Console()):
        console.setFloat("repeat_action_probability", value)
        found.append(console.getFloat("repeat_action_probability"))
    assert found[0] == found[1]


@pytest.mark.parametrize("value", [np.True_, np.False_])
def test_a_setting_may_be_a_bool_of_numpy(value):
    console = Console()
    console.setBool("truncate_on_loss_of_life", value)
    assert console.getBool("truncate_on_loss_of_life") is bool(value)


def test_settings_wait_for_the_next_rom():
    ale, console = both("pong")
    for each in (ale, console):
        configured(each, max_num_frames_per_episode=5, frame_skip=3)
        each.reset_game()
    assert play(console, 8) == play(ale, 8)
    assert console.getEpisodeFrameNumber() == 8
    for each in (ale, console):
        each.loadROM(str(rom_folder() / "pong.bin"))
    assert play(console, 8) == play(ale, 8)
    assert console.game_truncated()
    assert console.getEpisodeFrameNumber() == ale.getEpisodeFrameNumber() == 5


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("breakout", {"truncate_on_loss_of_life": True}),
        ("galaxian", {"truncate_on_loss_of_life": True}),
        ("amidar", {"truncate_on_loss_of_life": True}),
        ("mario_bros", {"truncate_on_loss_of_life": True}),
        ("breakout", {"max_num_frames_per_episode": 100}),
        ("breakout", {"repeat_action_probability": 0.25, "random_seed": -5}),
        ("breakout", {"system_random_seed": 7}),
        ("space_invaders", {"reward_max": 1, "frame_skip": 20}),
        ("skiing", {"reward_min": -1, "reward_max": 3}),
        ("breakout", {"paddle_max": 500_000}),
        ("breakout", {"paddle_max": 0}),
    ],
)
def test_settings_mean_the_same_as_in_ale_py(game, settings):
    ale, console = both(game, **settings)
    assert play(console, 300) == play(ale, 300)


def test_truncation_is_told_apart_from_the_end_of_the_game():
    ale, console = both("pong", max_num_frames_per_episode=3)
    for each in (ale, console):
        play(each, 3)
        assert (each.game_over(), each.game_truncated()) == (True, True)
        assert each.game_over(with_truncation=False) is False
        assert each.act(1) == 0
        assert each.getEpisodeFrameNumber() == 3


def test_what_two_games_set_the_next_one_inherits():
    ale, console = both("backgammon")
    for each in (ale, console):
        each.loadROM(str(rom_folder() / "breakout.bin"))
        assert each.getInt("paddle_max") == 1_000_000
    left = (1, 4, 4, 4, 4, 4, 4, 4)
    assert play(console, 400, left) == play(ale, 400, left)


def test_loading_starts_from_the_defaults():
    ale, console = both("breakout")
    for each in (ale, console):
        each.setMode(4)
        each.setDifficulty(1)
        each.reset_game()
        play(each, 50)
    assert (console.getMode(), console.getDifficulty()) == (4, 1)
    for each in (ale, console):
        each.loadROM(str(rom_folder() / "air_raid.bin"))
    assert (console.getMode(), console.getDifficulty()) == (1, 0)
    assert play(console, 50) == play(ale, 50)


def test_the_same_seed_gives_the_same_game():
    first, second, other = Console(), Console(), Console()
    for console, seed in ((first, 3), (second, 3), (other, 4)):
        configured(console, random_seed=seed, repeat_action_probability=0.5).loadROM("breakout")
    assert play(first, 200) == play(second, 200)
    first.loadROM("breakout")
    second.loadROM("breakout")
    assert play(first, 200) == play(second, 200)
    assert play(second, 200) != play(other, 200)


def test_says_what_it_knows_of_a_game_as_ale_py_does():
    for game in ("pong", "skiing", "video_checkers", "klax", "carnival"):
        ale, console = both(game)
        assert console.getScreenDims() == ale.getScreenDims()
        assert console.getAvailableModes() == ale.getAvailableModes()
        assert console.getAvailableDifficulties() == ale.getAvailableDifficulties()
        for name in ("getLegalActionSet", "getMinimalActionSet"):
            expected = [(action.name, action.value) for action in getattr(ale, name)()]
            found = getattr(console, name)()
            assert [(action.name, action.value) for action in found] == expected


def test_actions_are_numbers_names_or_ale_pys():
    assert [action.name for action in Action] == list(ACTIONS)
    consoles = [Console("breakout") for _ in range(4)]
    kinds = (1, Action.FIRE, ale_py.Action.FIRE, np.int64(1))
    for console, action in zip(consoles, kinds, strict=True):
        console.setFloat("repeat_action_probability", 0.0)
        console.loadROM("breakout")
        for _ in range(30):
            console.act(action)
    rams = {console.getRAM().tobytes() for console in consoles}
    assert len(rams) == 1


@pytest.mark.parametrize("action", [-1, 18, 40])
def test_an_action_out_of_range_is_refused(action):
    with pytest.raises(ValueError, match=f"action: expected 0 to 17, got {action}"):
        Console("pong").act(action)


@pytest.mark.parametrize("action", [1.0, "FIRE", None])
def test_an_action_that_is_no_number_is_refused(action):
    with pytest.raises(TypeError):
        Console("pong").act(action)


def test_the_strength_of_a_paddle_is_that_of_ale_py():
    ale, console = both("kaboom")
    for step in range(200):
        strength = step % 7 / 5
        for each in (ale, console):
            each.act((1, 3, 4, 3)[step // 20 % 4], strength)
        assert np.array_equal(console.getRAM(), ale.getRAM())
    for strength in (np.nan, np.inf, -1e9):
        with pytest.raises(ValueError, match="paddle_strength: expected one in"):
            console.act(3, strength)


def test_modes_and_difficulties_are_those_of_the_game():
    console = Console("breakout")
    with pytest.raises(ValueError, match=r"mode: expected one of \[0, 4, .*\], got 3"):
        console.setMode(3)
    with pytest.raises(ValueError, match=r"difficulty: expected one of \[0, 1\], got 2"):
        console.setDifficulty(2)
    assert (console.getMode(), console.getDifficulty()) == (0, 0)


@pytest.mark.parametrize("game", ["pong", "air_raid", "carnival"])
def test_pictures_are_those_of_ale_py_and_belong_to_the_caller(game):
    ale, console = both(game)
    for _ in range(40):
        ale.act(1)
        console.act(1)
    pictures = {}
    for name in ("getScreen", "getScreenRGB", "getScreenGrayscale", "getRAM"):
        expected, found = getattr(ale, name)(), getattr(console, name)()
        assert found.dtype == np.uint8
        assert np.array_equal(found, expected), name
        assert found.flags.owndata
        into = np.zeros_like(found)
        assert getattr(console, name)(into) is None
        assert np.array_equal(into, found)
        pictures[name] = (found, found.copy())
    assert len(np.unique(pictures["getScreen"][0])) > 2, "nothing is on the screen"
    play(console, 50)
    for found, before in pictures.values():
        assert np.array_equal(found, before)


def test_an_array_that_does_not_fit_is_refused():
    console = Console("pong")
    for method, shape in ((console.getScreen, (210, 160)), (console.getRAM, (128,))):
        with pytest.raises(ShapeError, match="array: expected shape"):
            method(np.zeros((*shape, 1), np.uint8))
        with pytest.raises(DtypeMismatchError, match="array: expected uint8, got float32"):
            method(np.zeros(shape, np.float32))
        with pytest.raises(ValueError, match="contiguous and writable"):
            method(np.zeros((2 * shape[0], *shape[1:]), np.uint8)[::2])
        frozen = np.zeros(shape, np.uint8)
        frozen.setflags(write=False)
        with pytest.raises(ValueError, match="contiguous and writable"):
            method(frozen)
        with pytest.raises(TypeError, match="expected a numpy array, got list"):
            method([0])


def test_saves_the_screen_as_a_png(tmp_path):
    console = Console("pong")
    play(console, 30)
    console.saveScreenPNG(tmp_path / "pong.png")
    data = (tmp_path / "pong.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">2I", data[16:24])
    start = data.index(b"IDAT") + 4
    size = struct.unpack(">I", data[start - 8 : start - 4])[0]
    rows = np.frombuffer(zlib.decompress(data[start : start + size]), np.uint8)
    image = rows.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)
    assert np.array_equal(image[:, ::2], console.getScreenRGB())
    assert np.array_equal(image[:, ::2], image[:, 1::2])


def test_ram_can_be_changed():
    ale, console = both("pong")
    for each in (ale, console):
        each.setRAM(14, 20)
        assert each.getRAM()[14] == 20
        for index in (0, 127):
            before = int(each.getRAM()[index])
            for value in (0, 255, before):
                each.setRAM(index, value)
                assert each.getRAM()[index] == value
    assert play(console, 100) == play(ale, 100)
    assert console.getRAMSize() == 128
    for index in (-1, 128):
        with pytest.raises(ValueError, match=f"index: expected 0 to 127, got {index}"):
            console.setRAM(index, 0)
    for value in (-1, 256):
        with pytest.raises(ValueError, match=f"value: expected 0 to 255, got {value}"):
            console.setRAM(0, value)


@pytest.mark.parametrize("seed", [44, 119, 211])
def test_a_changed_byte_is_on_the_data_bus(seed: int) -> None:
    """A program that has crashed reads it where nothing answers."""
    ale, console = both("superman", random_seed=5)
    rng = np.random.default_rng(seed)
    for _ in range(2):
        for byte, value in rng.integers(0, (128, 256), (10, 2)).tolist():
            ale.setRAM(byte, value)
            console.setRAM(byte, value)
        for _ in range(2):
            console.act(1)
            ale.act(ale_py.Action.FIRE)
    assert np.array_equal(console.getRAM(), ale.getRAM())


# Poked so that the frame ends in the middle of a line, after draws that ended within the blank of a
# HMOVE; the last one within a group of pixels.
# fmt: off
_BLANKED = {
    "time_pilot": ([], {0: 55}, 3),
    "kung_fu_master": ([], {113: 34, 68: 4}, 16),
    "alien": (
        [5, 17, 2, 2, 17, 7, 5, 0, 13, 8, 2, 13, 14, 8, 2, 3, 11, 6, 11, 17, 16, 0, 10, 13, 8, 13,
         7, 3, 11, 7, 7, 9, 15, 17, 7, 14, 3, 5, 17, 1, 17, 13, 12, 1, 17, 7, 14],
        {18: 223}, 8,
    ),
}
# fmt: on


@pytest.mark.parametrize("game", _BLANKED)
def test_what_a_frame_leaves_blank_where_it_ends(game: str) -> None:
    actions, poked, last = _BLANKED[game]
    ale, console = both(game, random_seed=974)
    for each in (ale, console):
        for action in actions:
            each.act(action)
        for byte, value in poked.items():
            each.setRAM(byte, value)
        each.act(last)
    assert np.array_equal(console.getScreen(), ale.getScreen())


# Sticky actions; PAL; every cartridge with something of its own to remember.
@pytest.mark.parametrize(
    "game",
    ["breakout", "air_raid", "montezuma_revenge", "elevator_action", "klax", "pitfall2", "solaris"],
)
def test_a_restored_state_goes_on_as_it_did(game):
    console = Console()
    configured(console, random_seed=2).loadROM(game)
    play(console, 200)
    state = pickle.loads(pickle.dumps(console.cloneSystemState()))
    screen = console.getScreen()
    expected = play(console, 300), console.getScreen()
    console.restoreSystemState(state)
    assert np.array_equal(console.getScreen(), screen)
    assert console.cloneSystemState() == state
    found = play(console, 300), console.getScreen()
    assert found[0] == expected[0]
    assert np.array_equal(found[1], expected[1])


def test_a_state_moves_to_another_console():
    first, second = Console("seaquest"), Console("seaquest")
    first.setMode(0)
    play(first, 123)
    state = first.cloneSystemState()
    second.restoreState(ConsoleState(state.serialize()))
    assert play(first, 100) == play(second, 100)


def test_without_random_numbers_a_state_leaves_those_of_the_console():
    console = configured(Console(), random_seed=2, repeat_action_probability=0.5)
    console.loadROM("breakout")
    state = console.cloneState()
    first = play(console, 200)
    console.restoreState(state)
    assert play(console, 200) != first
    complete = console.cloneState(include_rng=True)
    assert len(complete.serialize()) > len(state.serialize())


@pytest.mark.parametrize("game", ["berzerk", "hero", "seaquest"])
def test_a_state_brings_back_the_random_numbers_of_the_console(game):
    sums = []
    for each in both(game):
        state = each.cloneState()
        found = []
        for _ in range(2):
            for _ in range(4):
                each.reset_game()
                found.append(int(each.getRAM().sum()))
            each.restoreState(state)
        assert len(set(found)) > 1
        sums.append(found)
    assert sums[0] == sums[1]


def test_a_state_knows_its_counters_and_compares():
    console = Console("space_invaders")
    console.setMode(2)
    console.setDifficulty(1)
    console.reset_game()
    start = console.cloneState()
    play(console, 10)
    state = console.cloneState()
    assert state.getFrameNumber() == console.getFrameNumber()
    assert state.getEpisodeFrameNumber() == console.getEpisodeFrameNumber()
    assert (state.getCurrentMode(), state.getDifficulty()) == (2, 1)
    assert state.md5 == GAMES["space_invaders"].md5
    assert state.equals(console.cloneState())
    assert state != start
    assert state != "a state"
    assert "frame" in repr(state)
    console.restoreState(start)
    assert console.cloneState() == start


def test_the_state_of_another_game_is_refused():
    console = Console("pong")
    before = console.cloneSystemState()
    with pytest.raises(
        ValueError, match="state: expected one of the ROM 60e0ea.*, got one of f34f"
    ):
        console.restoreState(Console("breakout").cloneState())
    assert console.cloneSystemState() == before


def test_bytes_that_are_no_state_are_refused():
    console = Console("pong")
    serialized = console.cloneState().serialize()
    for other in (b"", b"RLBATCH1", b"x" * len(serialized)):
        with pytest.raises(ValueError, match="expected a serialized ConsoleState"):
            ConsoleState(other)
    for place in (20, len(serialized) - 1):
        changed = bytearray(serialized)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="expected checksum"):
            ConsoleState(bytes(changed))
    with pytest.raises(ValueError, match="expected checksum"):
        ConsoleState(serialized[:-1])
    shorter = ConsoleState.pack(GAMES["pong"].md5, (0, 0, 0, 0), b"short")
    with pytest.raises(ValueError, match="expected the format of this version, got 5 bytes"):
        console.restoreState(shorter)


def test_before_a_rom_is_loaded_nothing_works():
    arguments = {"act": (0,), "setMode": (0,), "setDifficulty": (0,), "setRAM": (0, 0)}
    arguments |= {"restoreState": (None,), "restoreSystemState": (None,), "from_ale": (None,)}
    arguments |= {"saveScreenPNG": ("x",)}
    free = {"isSupportedROM", "loadROM", "setLoggerMode", "getRAMSize"}
    free |= {f"{verb}{kind}" for verb in ("get", "set") for kind in ("Int", "Float", "Bool")}
    free |= {"getString", "setString"}
    methods = {name for name, _ in inspect.getmembers(Console, inspect.isfunction)}
    checked = {name for name in methods if not name.startswith("_")} - free
    assert len(checked) > 20
    for name in checked:
        with pytest.raises(CallOrderError, match="expected loadROM to be called first"):
            getattr(Console(), name)(*arguments.get(name, ()))


def test_a_rom_that_cannot_be_loaded_leaves_the_one_that_is():
    console = Console("pong")
    with pytest.raises(RomError):
        console.loadROM(bytes(100))
    with pytest.raises(ValueError, match="expected one of the 104"):
        console.loadROM("no game")
    assert play(console, 10)
    assert console.getFrameNumber() == 10


def test_knows_a_rom_by_its_md5(rom_file):
    path = rom_file("renamed.bin", read_rom(GAMES["ms_pacman"]))
    assert Console.isSupportedROM(path) == ale_py.ALEInterface.isSupportedROM(path) == "ms_pacman"
    assert Console.isSupportedROM(rom_file("pong.bin", bytes(2048))) is None


def test_an_unknown_rom_runs_with_a_warning(rom_file, caplog):
    path = rom_file("pitfall2.bin", cartridge(0)[1])
    ale, console = ale_console(repeat_action_probability=0.0), Console()
    console.setFloat("repeat_action_probability", 0.0)
    for each in (ale, console):
        each.loadROM(path)
    assert "pitfall2.bin: unknown MD5" in caplog.text
    assert play(console, 50) == play(ale, 50)
    assert np.array_equal(console.getScreen(), ale.getScreen())


@pytest.mark.parametrize(
    "rule",
    # Adventure presses SELECT for hundreds of frames at a time until it sees its mode.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "adventure")) for name in GAMES],
)
def test_random_bytes_run_by_the_rules_of_any_game(rule):
    # Nothing to compare with: what is looked for is a crash or an endless loop.
    rng = np.random.default_rng(list(GAMES).index(rule))
    size = int(rng.choice([2048, 4096, 8192, 10495, 16384]))
    console = Console()
    console.loadROM(rng.bytes(size), rule=rule)
    play(console, 5)
    assert console.getScreen().shape == console.getScreenDims()


@pytest.mark.parametrize("rule", ["pong", "double_dunk", "video_cube"])
def test_a_program_that_ends_no_frame_is_stopped(rule):
    endless = np.full(4096, 0xEA, np.uint8)
    endless[-6:] = [0x00, 0xF0] * 3
    console = Console()
    console.loadROM(endless.tobytes(), rule=rule)
    play(console, 5)
    assert console.getScreen().shape == console.getScreenDims()


def test_the_logger_mode_is_a_level():
    logger = logging.getLogger("rlbatch.envs.atari")
    level = logger.level
    try:
        for mode, expected in enumerate((logging.INFO, logging.WARNING, logging.ERROR)):
            Console.setLoggerMode(mode)
            assert logger.level == expected
        Console.setLoggerMode(ale_py.LoggerMode.Warning)
        assert logger.level == logging.WARNING
        for mode in (-1, 3):
            with pytest.raises(ValueError, match=f"^mode: expected 0 to 2, got {mode}$"):
                Console.setLoggerMode(mode)
    finally:
        logger.setLevel(level)


def test_what_has_another_type_is_named():
    console = Console("pong")
    for call, message in (
        (lambda: Console.setLoggerMode("error"), "mode: expected an integer, got 'error'"),
        (lambda: console.act(None), "action: expected an integer, got None"),
        (lambda: console.act(0, None), "paddle_strength: expected a number, got None"),
        (lambda: console.restoreState(b""), "state: expected a ConsoleState, got b''"),
    ):
        with pytest.raises(TypeError, match=f"^{message}$"):
            call()


def test_memory_goes_with_the_console():
    # A hundred consoles of some hundred KB each would show in the process; one loaded anew as well.
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    console = Console("pong")
    before = resident()
    for _ in range(60):
        console.loadROM("pong")
        Console("pong")
    assert resident() - before < 4_000_000


def test_the_random_numbers_of_the_machine_have_a_seed_of_their_own():
    rams = []
    for seed in (1, 2, 2):
        console = Console()
        console.setInt("random_seed", 0)
        console.setInt("system_random_seed", seed)
        console.loadROM("assault")
        rams.append(console.getRAM().tolist())
    assert rams[0] != rams[1] == rams[2]


def test_a_state_tells_its_frames():
    console = Console("pong")
    console.act(0)
    console.reset_game()
    console.act(0)
    state = console.cloneState()
    found = state.getFrameNumber(), state.getEpisodeFrameNumber()
    assert found == (console.getFrameNumber(), console.getEpisodeFrameNumber())
    assert found[0] != found[1]


def test_without_a_seed_the_time_of_day_is_one(monkeypatch) -> None:
    def ram_at(now: float) -> bytes:
        monkeypatch.setattr("rlbatch.envs.atari.console.time.time", lambda: now)
        console = Console()
        console.setFloat("repeat_action_probability", 0.5)
        console.loadROM("breakout")
        for t in range(200):
            console.act((1, 3, 4)[t % 3])
        return console.getRAM().tobytes()

    assert ram_at(1.0) == ram_at(1.0) != ram_at(2.0)


def test_actions_after_the_end_take_their_random_numbers_as_in_ale_py():
    settings = {"max_num_frames_per_episode": 60, "repeat_action_probability": 0.5}
    ale, console = both("breakout", **settings)
    for n_steps in (61, 67, 60):
        assert play(console, n_steps) == play(ale, n_steps)
        for each in (ale, console):
            each.reset_game()


def test_a_state_does_not_change_with_the_bytes_that_it_was_made_of():
    state = Console("pong").cloneState()
    serialized = bytearray(state.serialize())
    copied = ConsoleState(serialized)
    serialized[-1] ^= 1
    assert copied == state


def test_the_interpreter_ends_while_a_thread_plays():
    script = """
import threading, time
from rlbatch.envs.atari import Console
console = Console()
console.setInt("frame_skip", 2**31 - 1)
console.loadROM("breakout")  # Which does not begin by itself.
threading.Thread(target=console.act, args=(0,), daemon=True).start()
time.sleep(0.3)
"""
    spoilt = {**os.environ, "MALLOC_PERTURB_": "165"}  # What is freed cannot be played on.
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=spoilt)
