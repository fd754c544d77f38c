"""States of ale-py, imported: from there on a console here and the one of ale-py stay equal."""

from __future__ import annotations

import ale_py
import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv, Console
from rlbatch.envs.atari.roms import rom_folder
from rlbatch.errors import CallOrderError


def new_ale(game: str, sticky: float = 0.0) -> ale_py.ALEInterface:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 5)
    ale.setFloat("repeat_action_probability", sticky)
    ale.loadROM(str(rom_folder() / f"{game}.bin"))
    return ale


def play(ale: ale_py.ALEInterface, n_frames: int, rng: np.random.Generator) -> None:
    actions = ale.getLegalActionSet()
    for _ in range(n_frames):
        ale.act(actions[rng.integers(len(actions))])
        if ale.game_over():
            ale.reset_game()


@pytest.mark.parametrize("game", GAMES)
def test_a_console_goes_on_like_the_one_that_was_imported(game: str) -> None:
    ale, console, rng = new_ale(game), Console(), np.random.default_rng(1)
    console.setFloat("repeat_action_probability", 0)
    console.loadROM(game)
    actions = ale.getLegalActionSet()
    for n_frames in (0, 1, 150, 333):
        play(ale, n_frames, rng)
        console.from_ale(ale)
        assert (console.getRAM() == ale.getRAM()).all()
        assert (console.getScreen() == ale.getScreen()).all()
        assert console.lives() == ale.lives()
        assert console.getFrameNumber() == ale.getFrameNumber()
        for k in range(25):
            action = actions[rng.integers(len(actions))]
            rewards = console.act(action.value), ale.act(action)
            assert rewards[0] == rewards[1] or game == "miniature_golf"
            assert (console.getRAM() == ale.getRAM()).all()
            # What a frame does not draw shows the last picture but one, which is not saved. After a
            # reset one is under way in some games, in tic_tac_toe_3d whenever the console thinks.
            is_whole = k > (n_frames == 0) and game != "tic_tac_toe_3d"
            assert not is_whole or (console.getScreen() == ale.getScreen()).all()
            assert (console.lives(), console.game_over()) == (ale.lives(), ale.game_over())
            if ale.game_over():
                break


def test_a_program_that_crashed_stays_where_it_is() -> None:
    """Bytes that a program does not expect lead some to opcodes that halt the CPU."""
    ale, console, rng = new_ale("superman"), Console(), np.random.default_rng(4)
    console.setFloat("repeat_action_probability", 0)
    console.loadROM("superman")
    n_halted = 0
    for _ in range(10):
        ale.loadROM(str(rom_folder() / "superman.bin"))
        play(ale, 20, rng)
        for byte, value in rng.integers(0, (128, 256), (10, 2)).tolist():
            ale.setRAM(byte, value)
        for _ in range(3):
            before = ale.getRAM()
            ale.act(ale_py.Action.NOOP)
        n_halted += (ale.getRAM() == before).all()
        console.from_ale(ale)
        for _ in range(3):
            assert console.act(0) == ale.act(ale_py.Action.NOOP)
            assert (console.getRAM() == ale.getRAM()).all()
    assert n_halted


def test_random_numbers_are_imported() -> None:
    ale, console, rng = new_ale("breakout", sticky=0.5), Console(), np.random.default_rng(2)
    console.setFloat("repeat_action_probability", 0.5)
    console.loadROM("breakout")
    play(ale, 100, rng)
    ale.act(ale_py.Action.NOOP)
    console.from_ale(ale)
    console.act(0)
    ale.act(ale_py.Action.NOOP)  # From here on both repeat the same action.
    for action in rng.integers(0, 5, 60).tolist():
        console.act(action)
        ale.act(ale_py.Action(action))
        assert (console.getRAM() == ale.getRAM()).all()


def test_a_batch_is_seeded_from_a_console_of_ale_py() -> None:
    ale, rng = new_ale("ms_pacman"), np.random.default_rng(3)
    play(ale, 400, rng)
    env = AtariEnv("ms_pacman", 3, seed=0, full_action_space=True, reward_clipping=False)
    env.reset()
    before = env.get_ram([1])
    env.from_ale(ale, [0, 2])
    assert (env.get_ram([1]) == before).all()
    observation = env.observe()
    assert observation["initial_state"].all()
    assert (observation["frame"][0] == observation["frame"][2]).all()
    assert (observation["frame"][0] != observation["frame"][1]).any()
    assert (env.get_ram([0, 2]).numpy() == ale.getRAM()).all()
    assert (env.render([0])[0].numpy() == ale.getScreenRGB()).all()
    for action in rng.integers(0, 18, 20).tolist():
        (after, _), _ = env.step(DictTensor({"action": torch.full((3,), action)}))
        reward = sum(ale.act(ale_py.Action(action)) for _ in range(4))
        assert after["reward"][[0, 2]].tolist() == [reward] * 2
        assert (env.get_ram([0, 2]).numpy() == ale.getRAM()).all()
        assert (env.render([2])[0].numpy() == ale.getScreenRGB()).all()


