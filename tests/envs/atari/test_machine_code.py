"""The machine code of the kernels, played on the CPU: what a GPU would execute."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import AtariEnv, device_code
from rlbatch.envs.atari._device import DeviceJob
from rlbatch.envs.atari._native_batch import JobKind

pytest.importorskip("cupy")

from scripts import sass  # noqa: E402
from scripts.sass import programs  # noqa: E402
from scripts.sass.decoder import Decoder  # noqa: E402
from tests.envs.atari.test_kernels import CASES as kernel_cases  # noqa: E402, N811

N_ENVS = 32

# Beside Pong's 2K: banks, banks with RAM, and a chip that divides doubles. A seed other than 0 has
# the threads of a warp take turns at random. More warps than one are not full.
# Turing has no instruction for the least of a warp's values, so that its threads tell each other.
FAST = [("pong", 0, 1, "sm_90"), ("pong", 0, 1, "sm_75")]
SLOW = [("pong", 1, 5, "sm_90"), ("ms_pacman", 2, 1, "sm_90"), ("klax", 2, 1, "sm_90")]
SLOW += [("pitfall2", 2, 1, "sm_90"), ("pong", 3, 5, "sm_75"), ("ms_pacman", 3, 1, "sm_75")]
SLOW += [("klax", 3, 1, "sm_80"), ("pitfall2", 3, 1, "sm_86")]
SLOW += [("ms_pacman", 3, 1, "sm_100"), ("pong", 3, 1, "sm_120"), ("klax", 3, 1, "sm_120")]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
ARCHITECTURES = {architecture for *_, architecture in [*FAST, *SLOW]}


@pytest.mark.parametrize(("game", "seed", "n_warps", "architecture"), CASES)
def test_machine_code_does_what_the_cpu_core_does(
    game, seed, n_warps, architecture, monkeypatch
) -> None:
    monkeypatch.setenv(device_code.GRID_VARIABLE, "0")
    with contextlib.closing(AtariEnv(game, N_ENVS, seed=1)) as native:
        first, _ = native.reset()
    native = AtariEnv(game, N_ENVS, seed=1, decorrelate_steps=40)
    native.reset()
    rng = np.random.default_rng(1)
    with sass.played(seed, architecture=architecture) as kernels_of:
        env = AtariEnv(game, N_ENVS, seed=1)
        env._batch.n_warps = n_warps
        assert torch.equal(env.reset()[0]["frame"], first["frame"])
        env.set_state(native.get_state())
        env.observe()
        for _ in range(3):
            action = torch.from_numpy(rng.integers(0, env.action_space.n, N_ENVS))
            (after, _), (following, _) = env.step(DictTensor({"action": action}))
            (expected, _), (expected_next, _) = native.step(DictTensor({"action": action}))
            for name in ("frame", "reward", "done"):
                assert torch.equal(after[name], expected[name])
            assert torch.equal(following["frame"], expected_next["frame"])
        assert np.array_equal(np.asarray(env.get_state()), np.asarray(native.get_state()))
        slots, threads, cycles, misses = kernels_of(game).counts("rlb_step").sum(0)
        env.close()
    native.close()
    assert threads <= 32 * slots
    assert cycles >= slots
    assert 0 < misses < slots


def test_every_architecture_is_played() -> None:
    assert set(kernel_cases.values()) == ARCHITECTURES == set(programs.ARCHITECTURES)


# space_war has its stack in the TIA. The last one's resets are known, also with sticky actions.
@pytest.mark.slow
@pytest.mark.parametrize("game", ["sir_lancelot", "space_war", "elevator_action", "breakout"])
def test_one_environment_of_a_warp_resets(game, monkeypatch) -> None:
    monkeypatch.setenv(device_code.GRID_VARIABLE, "0")
    options = {"repeat_action_probability": 0.25}
    native = AtariEnv(game, 2, seed=1, decorrelate_steps=40, **options)
    native.reset()
    with sass.played() as kernels_of:
        env = AtariEnv(game, 2, seed=1, **options)
        env._n_resets = 1  # Nothing happens here but the reset in question.
        env.set_state(native.get_state())
        env._batch.step(torch.tensor([DeviceJob.RESET, DeviceJob.NONE]).byte())
        env._batch.observe(env._batch.new_observations())
        native._batch.run(
            np.array([JobKind.RESET, JobKind.LOOK]), np.zeros(native._batch.shape, np.uint8)
        )
        assert np.array_equal(np.asarray(env.get_state()), np.asarray(native.get_state()))
        is_emulated = kernels_of(game).counts("rlb_step")[:, 0].sum() > 1e6
        assert is_emulated == (game != "breakout")
        env.close()
    native.close()


def test_the_cache_is_what_shared_memory_leaves() -> None:
    assert programs._cache_lines(n_threads=32, n_shared=12 * 1024, n_warps=8) == 256 - 132
    assert programs._cache_lines(n_threads=5, n_shared=12 * 1024, n_warps=8) == 256 - 132
    assert programs._cache_lines(n_threads=128, n_shared=12 * 1024, n_warps=8) == 256 - 32
    assert programs._cache_lines(n_threads=128, n_shared=12 * 1024, n_warps=16) == (256 - 64) // 2
    assert programs._cache_lines(n_threads=1024, n_shared=300 * 1024, n_warps=8) == 256 - 228


def test_what_is_not_known_is_an_error() -> None:
    with pytest.raises(sass.SassError, match="IADD3.WAX: expected one of"):
        Decoder("IADD3.WAX R1, R2, R3, RZ", 0, 0, {}).decode()
    with pytest.raises(sass.SassError, match="FROB: expected an instruction"):
        Decoder("FROB R1, R2", 0, 0, {}).decode()
    with pytest.raises(sass.SassError, match="operand 'Q7'"):
        Decoder("MOV R1, Q7", 0, 0, {}).decode()


def test_threads_leave_a_barrier_under_both_conditions() -> None:
    under_two = Decoder("@P1 BREAK P2, B3", 0, 0, {}).decode()
    assert (under_two.table, under_two.n_conditions) == (3, 1)
    assert under_two.conditions[0].index == 2
    assert Decoder("@P1 BREAK B3", 0, 0, {}).decode().n_conditions == 0
