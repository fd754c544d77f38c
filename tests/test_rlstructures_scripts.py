"""Scripts as they are written for rlstructures 0.2: they run after changing their imports.

Argument names and order, keys, return values and idioms are those that rlstructures documents.
What differs on purpose is tabled in docs/coming_from_rlstructures.md.
"""

import copy

import gymnasium as gym  # rlstructures: gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit  # rlstructures: gym.wrappers
from torch import nn

# rlstructures: from rlstructures import ..., and RL_Batcher from rlstructures.rl_batchers.
from rlbatch import (
    DeviceMismatchError,
    DictTensor,
    RL_Agent,
    RL_Agent_CheckDevice,
    RL_Batcher,
    ShapeError,
    TemporalDictTensor,
    Trajectories,
    masked_dicttensor,
    masked_tensor,
    replay_agent,
    replay_agent_stateless,
)
from rlbatch.envs import DeviceEnv, GymEnv, GymEnvInf  # rlstructures: rlstructures.env_wrappers


def make_cartpoles(n_envs, max_episode_steps):
    return [
        TimeLimit(gym.make("CartPole-v1"), max_episode_steps=max_episode_steps)
        for k in range(n_envs)
    ]


def create_env(n_envs, max_episode_steps=None, seed=None):
    return GymEnv(make_cartpoles(n_envs, max_episode_steps), seed)


def create_infinite_env(n_envs, max_episode_steps=None, seed=None):
    return GymEnvInf(make_cartpoles(n_envs, max_episode_steps), seed)


def step_mask(trajectories):
    """[B, T] bool, from the lengths alone."""
    time = torch.arange(trajectories["action/action"].size()[1])
    return time < trajectories.lengths.cpu().unsqueeze(-1)


def assert_all_have_gradients(model):
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients
    for name, gradient in gradients.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name


# --- REINFORCE, with a batcher that evaluates in the background. ---


class PolicyAndBaseline(nn.Module):
    def __init__(self, n_observations, n_actions, n_hidden=16):
        super().__init__()
        self.policy = nn.Sequential(
            nn.Linear(n_observations, n_hidden), nn.Tanh(), nn.Linear(n_hidden, n_actions)
        )
        self.baseline = nn.Sequential(
            nn.Linear(n_observations, n_hidden), nn.Tanh(), nn.Linear(n_hidden, 1)
        )


class ReinforceAgent(RL_Agent):
    """Draws an action where `stochastic` is set, takes the likeliest one elsewhere."""

    def __init__(self, model=None):
        super().__init__()
        self.model = model

    def require_history(self):
        return False

    def update(self, state_dict):
        self.model.load_state_dict(state_dict)

    def seed(self, seed):
        torch.manual_seed(seed)

    def initial_state(self, agent_info, B):
        return DictTensor({})

    def __call__(self, state, observation, agent_info=None, history=None):
        assert state.empty()
        frame = observation["frame"]
        probabilities = torch.softmax(self.model.policy(frame), dim=-1)
        drawn = torch.distributions.Categorical(probabilities).sample()
        likeliest = probabilities.max(1)[1]
        stochastic = agent_info["stochastic"].float().to(frame.device)
        action = masked_tensor(likeliest, drawn, stochastic)
        agent_do = DictTensor(
            {
                "action": action,
                "action_probabilities": probabilities,
                "baseline": self.model.baseline(frame),
            }
        )
        return agent_do, DictTensor({})


def create_reinforce_agent(model):
    return ReinforceAgent(model=model)


