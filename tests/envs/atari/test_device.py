"""The kernels: what a GPU does is what the native library does, bit for bit.

On a machine without a GPU the CPU plays its grid (`native/grid.h`): the same entry points, indices
and cooperation of threads.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import ale_py
import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from rlbatch import DictTensor, RL_Batcher
from rlbatch.envs.atari import GAMES, AtariEnv, _device, _native_batch, device_code
from rlbatch.envs.atari._device_steps import hint_at_more
from rlbatch.envs.atari.games import CARTS
from rlbatch.envs.atari.roms import guess_cart, rom_folder
from rlbatch.seeding import Seed
from scripts.cartridges import cartridge
from tests.envs.atari.steps import LeaveAlone, MakeEnv, Walker, check_equal, check_steps
from tests.played_gpu import GPU, PlayedGPU


def check_same(make: MakeEnv, n_steps: int, *arguments: Any, **options: Any) -> None:
    """Resets and steps an environment of both kinds."""
    native, kernels = AtariEnv(*arguments, **options), make(*arguments, **options)
    check_equal(kernels.reset()[0], native.reset()[0], "reset")
    check_steps(kernels, native, n_steps)
    check_equal(kernels.reset()[0], native.reset()[0], "second reset")
    kernels.close()
    native.close()


@pytest.mark.parametrize("game", GAMES)
def test_every_game_is_equal(make: MakeEnv, game: str) -> None:
    check_same(make, 25, game, 2, seed=3, repeat_action_probability=0.25)


def test_few_environments_on_a_gpu_bring_a_hint_once(make: MakeEnv, caplog) -> None:
    hint_at_more.cache_clear()
    make("pong", 1024).close()
    assert not caplog.messages
    for n_envs in (2, 3):
        make("pong", n_envs).close()
    assert len(caplog.messages) == 1
    assert "fewer than 1024 environments on a GPU" in caplog.messages[0]


# One per kind of cartridge.
KINDS = ("pong", "seaquest", "ms_pacman", "elevator_action", "solaris", "klax", "tutankham")
KINDS += ("robotank", "pitfall2")


@pytest.mark.parametrize("game", KINDS)
def test_code_that_is_made_for_one_game(
    make: MakeEnv, game: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU. A grid that is played has code for any game, mostly, so that it is made once."""
    monkeypatch.setattr(device_code, "grid_options", device_code.defines)
    check_same(make, 12, game, 2, seed=3, repeat_action_probability=0.25)


def test_that_is_all_kinds() -> None:
    assert {GAMES[game].cart for game in KINDS} == set(CARTS)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_every_game_is_equal_for_long(make: MakeEnv, game: str) -> None:
    check_same(make, 400, game, 4, seed=4)


OPTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "colours": (40, {"obs_type": "rgb"}),
    "ram": (60, {"obs_type": "ram", "frameskip": 5}),
    "lives_end_episodes": (120, {"episodic_life": True, "frameskip": 2, "stack_num": 3}),
    "lives_are_told": (150, {"life_loss_info": True}),
    "every_frame": (120, {"frameskip": 1, "stack_num": 1, "maxpool": False}),
    "truncated_in_the_last_frame": (60, {"max_num_frames_per_episode": 92}),
    "truncated_earlier": (60, {"max_num_frames_per_episode": 93}),
    "truncated_in_the_first_frame": (40, {"max_num_frames_per_episode": 101, "frameskip": 10}),
    "long_steps": (20, {"frameskip": 20, "max_num_frames_per_episode": 100}),
    "whole_screen": (20, {"img_height": 210, "img_width": 160, "stack_num": 2}),
    "small_screen": (20, {"img_height": 41, "img_width": 53}),
    "no_start": (40, {"noop_max": 0, "use_fire_reset": False, "full_action_space": True}),
    "raw": (60, {"reward_clipping": False, "mode": 4, "difficulty": 1}),
    "several_modes": (60, {"mode": [0, 4, 20], "difficulty": [1, 0]}),
    "apart": (5, {"decorrelate_steps": 12}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(make: MakeEnv, name: str) -> None:
    n_steps, options = OPTIONS[name]
    check_same(make, n_steps, "breakout", 3, seed=5, **options)


@pytest.mark.parametrize("n_steps", [60, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("game", ["krull", "pitfall2", "skiing", "adventure"])
def test_sticky_actions_in_colours(make: MakeEnv, game: str, n_steps: int) -> None:
    check_same(make, n_steps, game, 2, seed=6, obs_type="rgb", repeat_action_probability=0.25)


@pytest.mark.parametrize("game", ["robotank", pytest.param("battle_zone", marks=pytest.mark.slow)])
def test_noise(make: MakeEnv, game: str) -> None:
    # Their screens show noise when a tank is lost, of which rows have edges instead of runs.
    check_same(make, 420, game, 2, seed=2, max_num_frames_per_episode=1400)


@pytest.mark.parametrize("game", ["sir_lancelot", "ice_hockey", "yars_revenge", "trondead"])
def test_a_thread_alone(make: MakeEnv, game: str) -> None:
    # Its resets are emulated; the first of the last game twice, for lack of whole frames.
    options = {} if game == "sir_lancelot" else {"difficulty": 1}
    check_same(make, 60, game, 1, seed=0, max_num_frames_per_episode=20, **options)


def insert(monkeypatch: pytest.MonkeyPatch, content: bytes, *, is_compiled: bool = False) -> None:
    """Lets the game pitfall2 be another program, of which nothing is known, or its instructions."""
    game = GAMES["pitfall2"]
    game = dataclasses.replace(game, cart=guess_cart(content), reset_depends_on="play")
    game = dataclasses.replace(game, runs_ram=not is_compiled)
    monkeypatch.setitem(GAMES, "pitfall2", game)
    for module in (_native_batch, _device, device_code):
        monkeypatch.setattr(module, "read_rom", lambda _: content)


def test_code_in_ram_that_changes_the_instruction_after(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "e6 91  a5 91  85 87  a9 00  85 90  4c 12 f0"  # INC, LDA, STA to the operand of LDA, STA.
    )
    begin = "78 d8 a2 ff 9a  a2 0c  bd 40 f0  95 80  ca  10 f8  4c 80 00"  # Copies it, and jumps.
    frame = "a9 02 85 00 85 02 85 02 a9 00 85 00  a0 ff  85 02 88 d0 fb  4c 0f f0"  # VSYNC, lines.
    program = (bytes.fromhex(begin) + bytes.fromhex(frame)).ljust(64) + bytes.fromhex(code)
    insert(monkeypatch, program.ljust(0xFFC, b"\0") + bytes.fromhex("00 f0 00 f0"))
    native, kernels = (AtariEnv("pitfall2", 2, device=d, seed=0) for d in ("cpu", GPU))
    native.reset(), kernels.reset()
    check_steps(kernels, native, 4)
    ram = kernels.get_ram([0])[0]
    assert ram[0x10] == ram[0x11] > 0


def test_every_operation_of_a_compiled_program(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    inside = "0a 2a 4a 6a aa a8 8a 98 e8 ca c8 88 18 38 ea 48"
    at_once = "09 29 49 69 a9 c9 e9 a2 a0 e0 c0"
    in_page_0 = "05 25 45 65 a5 c5 e5 06 26 46 66 c6 e6 a6 a4 e4 c4 24 85 86 84 b5 95 b6 96 b4 94"
    anywhere = "0d 2d 4d 6d ad cd ed 1d 3d 5d 7d bd dd fd 19 39 59 79 b9 d9 f9 bc be"
    by_pointer = "11 31 51 71 b1 d1 f1 91"
    body = b""
    for _ in range(4):
        for one in rng.permutation(
            list(bytes.fromhex(inside + at_once + in_page_0 + anywhere + by_pointer))
        ):
            opcode, where = int(one), int(rng.integers(0x90, 0xC0))
            operand = bytes([where])
            if opcode in bytes.fromhex(inside):
                operand = b""
            elif opcode in bytes.fromhex(anywhere):
                operand = bytes([where, 0xF1])
            elif opcode in bytes.fromhex(by_pointer):
                operand = b"\xf0"  # To 0x80 + Y.
            # Indices stay small, the stack where it is, and a branch goes either way.
            body += bytes.fromhex("a2 07 a0 05") * (opcode in bytes.fromhex(in_page_0 + by_pointer))
            body += bytes([opcode]) + operand + b"\x68" * (opcode == 0x48)  # PHA, and PLA.
            body += bytes([int(rng.choice(list(bytes.fromhex("10 30 50 70 90 b0 d0 f0")))), 2])
            body += bytes([0x85, int(rng.integers(0xC0, 0xE0))])
    begin = bytes.fromhex("78 d8 a2 f8 9a a9 80 85 f0 a9 00 85 f1")
    frame = bytes.fromhex("a9 02 85 00 85 02 85 02 a9 00 85 00")
    program = begin + frame + body + bytes.fromhex("4c 0d f0")
    insert(
        monkeypatch,
        program.ljust(0xFFC, b"\x5a") + bytes.fromhex("00 f0 00 f0"),
        is_compiled=True,
    )
    # Without pictures, for it is frames that nobody sees in which a thread alone runs it.
    native, kernels = (
        AtariEnv("pitfall2", 1, device=where, seed=0, obs_type="ram") for where in ("cpu", GPU)
    )
    native.reset(), kernels.reset()
    check_steps(kernels, native, 6)
    assert len(set(kernels.get_ram([0])[0, 0x40:0x60].tolist())) > 8


@pytest.mark.parametrize(
    "numbers", [range(11), pytest.param(range(11, 300), marks=pytest.mark.slow)], ids=str
)
def test_generated_programs(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch, numbers: range
) -> None:
    """Opcodes, banks and stacks as no game has them."""
    for number in numbers:
        is_compiled = number % 50 in (0, 5)
        insert(monkeypatch, cartridge(number)[1], is_compiled=is_compiled)
        options = {"seed": number, "noop_max": 0, "full_action_space": True}
        if is_compiled:
            options["obs_type"] = "ram"  # Frames that are seen are interpreted.
        native, kernels = (
            AtariEnv("pitfall2", 3, device=where, **options) for where in ("cpu", GPU)
        )
        check_equal(kernels.reset()[0], native.reset()[0], f"{number}: reset")
        try:
            check_steps(kernels, native, 4, number)
        except (AssertionError, RuntimeError) as error:
            # Some screens of random bytes are too much, which is reported.
            message = str(error)
            if isinstance(error, AssertionError):
                with pytest.raises(RuntimeError) as reported:
                    kernels.get_state()
                message = str(reported.value)
            assert "expected screens that fit into the memory" in message
        kernels.close()
        native.close()


@pytest.mark.parametrize("n_warps", [1, 20, 1000])  # Full ones in large blocks; of 7; of one.
def test_more_environments_than_a_warp(make: MakeEnv, n_warps: int) -> None:
    def made(*arguments: Any, **options: Any) -> AtariEnv:
        env = make(*arguments, **options)
        env._batch.n_warps = n_warps
        return env

    check_same(made, 3, "ms_pacman", 133, seed=8)


def test_several_games(make: MakeEnv) -> None:
    games = ["pong", "video_chess", "pitfall2", "journey_escape", "pong"]
    check_same(make, 30, n_envs=12, games=games, seed=9, img_height=70)


@pytest.mark.parametrize("game", ["breakout", "sir_lancelot"])  # Known resets, emulated ones.
def test_some_environments_begin_anew(make: MakeEnv, leave_alone: LeaveAlone, game: str) -> None:
    kernels, native = (made(game, 4, seed=6) for made in (make, AtariEnv))
    check_equal(kernels.reset()[0], native.reset()[0], "reset")
    check_steps(kernels, native, 20)
    chosen = torch.tensor([True, False, False, True])
    on_device = chosen.to(kernels.device)
    with leave_alone():
        found, _ = kernels.reset_where(on_device)
    check_equal(found, native.reset_where(chosen)[0], "reset_where")
    check_steps(kernels, native, 20)


def test_states_go_to_a_gpu_and_back(make: MakeEnv) -> None:
    native, kernels = AtariEnv("seaquest", 3, seed=1), make("seaquest", 3, seed=2)
    native.reset()
    kernels.reset()
    actions = np.random.default_rng(0).integers(0, 18, (70, 3))
    for action in torch.from_numpy(actions):
        native.step(DictTensor({"action": action}))
    kernels.set_state(native.get_state())
    check_equal(kernels.observe(), native.observe(), "observe")
    check_steps(kernels, native, 50)
    native.set_state(kernels.get_state([2, 2]), [0, 1])
    kernels.set_state(kernels.get_state([2, 2]), [0, 1])
    check_steps(kernels, native, 20, seed=2)
    for env in (kernels, native):  # With streams of their own from here on.
        env.set_state(env.get_state([2, 2, 2]), seed=3)
    assert torch.equal(kernels.get_state().cpu(), native.get_state())
    check_steps(kernels, native, 20, seed=4)
    assert torch.equal(kernels.get_ram([2, 0]).cpu(), native.get_ram([2, 0]))
    assert torch.equal(kernels.render([1, 2]).cpu(), native.render([1, 2]))


def test_pictures_of_several_games(make: MakeEnv) -> None:
    """Whose actions differ."""
    native, kernels = (
        made(games=["pong", "freeway"], n_envs=4, seed=1) for made in (AtariEnv, make)
    )
    for env in (native, kernels):
        env.reset()
    assert torch.equal(kernels.render([3, 0]).cpu(), native.render([3, 0]))


def test_one_of_several_games_that_others_play_in_other_processes(make: MakeEnv) -> None:
    """Freeway begins with FIRE where that can be chosen."""
    for process in (0, 1):
        options = {"games": ["pong", "freeway"], "n_envs": 1, "seed": Seed(9, 0, process)}
        assert AtariEnv(**options).action_space == make(**options).action_space == Discrete(18)
        check_same(make, 25, **options)


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_resets_hold_fire_where_it_can_be_chosen_by_others_alone(
    make: MakeEnv, sticky: float
) -> None:
    """Ms. Pac-Man has no FIRE of its own, but the list of games has."""
    options = {"games": ["pong", "ms_pacman"], "n_envs": 1, "seed": Seed(3, 0, 1), "noop_max": 3}
    options["repeat_action_probability"] = sticky
    native, kernels = AtariEnv(**options), make(**options)
    for _ in range(6):
        check_equal(kernels.reset()[0], native.reset()[0], "reset")
        assert torch.equal(kernels.get_state().cpu(), native.get_state())


def test_what_is_observed_is_what_to_act_on_where_a_life_is_lost(make: MakeEnv) -> None:
    options = {"life_loss_info": True, "img_height": 20, "img_width": 20}
    env, n_lost = make("breakout", 2, seed=1, **options), 0
    env.reset()
    for t in range(120):
        action = torch.tensor([t % 4, 1], device=env.device)
        _, (following, _) = env.step(DictTensor({"action": action}))
        check_equal(env.observe(), following.to("cpu"), f"step {t}")
        n_lost += int((following["initial_state"] & (following["episode_length"] > 0)).sum())
    assert n_lost


def test_the_last_action_is_what_it_was(make: MakeEnv) -> None:
    env = make("pong", 2, seed=1)
    env.reset()
    action = torch.tensor([2, 3], device=env.device)
    (after, _), (following, _) = env.step(DictTensor({"action": action}))
    action.fill_(0)
    assert after["last_action"].tolist() == following["last_action"].tolist() == [2, 3]


def test_a_console_of_ale_py(make: MakeEnv) -> None:
    ale = ale_py.ALEInterface()
    ale.loadROM(str(rom_folder() / "space_invaders.bin"))
    for action in np.random.default_rng(0).integers(0, 6, 300):
        ale.act(ale.getMinimalActionSet()[action])
    native, kernels = AtariEnv("space_invaders", 2, seed=1), make("space_invaders", 2, seed=1)
    for env in (native, kernels):
        env.reset()
        env.from_ale(ale, [1])
    check_equal(kernels.observe(), native.observe(), "observe")
    check_steps(kernels, native, 30)


def acquired(make: MakeEnv, device: torch.device) -> DictTensor:
    def create_env(n_envs: int, seed: int) -> AtariEnv:
        return make("pong", n_envs, seed=seed, max_num_frames_per_episode=20)

    env_args = {"n_envs": 4}
    with RL_Batcher(
        6, Walker, {}, create_env, env_args, n_processes=0, seeds=3, device=device
    ) as batcher:
        batcher.reset()
        batcher.execute()
        found, n_running = batcher.get()
        assert n_running == 4
        return found.trajectories


def test_a_batcher_acquires(make: MakeEnv) -> None:
    probe = make("pong", 1)
    found, expected = acquired(make, probe.device), acquired(AtariEnv, torch.device("cpu"))
    assert found["observation/frame"].dtype == torch.uint8
    assert found["observation/frame"].device == probe.device
    assert expected["_observation/done"].any()
    for key in expected.keys():
        assert torch.equal(found[key].cpu(), expected[key]), key


def create_in_a_worker(n_envs: int, seed: int, device: str) -> AtariEnv:
    os.environ[device_code.GRID_VARIABLE] = "1"  # Of the worker's process.
    return AtariEnv("pong", n_envs, device=device, seed=seed, max_num_frames_per_episode=20)


@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_batcher_acquires_in_a_process(where: str) -> None:
    env_args = {"n_envs": 4, "device": where}
    with RL_Batcher(
        6, Walker, {}, create_in_a_worker, env_args, n_processes=1, seeds=3, device=where
    ) as batcher:
        batcher.reset()
        batcher.execute()
        found = batcher.get()[0].trajectories
    expected = acquired(AtariEnv, torch.device("cpu"))
    for key in expected.keys():
        assert torch.equal(found[key].cpu(), expected[key]), key


# --- Memory. ---


@pytest.mark.parametrize("sticky", [0.0, 0.25])
@pytest.mark.parametrize("game", GAMES)
def test_an_environment_takes_32_kb(make: MakeEnv, game: str, sticky: float) -> None:
    """With its share of the states that resets lead to, among as many as a GPU should have."""
    env = make(game, 2, repeat_action_probability=sticky)
    stack, kept = 4 * 84 * 84, env._batch._kept[0]
    known = sum(kept[name].nbytes for name in ("known_states", "known_pictures", "known_at"))
    assert 20_000 < env.bytes_per_env() - stack + known / 32768 <= 32 * 1024
