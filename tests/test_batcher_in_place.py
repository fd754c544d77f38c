"""What agents and environments change in place: what is stored stays, or they are told."""

from __future__ import annotations

import gymnasium
import pytest
import torch

from rlbatch import DictTensor, RL_Agent, RL_Batcher, replay_agent
from rlbatch.envs import GymEnv, GymEnvInf
from tests.batchers import CountingAgent, Rewriter, acquire, cart_poles, make_batcher
from tests.helpers import CountingEnv


@pytest.mark.parametrize("create_env", [cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)])
@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_agent_may_change_what_it_is_given(n_processes, create_env):
    with RL_Batcher(4, Rewriter, {}, create_env, {"n_envs": 2}, n_processes, seeds=0) as batcher:
        batcher.reset()
        for k in range(2):
            batcher.execute()
            found, _ = batcher.get()
            steps = found.trajectories
            assert found.info["agent_state/n"].tolist() == [4 * k] * 2
            assert steps["action/n"].tolist() == [[4 * k + i for i in (1, 2, 3, 4)]] * 2
            assert torch.equal(steps["action/seen"], steps["observation/frame"] / 10)
            for _ in range(2):  # Also the second time.
                assert torch.equal(replay_agent(Rewriter(), found)["n"], steps["action/n"])


class Differ(RL_Agent):
    """Keeps what it has seen, and subtracts in place."""

    def initial_state(self, agent_info, B):
        return DictTensor({"before": torch.zeros(B, 4)})

    def __call__(self, state, observation, agent_info, history=None):
        now = observation["frame"]
        difference = state["before"].neg_().add_(now)
        action = torch.zeros(len(now), dtype=torch.int64)
        output = {"action": action, "difference": difference, "seen": now}
        return DictTensor(output), DictTensor({"before": now})


def cart_poles_that_end(n_envs, seed):
    return GymEnv([gymnasium.make("CartPole-v1") for _ in range(n_envs)], seed)


@pytest.mark.parametrize("create_env", [cart_poles, cart_poles_that_end])
@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_state_that_is_an_observation_may_be_changed_in_place(n_processes, create_env):
    with RL_Batcher(5, Differ, {}, create_env, {"n_envs": 2}, n_processes, seeds=0) as batcher:
        batcher.reset()
        for _ in range(2):
            batcher.execute()
            found, _ = batcher.get()
            steps = found.trajectories
            seen = steps["action/seen"]
            assert torch.equal(steps["observation/frame"], seen)
            first = seen[:, :1] - found.info["agent_state/before"][:, None]
            expected = torch.cat([first, seen[:, 1:] - seen[:, :-1]], dim=1)
            torch.testing.assert_close(steps["action/difference"], expected)
            for _ in range(2):
                replayed = replay_agent(Differ(), found)["difference"]
                assert torch.equal(replayed, steps["action/difference"])
            assert torch.equal(steps["observation/frame"], seen)


class Spender(RL_Agent):
    """Starts from what it is told, and spends it in place."""

    def initial_state(self, agent_info, B):
        return DictTensor({"left": agent_info["budget"]})

    def __call__(self, state, observation, agent_info, history=None):
        left = state["left"].sub_(1)
        action = torch.zeros(observation.n_elems(), dtype=torch.int64)
        output = {"action": action, "left": left, "budget": agent_info["budget"]}
        return DictTensor(output), state


@pytest.mark.parametrize("create_env", [cart_poles, cart_poles_that_end])
def test_a_state_that_is_information_may_be_changed_in_place(create_env):
    with RL_Batcher(3, Spender, {}, create_env, {"n_envs": 1}, 0, seeds=0) as batcher:
        batcher.reset(DictTensor({"budget": torch.tensor([100])}))
        for k in range(2):
            batcher.execute()
            found, _ = batcher.get()
            assert found.info["agent_info/budget"].tolist() == [100]
            assert found.trajectories["action/budget"].tolist() == [[100] * 3]
            left = [[100 - 3 * k - i for i in (1, 2, 3)]]
            assert found.trajectories["action/left"].tolist() == left
            assert replay_agent(Spender(), found)["left"].tolist() == left