class Reinforce:
    """The script: `run` is what a user wrote, the assertions are this test's."""

    def __init__(self, config):
        self.config = config

    def create_batcher(self, n_envs, n_processes, agent_seeds=None):
        return RL_Batcher(
            n_timesteps=self.config["max_episode_steps"],
            create_agent=create_reinforce_agent,
            create_env=create_env,
            env_args={"n_envs": n_envs, "max_episode_steps": self.config["max_episode_steps"]},
            agent_args={"model": copy.deepcopy(self.learning_model)},
            n_processes=n_processes,
            seeds=[self.config["env_seed"] + 10 * k for k in range(n_processes)],
            agent_info=DictTensor({"stochastic": torch.tensor([True])}),
            env_info=DictTensor({}),
            agent_seeds=agent_seeds,
        )

    def run(self):
        env = create_env(1, seed=0, max_episode_steps=self.config["max_episode_steps"])
        self.n_actions = env.action_space.n
        self.obs_dim = env.reset()[0]["frame"].size()[1]
        env.close()
        del env

        self.learning_model = PolicyAndBaseline(self.obs_dim, self.n_actions)
        self.agent = create_reinforce_agent(model=self.learning_model)
        n_processes = self.config["n_processes"]
        self.evaluation_batcher = self.create_batcher(self.config["n_evaluation_envs"], 1)
        self.train_batcher = self.create_batcher(
            self.config["n_envs"], n_processes, agent_seeds=[7 + k for k in range(n_processes)]
        )
        optimizer = torch.optim.RMSprop(self.learning_model.parameters(), lr=0.01)

        self.launch_evaluation()
        self.train_batcher.update(self.learning_model.state_dict())
        self.iteration, self.evaluations = 0, []
        while self.iteration < self.config["n_iterations"] or not self.evaluations:
            n_episodes = self.config["n_envs"] * n_processes
            agent_info = DictTensor({"stochastic": torch.tensor([True]).repeat(n_episodes)})
            self.train_batcher.reset(agent_info=agent_info)
            self.train_batcher.execute()
            trajectories, n_env_running = self.train_batcher.get(blocking=True)
            assert n_env_running == 0
            self.check(trajectories)

            losses = self.get_loss(trajectories)
            loss = (
                0.1 * losses["baseline_loss"] - losses["reinforce_loss"] - 0.01 * losses["entropy"]
            )
            assert loss.isfinite()
            optimizer.zero_grad()
            loss.backward()
            assert_all_have_gradients(self.learning_model)
            optimizer.step()
            self.train_batcher.update(self.learning_model.state_dict())
            self.iteration += 1
            self.poll_evaluation()

        self.train_batcher.close()
        self.evaluation_batcher.get()  # The last trajectories.
        self.evaluation_batcher.close()

    def launch_evaluation(self):
        self.evaluated_model = copy.deepcopy(self.learning_model)
        n_episodes = self.config["n_evaluation_envs"]
        stochastic = torch.tensor([False]).repeat(n_episodes)
        self.evaluation_batcher.reset(agent_info=DictTensor({"stochastic": stochastic}))
        self.evaluation_batcher.execute()

    def poll_evaluation(self):
        evaluation_trajectories, n_env_running = self.evaluation_batcher.get(blocking=False)
        if evaluation_trajectories is None:
            assert n_env_running is None
            return
        assert n_env_running == 0
        steps = evaluation_trajectories.trajectories
        reward = (steps["_observation/reward"] * steps.mask()).sum(1)
        assert torch.equal(reward.long(), steps.lengths)  # CartPole pays 1 per step.
        frame, action = steps["observation/frame"], steps["action/action"]
        likeliest = self.evaluated_model.policy(frame).max(-1)[1]
        assert torch.equal(action[step_mask(steps)], likeliest[step_mask(steps)])
        self.evaluations.append(reward.mean().item())
        self.evaluation_batcher.update(self.learning_model.state_dict())
        self.launch_evaluation()

    def check(self, trajectories):
        """Episodes are whole, and were acted out with the weights of the last `update`."""
        steps, mask = trajectories.trajectories, trajectories.trajectories.mask()
        assert mask.dtype == torch.float32
        assert mask.sum().item() == steps.lengths.sum().item()
        n_episodes = self.config["n_envs"] * self.config["n_processes"]
        last = torch.arange(n_episodes), steps.lengths - 1
        assert steps["_observation/done"][last].all()
        assert (steps["_observation/done"].float() * mask).sum() == n_episodes
        assert torch.equal(steps["_observation/episode_length"][last], steps.lengths)
        assert steps["observation/initial_state"][:, 0].all()
        assert steps.n_elems() == self.train_batcher.n_elems() == n_episodes
        assert trajectories.info.truncate_key("agent_info/")["stochastic"].all()
        with torch.no_grad():
            replayed = replay_agent(self.agent, trajectories)
        for key in ("action_probabilities", "baseline"):
            acted = steps["action/" + key][step_mask(steps)]
            torch.testing.assert_close(replayed[key][step_mask(steps)], acted)

    def get_loss(self, trajectories):
        replayed = replay_agent(self.agent, trajectories)
        trajectories = trajectories.trajectories
        mask = trajectories.mask()
        reward = trajectories["_observation/reward"] * mask
        future_reward = torch.zeros_like(reward)
        running_sum = torch.zeros(reward.size()[0])
        for t in reversed(range(trajectories.lengths.max().item())):
            running_sum = reward[:, t] + 0.9 * running_sum
            future_reward[:, t] = running_sum

        distribution = torch.distributions.Categorical(replayed["action_probabilities"])
        log_proba = distribution.log_prob(trajectories["action/action"])
        baseline = replayed["baseline"].squeeze(-1)

        def average(x):
            return ((x * mask).sum(1) / mask.sum(1)).mean()

        # rlstructures' own examples return a DictTensor here; see the last test of this file.
        return {
            "reinforce_loss": average(log_proba * (future_reward - baseline).detach()),
            "baseline_loss": average((baseline - future_reward) ** 2),
            "entropy": average(distribution.entropy()),
        }