@pytest.mark.parametrize("game", ["qbert", "tetris", "trondead", "tic_tac_toe_3d"])
def test_a_frame_that_takes_several_calls_goes_on(game: str) -> None:
    """In these games one is under way after a reset, or while the console thinks."""
    ale, console, rng = new_ale(game), Console(), np.random.default_rng(4)
    console.setFloat("repeat_action_probability", 0)
    console.loadROM(game)
    for _ in range(3):
        console.from_ale(ale)
        for action in rng.integers(0, 18, 200).tolist():
            assert console.act(action) == ale.act(ale_py.Action(action))
            assert (console.getRAM() == ale.getRAM()).all()
        ale.reset_game()


def test_what_is_no_console_with_a_rom_is_refused() -> None:
    console = Console("pong")
    with pytest.raises(ValueError, match=f"ale: expected the ROM {GAMES['pong'].md5}, got none"):
        console.from_ale(ale_py.ALEInterface())
    with pytest.raises(TypeError, match="ale: expected an ale_py.ALEInterface, got None"):
        console.from_ale(None)


def test_other_games_are_refused() -> None:
    console = Console()
    with pytest.raises(CallOrderError, match="from_ale"):
        console.from_ale(new_ale("pong"))
    console.loadROM("breakout")
    ram = console.getRAM()
    with pytest.raises(ValueError, match="another game"):
        console.from_ale(new_ale("pong"))
    with pytest.raises(ValueError, match="screen"):
        console.from_ale(new_ale("adventure"))
    assert (console.getRAM() == ram).all()
    env = AtariEnv("breakout", 1, seed=0)
    with pytest.raises(CallOrderError, match="reset"):
        env.from_ale(new_ale("breakout"))
    env.reset()
    with pytest.raises(ValueError, match="breakout"):
        env.from_ale(new_ale("pong"))


def test_a_console_in_another_mode_is_refused() -> None:
    """In some games later episodes would be in its mode, in others in the environment's."""
    ale = new_ale("freeway")
    ale.setMode(3)
    ale.reset_game()
    env = AtariEnv("freeway", 1, seed=0)
    env.reset()
    with pytest.raises(ValueError, match="ale: expected mode 0 and difficulty 0, .* got mode 3"):
        env.from_ale(ale)
    env = AtariEnv("freeway", 1, seed=0, mode=3)
    env.reset()
    env.from_ale(ale)
    assert (env.get_ram([0]).numpy() == ale.getRAM()).all()


def test_a_console_goes_nowhere_unless_all_are_in_its_mode() -> None:
    ale = new_ale("freeway")
    ale.setMode(3)
    ale.reset_game()
    env = AtariEnv("freeway", 4, seed=0, mode=[3, 0])
    env.reset()
    before = env.get_state()
    with pytest.raises(ValueError, match="ale: expected mode 0 and difficulty 0, .* got mode 3"):
        env.from_ale(ale)
    assert torch.equal(env.get_state(), before)
    env.from_ale(ale, [0, 2])
    assert (env.get_ram([0, 2]).numpy() == ale.getRAM()).all()
    assert torch.equal(env.get_state([1, 3]), before[[1, 3]])


def test_the_frames_of_a_console_count_for_the_limit_of_an_episode() -> None:
    ale = new_ale("pong")
    for _ in range(30):
        ale.act(0)
    env = AtariEnv("pong", 2, seed=0, max_num_frames_per_episode=38)
    env.reset()
    env.from_ale(ale, [0])
    for truncated in ([False, False], [True, False]):
        (after, _), _ = env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64)}))
        assert after["truncated"].tolist() == truncated


def test_a_console_of_another_difficulty_is_refused() -> None:
    ale = new_ale("freeway")
    ale.setDifficulty(1)
    env = AtariEnv("freeway", 1, seed=0)
    env.reset()
    with pytest.raises(ValueError, match="ale: .* difficulty 0, .* got mode 0 and difficulty 1"):
        env.from_ale(ale)


def test_an_environment_that_is_named_twice_goes_nowhere() -> None:
    env = AtariEnv("pong", 2, seed=0)
    env.reset()
    with pytest.raises(ValueError, match=r"ids: expected every environment once, got \[1, 1\]"):
        env.from_ale(new_ale("pong"), [1, 1])


def test_a_console_with_other_paddles_is_refused() -> None:
    """ale-py keeps the range of backgammon's paddles for the games that it loads afterwards."""
    ale = new_ale("backgammon")
    ale.loadROM(str(rom_folder() / "breakout.bin"))
    env = AtariEnv("breakout", 2, seed=0)
    env.reset()
    before = env.get_state()
    with pytest.raises(
        ValueError, match="ale: expected paddles of up to 790196 ohms, as of breakout"
    ):
        env.from_ale(ale)
    assert torch.equal(env.get_state(), before)
    env.from_ale(new_ale("breakout"))
    ale.loadROM(str(rom_folder() / "ms_pacman.bin"))  # Which has none.
    env = AtariEnv("ms_pacman", 2, seed=0)
    env.reset()
    env.from_ale(ale)
