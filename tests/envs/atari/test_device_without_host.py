"""Steps on a GPU that no host waits for: streams, actions, errors."""

from __future__ import annotations

import gc
from typing import Any

import ale_py
import pytest
import torch

from rlbatch import DictTensor, RL_Batcher
from rlbatch.envs.atari import AtariEnv, device_code
from rlbatch.envs.atari.roms import rom_folder
from rlbatch.errors import CallOrderError
from tests.envs.atari.steps import LeaveAlone, MakeEnv, Walker, check_equal
from tests.helpers import no_waiting_for_the_gpu
from tests.played_gpu import GPU, PlayedGPU

# --- Without the host. ---


def test_an_acquisition_leaves_the_host_alone(make: MakeEnv, leave_alone: LeaveAlone) -> None:
    device = make("pong", 1).device

    def create_env(n_envs: int, seed: int) -> AtariEnv:
        return make("pong", n_envs, seed=seed, max_num_frames_per_episode=20)

    env_args = {"n_envs": 4}
    with RL_Batcher(
        6, Walker, {}, create_env, env_args, n_processes=0, seeds=3, device=device
    ) as batcher:
        batcher.reset()
        batcher.execute()  # This one allocates.
        batcher.get()
        with leave_alone():
            batcher.execute()
            found, _ = batcher.get()
    assert found.trajectories["_observation/done"].any()


def acts(env: AtariEnv) -> DictTensor:
    return DictTensor({"action": torch.zeros(env.n_envs(), dtype=torch.int64, device=env.device)})


@pytest.mark.gpu
def test_a_step_neither_waits_nor_copies() -> None:
    env = AtariEnv("breakout", 256, device="cuda", seed=0, max_num_frames_per_episode=40)
    env.reset()
    action = acts(env)
    env.step(action)
    env.reset_where(env.observe()["done"])
    with no_waiting_for_the_gpu():
        for _ in range(20):
            (after, _), _ = env.step(action)
            env.reset_where(after["lives"] < 5)
    with torch.profiler.profile() as profile:
        for _ in range(20):
            env.step(action)
    names = {event.key for event in profile.key_averages()}
    assert any("rlb_step" in name for name in names)
    assert not [name for name in names if "Memcpy HtoD" in name or "Memcpy DtoH" in name]
    waits = {e.key: e.count for e in profile.key_averages() if "Synchronize" in e.key}
    assert all("Device" in name for name in waits)
    assert sum(waits.values()) < 20  # With one of these the profile itself ends; a step has none.
    assert after["frame"].is_cuda


@pytest.mark.gpu
def test_an_acquisition_stays_on_the_gpu() -> None:
    def create_env(n_envs: int, seed: int) -> AtariEnv:
        return AtariEnv("pong", n_envs, device="cuda", seed=seed)

    env_args = {"n_envs": 64}
    with RL_Batcher(
        5, Walker, {}, create_env, env_args, n_processes=0, seeds=3, device="cuda"
    ) as batcher:
        batcher.reset()
        batcher.execute()  # This one allocates.
        batcher.get()
        with torch.profiler.profile() as profile:
            batcher.execute()
            found, _ = batcher.get()
        names = {event.name for event in profile.events()}
        assert any("rlb_step" in name for name in names)
        assert not [name for name in names if "HtoD" in name or "DtoH" in name]
        assert found.trajectories["observation/frame"].is_cuda


@pytest.mark.gpu
@pytest.mark.parametrize("games", [["pong"], ["pong", "breakout"]])  # On one stream; on several.
def test_steps_in_a_cuda_graph(games: list[str]) -> None:
    plain, captured = (AtariEnv(games=games, n_envs=64, device="cuda", seed=0) for _ in range(2))
    for env in (plain, captured):
        env.reset()
        env.step(acts(env))
    static = acts(captured)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, (following, _) = captured.step(static)
    for t in range(30):
        static["action"].fill_(t % 6)
        graph.replay()
        _, (expected, _) = plain.step(DictTensor({"action": static["action"].clone()}))
        for key in expected.keys():
            assert torch.equal(following[key], expected[key]), f"step {t}: {key}"


# --- Streams. ---