def test_reinforce_with_an_asynchronous_evaluation_batcher():
    torch.manual_seed(0)
    script = Reinforce(
        {
            "n_envs": 3,
            "n_processes": 2,
            "n_evaluation_envs": 4,
            "max_episode_steps": 30,
            "env_seed": 42,
            "n_iterations": 4,
        }
    )
    script.run()
    assert all(1 <= reward <= 30 for reward in script.evaluations)


# --- A2C with a recurrent agent, in environments that never stop. ---


class RecurrentModel(nn.Module):
    def __init__(self, n_observations, n_actions, n_hidden=8):
        super().__init__()
        self.n_hidden = n_hidden
        self.encoder = nn.Linear(n_observations, n_hidden)
        self.cell = nn.GRUCell(n_hidden, n_hidden)
        self.policy = nn.Linear(n_hidden, n_actions)
        self.critic = nn.Linear(n_hidden + n_observations, 1)

    def initial_state(self, B):
        return torch.ones(B, self.n_hidden)

    def act(self, memory, frame):
        memory = self.cell(torch.tanh(self.encoder(frame)), memory)
        return memory, torch.softmax(self.policy(memory), dim=-1)

    def value(self, memory, frame):
        return self.critic(torch.cat([memory, frame], dim=1)).squeeze(-1)


class RecurrentAgent(RL_Agent):
    def __init__(self, model=None, n_actions=None):
        super().__init__()
        self.model = model
        self.n_actions = n_actions

    def update(self, state_dict):
        self.model.load_state_dict(state_dict)

    def initial_state(self, agent_info, B):
        return DictTensor(
            {"memory": self.model.initial_state(B), "agent_step": torch.zeros(B).long()}
        )

    def __call__(self, state, observation, agent_info, history=None):
        initial = self.initial_state(agent_info, observation.n_elems())
        state = masked_dicttensor(state, initial, observation["initial_state"])
        memory, probabilities = self.model.act(state["memory"], observation["frame"])
        action_sampled = torch.distributions.Categorical(probabilities).sample()
        action = masked_tensor(probabilities.max(1)[1], action_sampled, agent_info["stochastic"])
        agent_do = DictTensor(
            {
                "action": action,
                "action_probabilities": probabilities,
                "agent_step": state["agent_step"],
            }
        )
        return agent_do, DictTensor({"memory": memory, "agent_step": state["agent_step"] + 1})

    def call_replay(self, trajectories, t, state):
        info = trajectories.info
        trajectories = trajectories.trajectories
        if state is None:
            assert t == 0
            state = info.truncate_key("agent_state/")
        agent_info = info.truncate_key("agent_info/")
        tslice = trajectories.temporal_index(t)
        observation = tslice.truncate_key("observation/")
        _observation = tslice.truncate_key("_observation/")

        initial = self.initial_state(agent_info, observation.n_elems())
        state = masked_dicttensor(state, initial, observation["initial_state"])
        memory, probabilities = self.model.act(state["memory"], observation["frame"])
        critic = self.model.value(state["memory"], observation["frame"])
        _critic = self.model.value(memory, _observation["frame"]).detach()
        output = DictTensor(
            {"critic": critic, "_critic": _critic, "action_probabilities": probabilities}
        )
        return output, DictTensor({"memory": memory, "agent_step": state["agent_step"] + 1})


