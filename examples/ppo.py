"""PPO in one file: processes act, this one learns.

    python examples/ppo.py --env-id CartPole-v1

For environments of Gymnasium with vectors as observations and discrete actions.
Source: Schulman et al., Proximal policy optimization algorithms, 2017, arXiv:1707.06347.
"""

from dataclasses import dataclass

import gymnasium
import torch
import tyro
from torch import nn
from torch.distributions import Categorical

from rlbatch import DictTensor, RL_Agent, RL_Batcher
from rlbatch.envs import GymEnvInf
from rlbatch.returns import gae


@dataclass
class Config:
    env_id: str = "CartPole-v1"
    total_steps: int = 100_000
    n_processes: int = 2
    n_envs: int = 8  # In each process.
    n_timesteps: int = 64  # Between two updates of the agents.
    n_epochs: int = 10
    minibatch_size: int = 128
    learning_rate: float = 1e-3  # Falls to 0.
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_gradient_norm: float = 0.5
    seed: int = 0


class Model(nn.Module):
    """A policy and a value of observations, two networks that share nothing."""

    def __init__(self, n_inputs: int, n_actions: int):
        super().__init__()

        def network(n_outputs: int) -> nn.Sequential:
            hidden = nn.Linear(n_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
            return nn.Sequential(*hidden, nn.Linear(64, n_outputs))

        self._logits, self._value = network(n_actions), network(1)

    def policy(self, frame: torch.Tensor) -> Categorical:
        return Categorical(logits=self._logits(frame.float()))

    def value(self, frame: torch.Tensor) -> torch.Tensor:
        return self._value(frame.float()).squeeze(-1)


class Agent(RL_Agent):
    """Draws actions; what it returns with them is stored with the steps."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, state, observation, agent_info, history=None):
        policy = self.model.policy(observation["frame"])
        action = policy.sample()
        return DictTensor({"action": action, "log_prob": policy.log_prob(action)}), state

    def update(self, info):
        self.model.load_state_dict(info)


def create_env(env_id, n_envs, seed):
    return GymEnvInf([gymnasium.make(env_id) for _ in range(n_envs)], seed)


@torch.no_grad()
def batch_of(model: Model, steps, config: Config) -> DictTensor:
    """Returns the steps [B, T] of trajectories as rows [B * T], with what is learnt from them."""
    value = model.value(steps["observation/frame"])
    advantage = gae(
        steps["_observation/reward"],
        value,
        model.value(steps["_observation/frame"]),  # Of the true last one, where episodes end.
        terminated=steps["_observation/terminated"],
        truncated=steps["_observation/truncated"],
        discount=config.discount,
        lambda_=config.gae_lambda,
    )
    columns = {key: steps[key] for key in ("observation/frame", "action/action", "action/log_prob")}
    columns |= {"advantage": advantage, "value_target": advantage + value}
    return DictTensor({key: column.flatten(0, 1) for key, column in columns.items()})


def loss_of(model: Model, rows: DictTensor, config: Config) -> torch.Tensor:
    policy = model.policy(rows["observation/frame"])
    ratio = (policy.log_prob(rows["action/action"]) - rows["action/log_prob"]).exp()
    deviation, mean = torch.std_mean(rows["advantage"], correction=0)  # 0 of a single row, not nan.
    advantage = (rows["advantage"] - mean) / (deviation + 1e-8)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = (rows["value_target"] - model.value(rows["observation/frame"])).square().mean()
    bonus = config.entropy_coefficient * policy.entropy().mean()
    return policy_loss + config.value_coefficient * value_loss - bonus


def main(config: Config) -> float:
    """Trains, and returns the mean return of the last hundred episodes."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # The other cores act.
    env = gymnasium.make(config.env_id)
    model = Model(env.observation_space.shape[0], int(env.action_space.n))
    optimizer = torch.optim.Adam(model.parameters(), config.learning_rate, eps=1e-5)
    n_steps, returns = 0, torch.zeros(0)
    with RL_Batcher(
        n_timesteps=config.n_timesteps,
        create_agent=Agent,
        agent_args={"model": model},
        create_env=create_env,
        env_args={"env_id": config.env_id, "n_envs": config.n_envs},
        n_processes=config.n_processes,
        seeds=config.seed,
    ) as batcher:
        batcher.reset()
        while n_steps < config.total_steps:
            batcher.update(model.state_dict())
            batcher.execute()
            steps = batcher.get()[0].trajectories  # TemporalDictTensor [B, T, ...]
            rate = config.learning_rate * (1 - n_steps / config.total_steps)
            optimizer.param_groups[0]["lr"] = rate
            batch = batch_of(model, steps, config)
            for _ in range(config.n_epochs):
                for rows in torch.randperm(batch.n_elems()).split(config.minibatch_size):
                    optimizer.zero_grad()
                    loss_of(model, batch.index(rows), config).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), config.max_gradient_norm)
                    optimizer.step()

            n_steps += batch.n_elems()
            ended = steps["_observation/episode_return"][steps["_observation/done"]]
            returns = torch.cat([returns, ended])[-100:]
            print(f"{n_steps:,} steps: {returns.mean():.1f} over {len(returns)} episodes")
    return returns.mean().item()


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