def test_memory_is_known_to_the_streams_that_use_it(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = AtariEnv("pong", 2, device=GPU, seed=0)
    env.reset()
    memory = [*env._batch._batches, *env._batch._kept[0].values()]
    assert not any(hasattr(one, "used_on") for one in memory)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "another stream")
    for _ in range(2):
        env.step(acts(env))
    assert [one.used_on for one in memory] == [["another stream"]] * len(memory)


def test_another_gpu_than_the_current_one_is_the_only_one_in_use(
    two_played_gpus: PlayedGPU,
) -> None:
    other = torch.device("cuda:1")
    options = {"games": ["pong", "breakout"], "n_envs": 4, "seed": 0, "decorrelate_steps": 5}
    native, env = AtariEnv(**options), AtariEnv(device=other, **options)
    expected, _ = native.reset()
    found, running = env.reset()
    assert running.device == other
    action = torch.tensor([2, 3, 0, 4])
    for _ in range(5):
        for key, tensor in found.items():
            assert tensor.device == other
            assert torch.equal(tensor.cpu(), expected[key]), key
        _, (expected, _) = native.step(DictTensor({"action": action}))
        _, (found, _) = env.step(DictTensor({"action": action.to(other)}))
    assert torch.equal(env.get_state().cpu(), native.get_state())
    env.set_state(native.get_state([3]), [1])
    assert env.render([1]).device == env.get_ram().device == other
    env.reset_where(torch.tensor([True, False, False, True], device=other))
    env.close()
    assert two_played_gpus.used == {other}


def test_a_gpu_that_is_one_too_many_is_named(played_gpu: PlayedGPU) -> None:
    with pytest.raises(ValueError, match="^device: .*, got cuda:1 of 1 CUDA devices"):
        AtariEnv("pong", 2, device="cuda:1")


