"""In lockstep with ale-py: a short form of `make conformance`, and what that reports of a fault."""

import os
import signal
import time

import pytest

from rlbatch.envs.atari import GAMES, Console
from scripts import conformance
from scripts.conformance import Case, Pair, cartridge_cases, compare, game_cases, run_cases

pytest.importorskip("ale_py")

N_CARTRIDGES = 60


@pytest.fixture(scope="module")
def results():
    """The results of all games and some cartridges, by name."""
    cases = [*game_cases(120), *cartridge_cases(N_CARTRIDGES, 30)]
    return {str(result.case): result for result in run_cases(cases)}


@pytest.mark.parametrize("case", game_cases(120), ids=lambda case: case.game)
def test_a_game_equals_ale_py(results, case):
    result = results[str(case)]
    assert result.failure is None
    assert (result.n_frames, result.n_resets > 0) == (120, True)


@pytest.mark.parametrize("case", cartridge_cases(N_CARTRIDGES, 30), ids=str)
def test_a_generated_cartridge_equals_ale_py(results, case):
    result = results[str(case)]
    assert result.failure is None
    assert result.n_frames == 30


def test_the_last_mode_with_sticky_actions_equals_ale_py():
    games = ["breakout", "pong", "space_invaders", "et", "klax", "yars_revenge"]
    for result in run_cases(game_cases(150, games, "last", 0.25)):
        assert result.failure is None
        assert result.n_frames == 150


def test_each_mode_and_each_difficulty_is_among_the_cases():
    cases = game_cases(1, (), "every")
    for game in GAMES.values():
        of_game = [case for case in cases if case.game == game.name]
        assert {case.mode for case in of_game} == set(game.modes)
        assert {case.difficulty for case in of_game} == set(game.difficulties)


@pytest.mark.slow
def test_every_mode_with_sticky_actions_equals_ale_py():
    cases = game_cases(200, (), "every", 0.25)
    results = list(run_cases(cases))
    assert [f"{result.case}: {result.failure}" for result in results if result.failure] == []
    assert [result.n_frames for result in results] == [200] * len(cases)


def test_every_case_has_a_name_of_its_own():
    cases = [*game_cases(1), *game_cases(1, (), "every", 0.25), *cartridge_cases(300, 1)]
    assert len({str(case) for case in cases}) == len(cases)


def test_a_part_of_everything_is_what_has_to_be_shown():
    found = conformance.parts(conformance.Config(full=True))
    frames = {name: {case.n_frames for case in cases} for name, cases in found.items()}
    counts = {name: len(cases) for name, cases in found.items()}
    assert counts == {
        "default mode": 104,
        "every mode, sticky": len(game_cases(1, (), "every")),
        "cartridges": 300,
        "long": 20,
    }
    assert frames["default mode"] == {3000}
    assert frames["every mode, sticky"] == {1500}
    assert frames["long"] == {60_000}
    assert {case.game for case in found["long"]} <= set(GAMES)
    assert {case.sticky for case in found["every mode, sticky"]} == {0.25}


def path_of(game):
    return conformance.rom_folder() / f"{game}.bin"


def test_the_first_byte_of_ram_that_differs_is_named(monkeypatch):
    def act(self, action, strength, act=Pair.act):
        if self.found.getEpisodeFrameNumber() == 7:
            self.found.setRAM(5, self.expected.getRAM()[5] ^ 0xFF)
        return act(self, action, strength)

    monkeypatch.setattr(Pair, "act", act)
    result = compare(Case("tetris", 20), path_of("tetris"))
    assert result.failure.startswith("frame 8, reset 0, action ")
    assert "RAM: " in result.failure
    assert "at 85h: expected " in result.failure


def test_the_first_pixel_that_differs_is_named(monkeypatch):
    def screen(self, array, getScreen=Console.getScreen):
        getScreen(self, array)
        array[17, 33] ^= 2
        array[40:] ^= 4

    monkeypatch.setattr(Console, "getScreen", screen)
    result = compare(Case("pong", 20), path_of("pong"))
    n_bytes = 1 + 170 * 160
    assert result.failure.startswith(
        f"after loading: screen: {n_bytes} bytes differ, the first at "
    )
    assert "row 17, column 33: expected " in result.failure


@pytest.mark.parametrize("name", ["lives", "game_over", "getFrameNumber", "getEpisodeFrameNumber"])
def test_a_counter_that_differs_is_named(monkeypatch, name):
    monkeypatch.setattr(Console, name, lambda self: 77)
    result = compare(Case("breakout", 20), path_of("breakout"))
    assert result.failure.startswith(f"after loading: {name}: expected ")
    assert result.failure.endswith("got 77")


def test_a_reward_that_differs_is_named(monkeypatch):
    monkeypatch.setattr(Console, "act", lambda self, action, strength, act=Console.act: 3)
    result = compare(Case("breakout", 20), path_of("breakout"))
    assert result.failure.startswith("frame 1, reset 0, action ")
    assert "reward: expected 0, got 3" in result.failure


# Stand-ins for `_run_child`; the processes import them from here.


def crash(case, library, connection, log):
    if case.game == "pong":
        connection.send(250)
        os.kill(os.getpid(), signal.SIGSEGV)
    connection.send(conformance.Result(case, case.n_frames))


def hang(case, library, connection, log):
    if case.game == "pong":
        time.sleep(600)
    connection.send(conformance.Result(case, case.n_frames))


def leave(case, library, connection, log):
    with open(log, "w") as file:
        file.write("cannot go on")
    os._exit(1)


def test_a_crash_is_one_cases_failure(monkeypatch):
    monkeypatch.setattr(conformance, "_run_child", crash)
    found = {result.case.game: result for result in run_cases(game_cases(5, ["pong", "tennis"]))}
    assert found["tennis"].failure is None
    assert found["pong"].failure == "killed by SIGSEGV, after frame 250 or up to 250 later"


def test_a_hang_is_one_cases_failure(monkeypatch):
    monkeypatch.setattr(conformance, "_run_child", hang)
    cases = game_cases(5, ["pong", "tennis"])
    found = {result.case.game: result for result in run_cases(cases, timeout_s=10)}
    assert found["tennis"].failure is None
    assert found["pong"].failure.startswith("took too long, after frame 0")


def test_an_exit_is_a_failure_with_its_last_words(monkeypatch):
    monkeypatch.setattr(conformance, "_run_child", leave)
    (result,) = run_cases(game_cases(5, ["pong"]))
    assert result.failure.startswith("ended with exit status 1, after frame 0")
    assert result.failure.endswith("\ncannot go on")


def test_a_failure_is_counted_and_printed(monkeypatch, capsys):
    monkeypatch.setattr(conformance, "_run_child", crash)
    config = conformance.Config(games=("pong", "tennis"), frames=5)
    assert conformance.main(config) == 1
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("pong (default mode, sticky 0.0): killed by SIGSEGV")
    assert '"failures": 1' in last
    assert '"default mode/frames": 255' in last