class SpendsLater(RL_Agent):
    """Starts with nothing, and spends from then on what it is told, in place."""

    def initial_state(self, agent_info, B):
        return DictTensor({"left": torch.zeros(B, dtype=torch.int64)})

    def __call__(self, state, observation, agent_info, history=None):
        output = {"action": observation["option"], "left": state["left"].sub_(1).clone()}
        return DictTensor(output), DictTensor({"left": agent_info["budget"]})


def test_a_later_state_that_is_information_may_be_changed_in_place():
    with make_batcher(0, [9], create_agent=SpendsLater) as batcher:
        batcher.reset(DictTensor({"budget": torch.tensor([100])}))
        batcher.execute()
        found = batcher.get()[0]
    assert found.trajectories["action/left"].tolist() == [[-1, 99, 99, 99]]
    assert replay_agent(SpendsLater(), found)["left"].tolist() == [[-1, 99, 99, 99]]


def test_an_agent_may_set_keys_of_the_state_that_it_is_given():
    class Notes(RL_Agent):
        def initial_state(self, agent_info, B):
            return DictTensor({"n": torch.zeros(B)})

        def __call__(self, state, observation, agent_info, history=None):
            state.set("next", state["n"] + 1)
            return DictTensor({"action": observation["option"]}), DictTensor({"n": state["next"]})

    with make_batcher(0, [9], create_agent=Notes) as batcher:
        batcher.reset()
        for _ in range(2):
            batcher.execute()
            found = batcher.get()[0]
        assert found.info["agent_state/n"].tolist() == [4]


class BeginsWithItsOwn(Rewriter):
    """Returns one tensor in every reset, and counts in it."""

    def __init__(self):
        self.zeros = torch.zeros(2, dtype=torch.int64)

    def initial_state(self, agent_info, B):
        return DictTensor({"n": self.zeros})


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_state_that_the_agent_keeps_is_as_it_was_in_the_next_reset(n_processes):
    with make_batcher(n_processes, create_agent=BeginsWithItsOwn, lengths=[9, 9]) as batcher:
        for _ in range(3):
            assert acquire(batcher)[0].info["agent_state/n"].tolist() == [0] * 2


class Fuel(CountingEnv):
    """Uses up in place what it is told, and adds to it."""

    def reset(self, env_info=None):
        self.fuel = env_info["option"]
        env_info.set("more", env_info["option"] * 2)
        return super().reset(env_info)

    def step(self, action):
        self.fuel -= 1
        return super().step(action)


class Remembers(RL_Agent):
    """Has in its state the last frame but one, which it cuts from the history, and changes it."""

    def require_history(self):
        return True

    def initial_state(self, agent_info, B):
        return DictTensor({"before": torch.zeros(B, 4)})

    def __call__(self, state, observation, agent_info, history=None):
        before = state["before"].add_(0)
        if history.n_timesteps():
            before = history["observation/frame"][:, -1]
        action = (observation["frame"][:, 2] > 0).long()
        return DictTensor({"action": action, "seen": state["before"]}), DictTensor(
            {"before": before}
        )


@pytest.mark.parametrize("kind", [GymEnv, GymEnvInf])
@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_state_that_is_a_part_of_the_history_outlives_the_slot(n_processes, kind):
    def create_env(seed):
        return kind([gymnasium.make("CartPole-v1") for _ in range(2)], seed)

    with RL_Batcher(3, Remembers, {}, create_env, {}, n_processes, seeds=0) as batcher:
        first = acquire(batcher)[0].trajectories
        batcher.execute()
        second, _ = batcher.get()
    # At the end of the first slot the state was what was seen before its last step.
    assert torch.equal(second.info["agent_state/before"], first["observation/frame"][:, 1])
    replayed = replay_agent(Remembers(), second)
    assert torch.equal(replayed["seen"], second.trajectories["action/seen"])