def create_recurrent_agent(model, n_actions=1):
    return RecurrentAgent(model=model, n_actions=n_actions)


def a2c_loss(trajectories, replayed, discount_factor=0.9):
    done = trajectories["_observation/done"].float()
    target = trajectories["_observation/reward"] + discount_factor * replayed["_critic"] * (
        1 - done
    )
    td = target - replayed["critic"]
    distribution = torch.distributions.Categorical(replayed["action_probabilities"])
    log_proba = distribution.log_prob(trajectories["action/action"])
    return (td**2).mean() - (log_proba * td.detach()).mean() - 0.01 * distribution.entropy().mean()


def assert_slots_continue(before, after):
    """A slot starts where the one before it ended, with a new episode where one had ended."""
    ended = before["_observation/done"][:, -1]
    assert torch.equal(after["observation/initial_state"][:, 0], ended)
    frames = after["observation/frame"][:, 0], before["_observation/frame"][:, -1]
    assert torch.equal(frames[0][~ended], frames[1][~ended])


def test_a2c_with_a_recurrent_agent_and_several_executes_after_one_reset():
    torch.manual_seed(1)
    n_envs, n_processes, a2c_timesteps = 4, 1, 9
    learning_model = RecurrentModel(n_observations=4, n_actions=2)
    agent = create_recurrent_agent(n_actions=2, model=learning_model)
    train_batcher = RL_Batcher(
        n_timesteps=a2c_timesteps,
        create_agent=create_recurrent_agent,
        create_env=create_infinite_env,
        env_args={"n_envs": n_envs, "max_episode_steps": 7},
        agent_args={"n_actions": 2, "model": copy.deepcopy(learning_model)},
        n_processes=n_processes,
        seeds=[42 + 10 * k for k in range(n_processes)],
        agent_info=DictTensor({"stochastic": torch.tensor([True])}),
        env_info=DictTensor({}),
    )
    optimizer = torch.optim.Adam(learning_model.parameters(), lr=0.01)
    n_episodes = n_envs * n_processes
    train_batcher.update(learning_model.state_dict())
    train_batcher.reset(
        agent_info=DictTensor({"stochastic": torch.tensor([True]).repeat(n_episodes)})
    )
    previous, n_ends = None, 0
    for _ in range(4):
        train_batcher.execute()
        trajectories, n = train_batcher.get(blocking=True)
        assert n == n_episodes
        steps = trajectories.trajectories
        assert steps.lengths.eq(a2c_timesteps).all()
        # The agent counts its steps, and starts anew with each episode; so does the environment.
        assert torch.equal(steps["action/agent_step"], steps["observation/episode_length"])
        first_step = trajectories.info.truncate_key("agent_state/")["agent_step"]
        assert first_step.eq(0).all() == (previous is None)
        if previous is not None:
            assert_slots_continue(previous, steps)
        previous, n_ends = steps, n_ends + steps["_observation/done"].sum().item()

        replayed = replay_agent(agent, trajectories, replay_method_name="call_replay")
        torch.testing.assert_close(
            replayed["action_probabilities"].detach(), steps["action/action_probabilities"]
        )
        loss = a2c_loss(steps, replayed)
        assert loss.isfinite()
        optimizer.zero_grad()
        loss.backward()
        assert_all_have_gradients(learning_model)
        optimizer.step()
        train_batcher.update(learning_model.state_dict())
    train_batcher.close()
    assert n_ends >= 4 * n_episodes, "too few episodes ended for the state to be reset"


# --- Another policy and another environment in every row. ---


class EpsilonGreedyAgent(RL_Agent):
    """Prefers the action `policy_id`; takes the other one with the probability `epsilon`."""

    def initial_state(self, agent_info, B):
        return DictTensor({"preferred": agent_info["policy_id"]})

    def __call__(self, state, observation, agent_info=None, history=None):
        B = observation.n_elems()
        mask = torch.rand(B).lt(agent_info["epsilon"]).float()
        action = (1 - mask) * state["preferred"] + mask * (1 - state["preferred"])
        return DictTensor({"action": action.long()}), state