@pytest.mark.parametrize("launch", [0, 1, 2, 3])
def test_a_step_that_is_interrupted_has_to_be_followed_by_a_reset(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch, launch: int
) -> None:
    env, other = (AtariEnv("breakout", 2, device=GPU, seed=0) for _ in range(2))
    for one in (env, other):
        one.reset()
    state = env.get_state()
    kernels, n_launches = env._batch._kernels[0], len(played_gpu.launches)

    def interrupted(*arguments: Any) -> None:
        if len(played_gpu.launches) - n_launches == launch:
            raise KeyboardInterrupt
        type(kernels).launch(kernels, *arguments)

    with monkeypatch.context() as context:
        context.setattr(kernels, "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(acts(env))
    for call in (
        lambda: env.step(acts(env)),
        lambda: env.reset_where(torch.ones(2, dtype=torch.bool, device=GPU)),
        lambda: env.set_state(state),
        env.observe,
        env.get_state,
        env.render,
    ):
        with pytest.raises(CallOrderError, match="expected whole environments, .*; reset"):
            call()
    for one in (env, other):
        one.reset()
        one.step(acts(one))
    check_equal(env.observe(), other.observe().to("cpu"), "observe")


def test_states_that_are_set_in_part_have_to_be_followed_by_a_reset(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = AtariEnv(games=["pong", "breakout"], n_envs=2, device=GPU, seed=0)
    env.reset()
    state = env.get_state()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(env._batch._kernels[1], "launch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.set_state(state)
    with pytest.raises(CallOrderError, match="expected whole environments, .*; reset"):
        env.step(acts(env))
    env.reset()
    env.set_state(state)
    assert torch.equal(env.get_state(), state)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as context:  # Before there was a kernel.
        context.setattr(env._batch, "_bodies", full)
        with pytest.raises(torch.OutOfMemoryError):
            env.set_state(state)
    assert torch.equal(env.get_state(), state)


@pytest.mark.parametrize("games", [["pong"], ["pong", "breakout"]])
def test_states_stay_on_the_gpu(played_gpu: PlayedGPU, games: list[str]) -> None:
    env = AtariEnv(games=games, n_envs=4, device=GPU, seed=0)
    env.reset()
    played_gpu.most_bytes = 0
    states, ram = env.get_state(), env.get_ram()
    env.set_state(states)
    env.set_state(states[[2]], [0])
    assert {states.device, ram.device} == {GPU}
    assert 0 < played_gpu.most_bytes <= 8 * env.n_envs()  # Numbers of environments and the like.
    env.set_state(states, seed=3)
    assert played_gpu.most_bytes < states.nbytes / 10  # The first part of each.


@pytest.mark.parametrize("games", [["pong"], ["pong", "breakout"]])
def test_states_that_are_set_are_only_read(played_gpu: PlayedGPU, games: list[str]) -> None:
    env = AtariEnv(games=games, n_envs=4, device=GPU, seed=0)
    env.reset()
    for ids in ([1], [3, 0]):
        states = env.get_state(ids)
        n_changes = states._version
        env.set_state(states, ids)
        assert states._version == n_changes


def test_memory_that_runs_out_leaves_environments_as_they_are(
    make: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make("breakout", 2, seed=0)
    env.reset()
    state, room = env.get_state(), [env._batch.new_observations()]
    with monkeypatch.context() as context:  # For one of the two observations of a step.
        context.setattr(env._batch, "new_observations", room.pop)
        with pytest.raises(IndexError):
            env.step(acts(env))
    assert torch.equal(env.get_state(), state)


def test_games_run_side_by_side(played_gpu: PlayedGPU) -> None:
    """Each on a stream of its own, which begins and ends with what the current one does."""
    env = AtariEnv(games=["pong", "breakout"], n_envs=4, device=GPU, seed=0)
    env.reset()
    played_gpu.launches.clear()
    env.step(acts(env))
    current, (first, second) = played_gpu.stream, env._batch._sides
    assert len({current, first, second}) == 3
    for name in ("rlb_step", "rlb_observe") * 2:
        part, played_gpu.launches = played_gpu.launches[:6], played_gpu.launches[6:]
        assert part == [
            ("wait_stream", first, current),
            (name, first),
            ("wait_stream", second, current),
            (name, second),
            ("wait_stream", current, first),
            ("wait_stream", current, second),
        ]
    assert not played_gpu.launches
    assert not AtariEnv("pong", 4, device=GPU, seed=0)._batch._sides


@pytest.mark.parametrize(("shared", "expected"), [(228, 8), (100, 3), (64, 2), (9, 1), (None, 2)])
def test_no_more_warps_than_have_shared_memory(
    played_gpu: PlayedGPU, monkeypatch: pytest.MonkeyPatch, shared: int | None, expected: int
) -> None:
    about = torch.cuda.get_device_properties(GPU)
    about.multi_processor_count = 10
    if shared is None:  # Older versions of PyTorch.
        del about.shared_memory_per_multiprocessor
    else:
        about.shared_memory_per_multiprocessor = shared * 1024
    env = AtariEnv(games=["pong", "solaris"], n_envs=2, device=GPU, seed=0, noop_max=0)
    assert env._batch.n_warps == 10 * expected


@pytest.mark.gpu
def test_memory_is_kept_for_what_another_stream_still_runs() -> None:
    env = AtariEnv("pong", 256, device="cuda", seed=0)
    env.reset()
    action = acts(env)
    env.step(action)
    shapes = [one.shape for one in env._batch._shared.values()]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10**9)
        env.step(action)
    del env
    gc.collect()
    fresh = [torch.zeros(shape, dtype=torch.uint8, device="cuda") for shape in shapes]
    torch.cuda.synchronize()
    assert not any(one.any() for one in fresh)


# --- Actions. ---


def test_an_action_may_be_a_view(make: MakeEnv) -> None:
    env = make("pong", 3, seed=0)
    env.reset()
    table = torch.tensor([[1, 5], [2, 5], [3, 5]], device=env.device)
    (after, _), _ = env.step(DictTensor({"action": table[:, 0]}))
    assert after["last_action"].tolist() == [1, 2, 3]
    other = make("pong", 3, seed=0)
    other.reset()
    other.step(DictTensor({"action": torch.tensor([1, 2, 3], device=env.device)}))
    assert torch.equal(env.get_state(), other.get_state())


# --- Errors. ---


def test_the_first_actions_on_a_gpu_are_looked_at(played_gpu: PlayedGPU) -> None:
    """Such as those of an agent that has too many; from then on nothing waits."""
    env = AtariEnv("pong", 3, device=GPU, seed=0)
    env.reset()
    before = env.get_state()
    wrong, right = (
        DictTensor({"action": torch.tensor(one, device=GPU)}) for one in ([9, 0, 6], [5, 0, 1])
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^action: .* from 0 to 5, got \[6, 9\]$"):
            env.step(wrong)
    assert torch.equal(env.get_state(), before)
    env.step(right)
    with played_gpu.alone():
        env.step(wrong)
    with pytest.raises(ValueError, match="from 0 to 5, got others, some step before"):
        env.close()
    env.close()  # It is.
    with pytest.raises(CallOrderError, match="closed"):
        env.step(right)


@pytest.mark.parametrize("call", ["reset", "render", "get_ram", "get_state", "close"])
def test_an_action_that_does_not_exist_is_reported(make: MakeEnv, call: str) -> None:
    env = make("pong", 2, seed=0)
    env.reset()
    env._steps.step(torch.tensor([0, 6], device=env.device))  # On a GPU, `step` does not look.
    with pytest.raises(ValueError, match="from 0 to 5"):
        getattr(env, call)()
    getattr(env, call)()


@pytest.mark.parametrize("action", [-1, 6, 2**32 + 2, -(2**63)])
def test_an_action_that_does_not_exist_does_nothing(make: MakeEnv, action: int) -> None:
    env, other = make("pong", 1, seed=0), make("pong", 1, seed=0)
    for one, number in ((env, action), (other, 0)):
        one.reset()
        for _ in range(5):
            one._steps.step(torch.tensor([number], device=env.device))
    with pytest.raises(ValueError, match="from 0 to 5"):
        env.get_ram()
    assert torch.equal(env.get_ram(), other.get_ram())


def test_calls_for_some_environments(make: MakeEnv) -> None:
    env = make("pong", 3, seed=0)
    with pytest.raises(CallOrderError, match="render"):
        env.render()
    _, running = env.reset()
    assert torch.equal(env.get_state(running[1:]), env.get_state([1, 2]))
    assert torch.equal(env.get_ram(running[0]), env.get_ram(0))
    assert len(env.get_state([])) == 0
    with pytest.raises(ValueError, match="ids: expected at least one"):
        env.render([])
    ale = ale_py.ALEInterface()
    ale.loadROM(str(rom_folder() / "pong.bin"))
    before = env.get_state()
    env.from_ale(ale, [])
    assert torch.equal(env.get_state(), before)
    with pytest.raises(TypeError, match="num_threads: expected an integer, got 'x'"):
        make("pong", 1, num_threads="x")
    env.close()
    with pytest.raises(CallOrderError):
        env.bytes_per_env()


def test_an_environment_that_inference_has_made_is_of_use_outside(monkeypatch) -> None:
    # PyTorch's part on its CPU, which has this mode.
    monkeypatch.setenv(device_code.GRID_VARIABLE, "1")
    with torch.inference_mode():
        env = AtariEnv("pong", 2, seed=0)
        env.reset()
    env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64, device=env.device)}))
    env.set_state(env.get_state())
    env.reset()