class InPlace(CountingEnv):
    """Writes every observation over the last one, and clips its actions in place."""

    shown = None

    def reset(self, env_info=None):
        return self.over_the_last(*super().reset(env_info))

    def step(self, action):
        action["action"].clamp_(0, 1)
        (after, ran), (following, running) = super().step(action)
        shown = self.over_the_last(following, running)
        return ((after, ran.clone()) if len(running) < len(ran) else shown), shown

    def over_the_last(self, observation, running):
        if self.shown is None:
            self.shown = observation.clone()
            self.shown.set("running", running.clone())
        n = len(running)
        for key, tensor in (*observation.items(), ("running", running)):
            self.write(self.shown[key][:n], tensor)
        now = {key: tensor[:n] for key, tensor in self.shown.items()}
        running = now.pop("running")
        return DictTensor(now), running

    def write(self, place, tensor):
        place.copy_(tensor)


class InPlaceInNumPy(InPlace):
    """Does so with arrays, which PyTorch does not see change."""

    def write(self, place, tensor):
        place.numpy()[...] = tensor.numpy()


class ActsOutside(RL_Agent):
    """Answers with what it sees, and with actions that are too large, which it remembers."""

    def initial_state(self, agent_info, B):
        return DictTensor({"last": torch.zeros(B, dtype=torch.int64)})

    def __call__(self, state, observation, agent_info, history=None):
        seen = observation["frame"].clone()
        action = seen[:, 2] + 2
        output = {"action": action, "seen": seen, "last": state["last"]}
        return DictTensor(output), DictTensor({"last": action})


@pytest.mark.parametrize("n_processes", [0, 1])
@pytest.mark.parametrize("create_env", [InPlace, InPlaceInNumPy])
@pytest.mark.parametrize(("autoreset", "lengths"), [(False, [4, 5, 9]), (True, [9, 9, 9])])
def test_an_environment_may_change_in_place_what_it_is_given_and_what_it_showed(
    create_env, autoreset, lengths, n_processes
):
    def make(seed):
        return create_env(lengths, autoreset)

    with RL_Batcher(3, ActsOutside, {}, make, {}, n_processes, seeds=0) as batcher:
        batcher.reset()
        for first in (0, 3):
            batcher.execute()
            found = batcher.get()[0]
            steps = found.trajectories
            assert steps.lengths.tolist() == [min(n - first, 3) for n in lengths]
            mask = steps.mask(torch.bool)
            seen = steps["action/seen"]
            assert torch.equal(steps["observation/frame"], seen)
            assert torch.equal(steps["action/action"][mask], seen[..., 2][mask] + 2)
            for row in range(3):
                n = int(steps.lengths[row])
                expected = [[row, 0, first + t] for t in range(n + 1)]
                assert seen[row, :n].tolist() == expected[:-1]
                assert steps["_observation/frame"][row, :n].tolist() == expected[1:]
            assert found.info["agent_state/last"].tolist() == [first + 1 if first else 0] * 3
            assert steps["action/last"][2, 1:].tolist() == [first + 2, first + 3]


@pytest.mark.parametrize("create_env", [InPlace, InPlaceInNumPy])
def test_an_output_that_is_the_observation_is_stored_as_it_was(create_env):
    def create(seed):
        return create_env([9, 9])

    with RL_Batcher(3, CountingAgent, {}, create, {}, 0, seeds=0) as batcher:
        steps = acquire(batcher)[0].trajectories
        assert torch.equal(steps["action/seen"], steps["observation/frame"])


def test_a_part_of_a_nested_action_may_be_changed_in_place():
    class Clips(CountingEnv):
        def step(self, action):
            return super().step(DictTensor({"action": action["action/x"].clamp_(0, 1)}))

    class Nested(ActsOutside):
        def __call__(self, state, observation, agent_info, history=None):
            x = observation["option"] + 7
            output = DictTensor({"action/x": x, "last": state["last"]})
            return output, DictTensor({"last": x})

    with RL_Batcher(3, Nested, {}, lambda seed: Clips([9]), {}, 0, seeds=0) as batcher:
        assert acquire(batcher)[0].trajectories["action/last"].tolist() == [[0, 7, 7]]