class Corridor(gym.Env):
    """Starts at `options["start"]`, moves left or right, and ends at -3 or 3."""

    def __init__(self):
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Dict({"x": gym.spaces.Box(-3, 3, (1,), np.int64)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = options["start"]
        return {"x": np.array([self.x])}, {}

    def step(self, action):
        self.x += 1 if action else -1
        return {"x": np.array([self.x])}, float(self.x), abs(self.x) == 3, False, {}


def create_corridors(n_envs, seed=None):
    return GymEnv([Corridor() for k in range(n_envs)], seed=seed)


def create_epsilon_greedy_agent():
    return EpsilonGreedyAgent()


def test_every_row_has_its_own_policy_and_its_own_environment():
    n_envs, n_processes = 4, 2
    batcher = RL_Batcher(
        n_timesteps=2,
        create_agent=create_epsilon_greedy_agent,
        create_env=create_corridors,
        agent_args={},
        env_args={"n_envs": n_envs},
        n_processes=n_processes,
        seeds=[42 + 10 * k for k in range(n_processes)],
        agent_info=DictTensor({"policy_id": torch.zeros(1).long(), "epsilon": torch.zeros(1)}),
        env_info=DictTensor({"start": torch.zeros(1).long()}),
    )
    policy_id = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0])
    start = torch.tensor([2, 2, 0, 0, -1, -1, -2, -2])
    agent_info = DictTensor({"policy_id": policy_id, "epsilon": torch.zeros(8)})
    batcher.reset(agent_info=agent_info, env_info=DictTensor({"start": start}))
    batcher.execute()
    trajectories, n_running = batcher.get()
    info, steps = trajectories.info, trajectories.trajectories
    assert torch.equal(info.truncate_key("agent_info/")["policy_id"], policy_id)
    assert torch.equal(info.truncate_key("env_info/")["start"], start)
    assert torch.equal(info.truncate_key("agent_state/")["preferred"], policy_id)
    assert torch.equal(steps["observation/x"][:, 0, 0], start)
    assert torch.equal(steps["action/action"][:, 0], policy_id)
    # To the right from 2 and to the left from -2 is one step, from -1 to the left two.
    assert steps.lengths.tolist() == [2, 1, 2, 2, 2, 2, 2, 1]
    assert n_running == 5

    # From now on everybody does the opposite. Rows are given for all environments.
    batcher.execute(agent_info=DictTensor({"policy_id": policy_id, "epsilon": torch.ones(8)}))
    trajectories, n_running = batcher.get()
    steps, still_running = trajectories.trajectories, [0, 2, 3, 4, 6]
    assert torch.equal(steps["action/action"][:, 0], 1 - policy_id[still_running])
    assert trajectories.info["agent_info/epsilon"].eq(1).all()
    assert n_running == 5
    batcher.close()


# --- The data structures. ---


def test_operations_on_a_dicttensor():
    x, y = torch.randn(3, 5), torch.randn(3, 8)
    d = DictTensor({"x": x, "y": y})
    assert d.n_elems() == 3
    assert list(d.keys()) == ["x", "y"]
    assert d["x"] is x
    assert "x" in d
    assert "z" not in d
    assert d.specs() == {
        "x": {"size": torch.Size([5]), "dtype": torch.float32},
        "y": {"size": torch.Size([8]), "dtype": torch.float32},
    }
    assert d.device() == torch.device("cpu")
    assert not d.empty()
    assert DictTensor({}).empty()
    assert DictTensor({}).n_elems() == 0
    assert DictTensor({}).device() is None
    assert list(d.get(["y"]).keys()) == ["y"]
    assert torch.equal(d.slice(1, 3)["x"], x[1:3])
    assert torch.equal(d.index(torch.tensor([2, 0]))["x"], x[[2, 0]])
    rows = d.unfold()
    assert [row.n_elems() for row in rows] == [1, 1, 1]
    assert torch.equal(DictTensor.cat(rows)["y"], y)
    both = d.prepend_key("a/") + DictTensor({"b": torch.zeros(3)})
    assert list(both.keys()) == ["a/x", "a/y", "b"]
    assert list({**both}) == ["a/x", "a/y", "b"]
    d.copy_(DictTensor({"x": x + 1, "y": y}), torch.tensor([0]), torch.tensor([2]))
    assert torch.equal(x[2], x[0] + 1)
    cloned = d.clone()
    cloned["x"].zero_()
    assert not x.eq(0).any()
    assert torch.equal(d.to(torch.device("cpu"))["x"], x)
    assert "x" in str(d)


