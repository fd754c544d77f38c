"""Acquires Atari trajectories in one process, with environments, agent and batcher on one GPU.

    python examples/gpu_batcher.py --game breakout --n-envs 32768

Frames are stored once, and stacked when they are used. Without a GPU it runs on the CPU.
"""

import time
from dataclasses import dataclass

import torch
import tyro
from torch import nn
from torch.distributions import Categorical

from rlbatch import DictTensor, RL_Agent, RL_Batcher
from rlbatch.envs.atari import AtariEnv, find_game
from rlbatch.frames import push_frame, stack_frames


@dataclass
class Config:
    game: str = "pong"
    n_envs: int = 32768 if torch.cuda.is_available() else 16
    n_timesteps: int = 20
    n_executes: int = 5
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class Player(RL_Agent):
    """A Nature CNN that draws its actions; its state is the three frames before."""

    def __init__(self, n_actions: int, device: str):
        layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        layers += [nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512)]
        self.model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(512, n_actions)).to(device)
        self.device = device

    def initial_state(self, agent_info, B):
        frames = torch.zeros(B, 3, 84, 84, dtype=torch.uint8, device=self.device)
        return DictTensor({"frames": frames})

    @torch.no_grad()
    def __call__(self, state, observation, agent_info=None, history=None):
        begins = observation["initial_state"]
        stack = push_frame(state["frames"], observation["frame"][:, 0], begins)
        logits = torch.cat([self.model(part / 255) for part in stack.split(4096)])
        action = Categorical(logits=logits, validate_args=False).sample()  # Checking would wait.
        return DictTensor({"action": action}), DictTensor({"frames": stack[:, 1:]})


def main(config: Config) -> None:
    def create_env(n_envs, seed):
        return AtariEnv(config.game, n_envs, device=config.device, seed=seed, stack_num=1)

    agent_args = {"n_actions": len(find_game(config.game).minimal_actions), "device": config.device}
    settings = {"n_processes": 0, "seeds": 0, "device": config.device}
    with RL_Batcher(
        config.n_timesteps, Player, agent_args, create_env, {"n_envs": config.n_envs}, **settings
    ) as batcher:
        batcher.reset()
        for k in range(config.n_executes):
            started = time.perf_counter()
            batcher.execute()
            trajectories, _ = batcher.get(copy=False)  # Until the next execute.
            info, steps = trajectories.info, trajectories.trajectories
            rows = slice(0, 64)  # A minibatch, as a learner would see it.
            stacks = stack_frames(
                steps["observation/frame"][rows, :, 0],
                steps["observation/initial_state"][rows],
                info["agent_state/frames"][rows],
            )
            reward = steps["_observation/reward_raw"].sum().item()  # Waits for the GPU.
            speed = 4 * config.n_envs * config.n_timesteps / (time.perf_counter() - started)
            print(f"{k}: {speed:,.0f} frames/s, reward {reward:.0f}, {tuple(stacks.shape)}")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