class Late(RL_Agent):
    """Changes in place what it is given, in one step."""

    n_calls = 0

    def __init__(self, part, at):
        self.part, self.at = part, at

    def __call__(self, state, observation, agent_info, history=None):
        self.n_calls += 1
        if self.n_calls == self.at:
            {"observation": observation["frame"], "info": agent_info["epsilon"]}[self.part].mul_(2)
        return DictTensor({"action": observation["option"]}), DictTensor()


def test_what_an_agent_changes_in_its_first_step_is_refused():
    agent_args = {"part": "observation", "at": 1}
    with make_batcher(0, [9, 9], create_agent=Late, agent_args=agent_args) as batcher:
        batcher.reset(DictTensor({"epsilon": torch.ones(2)}))
        with pytest.raises(ValueError, match="observation/frame: expected it to be left as it is"):
            batcher.execute()


def test_what_an_agent_changes_late_is_stored_as_the_environment_showed_it():
    agent_args = {"part": "observation", "at": 4}
    with RL_Batcher(
        5, Late, agent_args, lambda seed: CountingEnv([9, 9]), {}, 0, seeds=0
    ) as batcher:
        batcher.reset(DictTensor({"epsilon": torch.ones(2)}))
        batcher.execute()
        steps = batcher.get()[0].trajectories
        assert steps["observation/frame"][0, :, 2].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [1, 4])
def test_what_an_agent_is_told_may_not_be_changed_in_place(at):
    agent_args = {"part": "info", "at": at}
    with RL_Batcher(
        5, Late, agent_args, lambda seed: CountingEnv([9, 9]), {}, 0, seeds=0
    ) as batcher:
        batcher.reset(DictTensor({"epsilon": torch.ones(2)}))
        with pytest.raises(ValueError, match="agent_info/epsilon: expected it to be left as it is"):
            batcher.execute()


@pytest.mark.parametrize("n_processes", [0, 1])
def test_an_agent_and_its_environments_may_have_an_object_in_common(n_processes):
    class Shares(CountingEnv):
        def __init__(self, steps):
            super().__init__([9])
            self.steps = steps

        def step(self, action):
            self.steps.append(1)
            return super().step(action)

    class Looks(CountingAgent):
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, state, observation, agent_info, history=None):
            output, state = super().__call__(state, observation, agent_info, history)
            return output + DictTensor({"n": torch.tensor([len(self.steps)])}), state

    steps = []
    with make_batcher(
        n_processes,
        create_agent=Looks,
        agent_args={"steps": steps},
        create_env=lambda steps, seed: Shares(steps),
        env_args={"steps": steps},
    ) as batcher:
        trajectories, _ = acquire(batcher)
    assert trajectories.trajectories["action/n"].tolist() == [[0, 1, 2, 3]]
    assert not steps  # Neither is the caller's.


def test_an_environment_may_change_what_it_is_given():
    env_info = DictTensor({"option": torch.tensor([50])})
    with RL_Batcher(3, CountingAgent, {}, lambda seed: Fuel([9]), {}, 0, seeds=0) as batcher:
        for _ in range(2):
            batcher.reset(None, env_info)
            for _ in range(2):
                batcher.execute()
                info = batcher.get()[0].info
                assert info["env_info/option"].tolist() == [50]
                assert "env_info/more" not in info


def test_padding_is_zero_though_the_lengths_are_views_that_the_caller_changes():
    arguments = {"agent_args": {}, "env_args": {}, "n_processes": 0, "seeds": 0}
    create = {"create_agent": Rewriter, "create_env": lambda seed: CountingEnv([5, 8])}
    with RL_Batcher(4, **create, **arguments) as batcher:
        batcher.reset()
        batcher.execute()
        batcher.get(copy=False)[0].trajectories.lengths.clamp_(max=1)
        batcher.execute()
        steps = batcher.get()[0].trajectories
        assert steps.lengths.tolist() == [1, 4]
        assert steps["action/n"].tolist() == [[5, 0, 0, 0], [5, 6, 7, 8]]