def test_tensors_in_a_tree():
    d = DictTensor({})
    d.set("observation/x", torch.randn(5, 3))
    d.set("observation/y", torch.randn(5, 8, 2))
    d.set("agent_state/z", torch.randn(5, 4))
    observation = d.truncate_key("observation/")
    assert list(observation.keys()) == ["x", "y"]


def test_operations_on_a_temporaldicttensor():
    x, y = torch.randn(3, 10, 5), torch.randn(3, 10, 8)
    d = TemporalDictTensor({"x": x, "y": y}, lengths=torch.tensor([6, 10, 3]))
    assert d.n_elems() == 3
    assert d["x"].size() == (3, 10, 5)
    assert d.mask().tolist() == [[1.0] * n + [0.0] * (10 - n) for n in (6, 10, 3)]
    d_slice = d.temporal_slice(0, 4)
    assert d_slice.lengths.tolist() == [4, 4, 3]
    assert d_slice.mask().tolist() == [[1.0] * n + [0.0] * (4 - n) for n in (4, 4, 3)]
    assert d.temporal_slice(4, 8).lengths.tolist() == [2, 4, 0]
    assert torch.equal(d.temporal_index(2)["x"], x[:, 2])
    picked = d.temporal_multi_index(d.lengths - 1)["y"]
    assert torch.equal(picked, torch.stack([y[0, 5], y[1, 9], y[2, 2]]))
    step, rows = d.masked_temporal_index(6)
    assert rows.tolist() == [1]
    assert torch.equal(step["x"], x[1:2, 6])
    assert d.slice(0, 1).shorten()["x"].size() == (1, 6, 5)
    assert [row.lengths.tolist() for row in d.unfold()] == [[6], [10], [3]]
    assert TemporalDictTensor.cat([d.slice(2).shorten(), d])["x"].size() == (4, 10, 5)
    assert d.expand(5).lengths.tolist() == [6, 10, 3, 0, 0]
    assert list(d.get(["x"]).keys()) == ["x"]
    full = TemporalDictTensor({"x": x})
    assert full.lengths.tolist() == [10, 10, 10]
    moved = d.to("cpu")
    assert torch.equal(moved["x"], x)


def test_trajectories_move_join_and_are_sampled():
    info = DictTensor({"agent_info/z": torch.arange(4)})
    steps = TemporalDictTensor({"x": torch.arange(4).view(4, 1)})
    trajectories = Trajectories(info, steps)
    assert trajectories.to(torch.device("cpu")).device() == torch.device("cpu")
    joined = Trajectories.cat([trajectories, trajectories])
    assert joined.n_elems() == 8
    drawn = trajectories.sample(2)
    assert torch.equal(drawn.info["agent_info/z"], drawn.trajectories["x"][:, 0])


# --- The environment alone, and agents that are replayed in one call. ---


def test_stepping_an_environment_until_all_episodes_have_ended():
    env = GymEnv(make_cartpoles(4, 100), seed=80)
    obs, who_is_still_running = env.reset()
    n_running, n_steps = who_is_still_running.size()[0], 0
    assert n_running == env.n_envs() == 4
    while n_running > 0:
        action = DictTensor({"action": torch.tensor([0]).repeat(n_running)})
        (obs, who_was_running), (obs2, who_is_still_running) = env.step(action)
        assert obs.n_elems() == who_was_running.size()[0] == n_running
        n_running, n_steps = who_is_still_running.size()[0], n_steps + 1
        assert obs2.n_elems() == n_running == (~obs["done"]).sum()
        assert torch.equal(who_is_still_running, who_was_running[~obs["done"]])
    assert 5 < n_steps < 15  # A pole that is always pushed to the left falls.


class StatelessAgent(ReinforceAgent):
    def replay_all(self, trajectories):
        probabilities = torch.softmax(
            self.model.policy(trajectories.trajectories["observation/frame"]), dim=-1
        )
        return TemporalDictTensor(
            {"action_probabilities": probabilities}, trajectories.trajectories.lengths
        )