def test_a_picture_that_is_lost_is_reported(make: MakeEnv) -> None:
    env = make("pong", 2, seed=0)
    env.reset()
    batch = env._batch
    sizes = batch._kernels[0].sizes
    states = batch.save([1])
    body = states[:, -batch._state_bytes() :]
    begin = sum(sizes[part] for part in ("State", "Generators", "Mt19937", "Episode"))
    screens = body[:, begin : begin + 2 * sizes["Image"]]
    screens[:] = torch.randint(256, screens.shape, dtype=torch.uint8).to(states.device)
    batch.write_headers([1], states)
    batch.restore([1], states)
    with pytest.raises(RuntimeError, match="memory of a picture"):
        env.get_state()
    env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64, device=env.device)}))
    with pytest.raises(RuntimeError, match="memory of a picture"):
        env.get_state()
    env._batch._errors.fill_(1)
    with pytest.raises(RuntimeError, match="memory of a picture") as caught:
        env.get_state()
    assert "expected numbers from 0 to 5" in str(caught.value.__cause__)
    env.reset()
    env.get_state()


def test_a_closed_environment(make: MakeEnv) -> None:
    env = make("pong", 2, seed=0)
    env.reset()
    env.close()
    with pytest.raises(CallOrderError):
        env.step(DictTensor({"action": torch.zeros(2, dtype=torch.int64, device=env.device)}))
    with pytest.raises(CallOrderError):
        env.get_state()
    held = [one for one in vars(env._batch).values() if isinstance(one, torch.Tensor)]
    assert sum(one.numel() for one in held) < 10