@pytest.mark.parametrize("n_processes", [0, 1, 2])
def test_padding_is_zero_though_the_caller_writes_into_views_of_it(n_processes):
    def create_env(seed):  # Environments of one length in each process.
        return CountingEnv([1, 4] if n_processes < 2 else [4 if seed.process else 1])

    arguments = {"agent_args": {}, "env_args": {}, "n_processes": n_processes, "seeds": 0}
    with RL_Batcher(4, Rewriter, create_env=create_env, **arguments) as batcher:
        for _ in range(2):
            batcher.reset()
            batcher.execute()
            steps = batcher.get(copy=False)[0].trajectories
            assert sorted(steps.lengths.tolist()) == [1, 4]
            assert not steps["_observation/reward"][~steps.mask(torch.bool)].any()
            steps["_observation/reward"].sub_(0.5)


class Scaler(RL_Agent):
    """Scales what it sees in place."""

    def __call__(self, state, observation, agent_info, history=None):
        frame = observation["frame"]
        frame -= 1
        return DictTensor({"action": frame[:, 0].long() * 0}), DictTensor()


@pytest.mark.parametrize("create_env", [cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)])
def test_an_observation_that_is_changed_in_place_is_refused(create_env):
    with RL_Batcher(4, Scaler, {}, create_env, {"n_envs": 2}, 0, seeds=0) as batcher:
        batcher.reset()
        with pytest.raises(ValueError, match="observation/frame: expected it to be left as it is"):
            batcher.execute()


class Centred(RL_Agent):
    """Centres in place what it remembers, and from then on what it sees."""

    def __init__(self, part):
        self.part = part

    def require_history(self):
        return True

    def __call__(self, state, observation, agent_info, history=None):
        past, now = history["observation/frame"], observation["frame"]
        if past.shape[1] and self.part == "history":
            past -= 1
        elif past.shape[1] and self.part == "observation":
            now -= 1
        return DictTensor({"action": now[:, 0].long() * 0}), DictTensor()


@pytest.mark.parametrize("part", ["history", "observation"])
@pytest.mark.parametrize("create_env", [cart_poles, lambda n_envs, seed: CountingEnv([9] * n_envs)])
def test_what_is_changed_in_place_in_a_later_step_is_refused(create_env, part):
    agent_args = {"part": part}
    with RL_Batcher(4, Centred, agent_args, create_env, {"n_envs": 2}, 0, seeds=0) as batcher:
        batcher.reset()
        with pytest.raises(ValueError, match="observation.* left as .*, got .* changed in place"):
            batcher.execute()


@pytest.mark.parametrize("part", ["history", "observation"])
def test_what_is_changed_in_place_in_a_replay_is_refused(part):
    agent_args = {"part": "nothing"}
    with RL_Batcher(4, Centred, agent_args, cart_poles, {"n_envs": 2}, 0, seeds=0) as batcher:
        found, _ = acquire(batcher)
    with pytest.raises(ValueError, match="call_replay: observation/frame: expected it to be left"):
        replay_agent(Centred(part), found)


class Decays(Rewriter):
    def __call__(self, state, observation, agent_info, history=None):
        agent_info["epsilon"].mul_(0.9)
        return super().__call__(state, observation, agent_info, history)


def test_information_that_is_changed_in_place_in_a_replay_is_refused():
    info = DictTensor({"epsilon": torch.ones(1)})
    with RL_Batcher(
        2, Rewriter, {}, lambda seed: CountingEnv([9]), {}, 0, seeds=0, agent_info=info
    ) as batcher:
        found, _ = acquire(batcher)
    with pytest.raises(ValueError, match="call_replay: agent_info/epsilon: expected it to be left"):
        replay_agent(Decays(), found)
