"""That options of a run reach what they are for, in all three examples."""

from importlib import import_module
from typing import Any

import pytest
import torch

from algos import checkpoints
from algos.dqn.memory import ReplayMemory
from algos.environments import episode_infos
from rlbatch import TemporalDictTensor
from tests.algos.tasks import TWO_STATES

COMMON = {
    "env_id": TWO_STATES,
    "n_envs": 4,
    "n_processes": 0,
    "total_steps": 200,
    "evaluation_episodes": 4,
    "target_return": None,
    "hidden_size": 8,
}
OWN = {
    "reinforce": {},
    "a2c": {"n_timesteps": 4},
    "dqn": {"n_timesteps": 4, "n_updates": 1, "learning_starts": 32, "batch_size": 5},
}
# What is fixed in the optimizers; see the READMEs.
FIXED = {"reinforce": {}, "a2c": {"alpha": 0.99, "eps": 1e-5}, "dqn": {"eps": 1e-4}}


def module_of(algorithm: str) -> Any:
    return import_module(f"algos.{algorithm}.train")


def config_of(algorithm: str, **options: Any) -> Any:
    return module_of(algorithm).Config(**{**COMMON, **OWN[algorithm], **options})


@pytest.mark.parametrize("algorithm", OWN)
def test_the_seed_of_a_run_is_that_of_its_weights_and_of_its_episodes(
    tmp_path, monkeypatch, algorithm
):
    module, seeds = module_of(algorithm), {"set_up": [], "episode_infos": []}
    set_up = module.set_up

    def set_up_with(seed, *rest):
        seeds["set_up"].append(seed)
        set_up(seed, *rest)

    def infos_with(n_episodes, seed, *rest):
        seeds["episode_infos"].append(seed)
        return episode_infos(n_episodes, seed, *rest)

    monkeypatch.setattr(module, "set_up", set_up_with)
    monkeypatch.setattr(module, "episode_infos", infos_with)
    module.train(config_of(algorithm, seed=7, checkpoint_dir=str(tmp_path)))
    assert {name: set(given) for name, given in seeds.items()} == dict.fromkeys(seeds, {7})


@pytest.mark.parametrize("algorithm", OWN)
def test_the_optimizer_is_as_the_options_and_the_readme_say(tmp_path, algorithm):
    config = config_of(algorithm, learning_rate=0.125, checkpoint_dir=str(tmp_path))
    module_of(algorithm).train(config)
    (group,) = checkpoints.load(tmp_path)["optimizer"]["param_groups"]
    expected = {"lr": 0.125, **FIXED[algorithm]}
    assert {key: group[key] for key in expected} == expected


def test_a_batch_is_as_large_as_the_options_say(tmp_path, monkeypatch):
    sizes, sample = [], ReplayMemory.sample

    def sample_of(memory, n):
        sizes.append(n)
        return sample(memory, n)

    monkeypatch.setattr(ReplayMemory, "sample", sample_of)
    module_of("dqn").train(config_of("dqn", checkpoint_dir=str(tmp_path)))
    assert set(sizes) == {5}


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
@pytest.mark.parametrize("bf16", [False, True])
def test_features_are_computed_in_bfloat16_where_the_options_say_so(algorithm, bf16):
    config = config_of(algorithm, env_id="CartPole-v1", bf16=bf16)
    model = module_of(algorithm).agent_factory(config)(device="cpu").model
    frame = torch.randn(5, 4)
    if algorithm == "a2c":
        found = model.features(frame)
        plain = torch.cat([model.encoder(frame), model._value_encoder(frame)], dim=-1)
    else:
        found, plain = model(frame), model._advantages(model.encoder(frame))
    assert torch.equal(found, plain) == (not bf16)
    torch.testing.assert_close(found, plain, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_network_is_a_dueling_one_where_the_options_say_so(dueling):
    config = config_of("dqn", dueling=dueling)
    model = module_of("dqn").agent_factory(config)(device="cpu").model
    assert ("_value.weight" in model.state_dict()) == dueling


def test_the_memory_is_as_the_options_say():
    memory = module_of("dqn").new_memory(
        config_of("dqn", n_envs=1, n_steps=2, discount=0.5, prioritized=True, priority_exponent=0.5)
    )
    n = 6
    never, one = torch.zeros(1, n, dtype=torch.bool), torch.ones(1, n)
    frame = torch.arange(2).expand(1, n, 2)
    steps = {"observation/frame": frame, "_observation/frame": frame, "action/action": never.long()}
    steps |= {"observation/initial_state": never, "_observation/reward": one}
    steps |= {f"_observation/{key}": never for key in ("terminated", "done")}
    memory.add(TemporalDictTensor(steps))
    drawn = memory.sample(4)
    assert drawn["reward"].tolist() == [1.5] * 4  # Of two steps.
    assert drawn["discount"].tolist() == [0.25] * 4
    assert drawn["frame"].tolist() == [[0, 1]] * 4  # The whole vector.
    memory.set_priorities(torch.tensor([0]), torch.tensor([9.0]))
    assert memory.state_dict()["entries"]["priority"][0] == 3.0


def test_transitions_have_the_priorities_of_their_errors(tmp_path):
    options = {"prioritized": True, "save_memory": True, "n_updates": 4}
    module_of("dqn").train(config_of("dqn", checkpoint_dir=str(tmp_path), **options))
    memory = checkpoints.load(tmp_path, "dqn")["others"]["memory"]
    priority = memory["entries"]["priority"]
    assert len(priority[priority > 0].unique()) > 10


@pytest.mark.parametrize("algorithm", OWN)
def test_the_command_line_evaluates_a_run_with_the_options_of_that_run(
    tmp_path, capsys, monkeypatch, algorithm
):
    module = module_of(algorithm)
    result = module.train(config_of(algorithm, checkpoint_dir=str(tmp_path)))
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", [algorithm, "--evaluate", str(tmp_path)])
    module.main()
    assert capsys.readouterr().out.strip() == str(result.score)