def test_replaying_in_one_call_equals_replaying_step_by_step():
    agent = StatelessAgent(PolicyAndBaseline(4, 2))
    steps = TemporalDictTensor({"observation/frame": torch.randn(3, 5, 4)}, torch.tensor([5, 2, 3]))
    info = DictTensor({"agent_info/stochastic": torch.tensor([True, False, True])})
    trajectories = Trajectories(info, steps)
    at_once = replay_agent_stateless(agent, trajectories, "replay_all")
    stepwise = replay_agent(agent, trajectories)
    torch.testing.assert_close(at_once["action_probabilities"], stepwise["action_probabilities"])
    assert torch.equal(at_once.lengths, stepwise.lengths)


# --- Devices. ---


def create_device_env(n_envs, max_episode_steps=None, device=None, seed=None):
    env = GymEnv(make_cartpoles(n_envs, max_episode_steps), seed)
    return DeviceEnv(env, from_device=torch.device("cpu"), to_device=device)


def create_checked_agent(model, device=None):
    agent = ReinforceAgent(model=copy.deepcopy(model).to(device))
    return RL_Agent_CheckDevice(agent, device)


def test_acquisition_on_a_device_with_a_checked_agent(device):
    learner_device = torch.device("cpu")
    learning_model = PolicyAndBaseline(4, 2)
    batcher = RL_Batcher(
        n_timesteps=40,
        create_agent=create_checked_agent,
        create_env=create_device_env,
        env_args={"n_envs": 3, "max_episode_steps": 20, "device": device},
        agent_args={"model": learning_model, "device": device},
        n_processes=1,
        seeds=[42],
        agent_info=DictTensor({"stochastic": torch.tensor([True])}),
        env_info=DictTensor({}),
        device=device,
    )
    state_dict = learning_model.state_dict()
    for k, v in state_dict.items():
        state_dict[k] = v.to("cpu")
    batcher.update(state_dict)
    batcher.reset(agent_info=DictTensor({"stochastic": torch.tensor([True]).repeat(3)}))
    batcher.execute()
    trajectories, n_env_running = batcher.get(blocking=True)
    assert n_env_running == 0
    assert trajectories.device().type == device.type
    batcher.close()

    trajectories = trajectories.to(learner_device)
    agent = RL_Agent_CheckDevice(ReinforceAgent(model=learning_model), learner_device)
    replayed = replay_agent(agent, trajectories)
    valid = step_mask(trajectories.trajectories)
    acted = trajectories.trajectories["action/action_probabilities"]
    # Two devices need not round alike.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if device.type == "cuda" else {}
    torch.testing.assert_close(replayed["action_probabilities"][valid], acted[valid], **tolerance)
    replayed["baseline"].sum().backward()


def test_a_checked_agent_on_the_wrong_device_is_caught():
    agent = RL_Agent_CheckDevice(ReinforceAgent(PolicyAndBaseline(4, 2)), torch.device("meta"))
    observation = DictTensor({"frame": torch.zeros(2, 4)})
    agent_info = DictTensor({"stochastic": torch.tensor([True, True])})
    with pytest.raises(DeviceMismatchError, match="observation/frame: expected .* on meta"):
        agent(DictTensor({}), observation, agent_info)


def test_losses_are_returned_in_a_dicttensor_of_numbers():
    losses = DictTensor({"reinforce_loss": torch.tensor(1.0), "entropy_loss": torch.tensor(2.0)})
    assert [losses[k].item() for k in losses.keys()] == [1.0, 2.0]
    losses.set("baseline_loss", torch.tensor(3.0))
    assert sum(losses.values()) == 6
    with pytest.raises(ShapeError, match=r"reward: expected shape .*, got \(4,\)"):
        losses.set("reward", torch.zeros(4))
    with pytest.raises(ShapeError, match=r"loss: expected shape \[4, ...\], as reward, got \(\)"):
        DictTensor({"reward": torch.zeros(4), "loss": torch.tensor(1.0)})
    with pytest.raises(ShapeError, match=r"reward: expected shape \(\), as loss, got \(4,\)"):
        DictTensor({"loss": torch.tensor(1.0), "reward": torch.zeros(4)})
