"""`record_video`: what is seen on the screens of an `AtariEnv`, as a GIF or an MP4 file."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlbatch.dicttensor import DictTensor
from rlbatch.envs.atari._options import check_count
from rlbatch.envs.atari.env import AtariEnv

_SUFFIXES = (".gif", ".mp4")
# In hundredths of a second, the unit of the format. Browsers show what is shorter for a tenth of
# a second.
_SHORTEST_IN_GIF = 2

Policy = Callable[[DictTensor], DictTensor]


def record_video(
    env: AtariEnv,
    path: str | os.PathLike,
    n_steps: int,
    policy: Policy | None = None,
    ids: Sequence[int] | None = (0,),
    seed: int | None = None,
) -> None:
    """Steps all environments and writes what some of them show after every step to a file.

    It goes on from where the environments are, and leaves them where they get to. After the last
    step of an episode a screen shows the beginning of the next one: see `AtariEnv.render`.

    The video is as fast as the console: 60 frames per second, or 50 in games for PAL television,
    divided by `frameskip`. Pixels are those of `AtariEnv.render`; a television shows them about
    twice as wide as they are high.

    A GIF has the console's colours exactly. It shows no picture for less than 0.02 s, so that with
    `frameskip=1` a game for NTSC is slower there; pictures that are equal and follow each other are
    stored as one that is shown longer; and it is built in memory. An MP4 is written as it goes, at
    any speed, but its colours are only close.

    Args:
        env: The environments, after their first `reset`; not with `obs_type="ram"`, for which
            nothing is drawn.
        path: Ends in `.gif` or `.mp4`; a file that is there is replaced once this one is whole.
        n_steps: How many steps; at least 1.
        policy: Takes the observation of all environments, and returns a `DictTensor` with
            `action` [n_envs], as `AtariEnv.step` takes it. None for random actions.
        ids: Whose screens are in the picture, side by side; None for all. They have to be of one
            height.
        seed: Of the random actions; None: not reproducible.

    Raises:
        TypeError: An argument is not of its type.
        ValueError: One is out of range, there is a `seed` for a policy, or the screens cannot be
            shown: see `AtariEnv.render`.
        FileNotFoundError: There is no folder for the file.
        CallOrderError: Before the first `reset`.
        ImportError: A package that writes such files is not installed; the message says how to.
        OSError: Not all of it could be written: the disk is full, for one.

    Example:
        >>> import tempfile
        >>> env = AtariEnv("breakout", 2, seed=0)
        >>> observation, running = env.reset()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record_video(env, f"{folder}/breakout.gif", n_steps=20, ids=[0, 1], seed=0)
        >>> env.close()
    """
    if not isinstance(env, AtariEnv):
        raise TypeError(f"env: expected an AtariEnv, got {type(env).__name__}")
    check_count("n_steps", n_steps, 1)
    path = _checked_path(path)
    if policy is None:
        policy = _random_policy(env, seed)
    elif not callable(policy):
        raise TypeError(f"policy: expected a function or None, got {type(policy).__name__}")
    elif seed is not None:
        raise ValueError(f"seed: expected None, as there is a policy, got {seed!r}")
    if ids is not None and np.size(ids) == 0:
        raise ValueError("ids: expected at least one environment, got none")
    observation = env.observe()
    env.render(ids)  # So that what it refuses is refused before a file is made.
    # PAL games are those with 250 lines, so screens of one height have one rate.
    step_s = env.seconds_per_step(0 if ids is None else int(torch.as_tensor(ids).flatten()[0]))
    pictures = _pictures(env, observation, n_steps, policy, ids)
    with replaced(path) as unfinished:
        if path.suffix.lower() == ".gif":
            _write_gif(unfinished, pictures, n_steps, step_s)
        else:
            _write_mp4(unfinished, pictures, step_s)
            check_mp4(unfinished, n_steps)


def palette_image(picture: np.ndarray) -> Any:
    """Returns a picture as a `PIL.Image` with a palette, in which its colours are exact.

    Args:
        picture: [height, width, 3] uint8 RGB, of at most 256 colours. A console knows 128.

    Raises:
        ImportError: Pillow is not installed; the message says how to.
        ValueError: It has more colours.
    """
    packed = picture.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, places = np.unique(packed, return_inverse=True)
    if len(colours) > 256:
        raise ValueError(f"picture: expected at most 256 colours, got {len(colours)}")
    image = _require("PIL.Image").fromarray(places.reshape(packed.shape).astype(np.uint8))
    image.putpalette(colours.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:].tobytes())
    return image


def _checked_path(path: str | os.PathLike) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: expected a path, got {path!r}")
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path: expected one that ends in {' or '.join(_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: expected a folder that exists, got {path.parent}")
    return path


def check_mp4(path: Path, n_pictures: int) -> None:
    """Checks that a film can be read to its end: the program that writes it does not tell.

    Raises:
        OSError: It cannot, or has another number of pictures.
        ImportError: A package that films need is not installed.
    """
    try:
        found, _ = _require("imageio_ffmpeg").count_frames_and_secs(path)
    except RuntimeError as error:
        found = f"a file that cannot be read: {str(error).strip().splitlines()[-1]}"
    if found != n_pictures:
        raise OSError(f"{path.parent}: expected a film of {n_pictures} pictures, got {found}")


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a file to write, which takes the place of another one once it is whole."""
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _random_policy(env: AtariEnv, seed: int | None) -> Policy:
    if seed is not None:
        check_count("seed", seed, 0)
    generator, n_actions = np.random.default_rng(seed), int(env.action_space.n)

    def act(observation: DictTensor) -> DictTensor:
        return DictTensor(
            {"action": torch.from_numpy(generator.integers(n_actions, size=env.n_envs()))}
        ).to(env.device)

    return act


def _pictures(
    env: AtariEnv,
    observation: DictTensor,
    n_steps: int,
    policy: Policy,
    ids: Sequence[int] | None,
) -> Iterator[np.ndarray]:
    for _ in range(n_steps):
        _, (observation, _) = env.step(policy(observation))
        yield np.concatenate(list(env.render(ids).cpu().numpy()), axis=1)


def _write_gif(path: Path, pictures: Iterator[np.ndarray], n_steps: int, step_s: float) -> None:
    _require("PIL.Image")
    images, milliseconds = map(palette_image, pictures), gif_durations(n_steps, step_s)
    next(images).save(path, save_all=True, append_images=images, duration=milliseconds, loop=0)


def gif_durations(n_pictures: int, seconds: float) -> list[int]:
    """Returns for how many milliseconds a GIF shows each picture: a multiple of ten.

    Args:
        n_pictures: How many there are.
        seconds: How long each is to be shown, as it is on average unless that is too short.

    Example:
        >>> gif_durations(4, 1 / 15)
        [70, 60, 70, 70]
    """
    ends = np.round(100 * seconds * np.arange(n_pictures + 1)).astype(int)
    return (10 * np.maximum(np.diff(ends), _SHORTEST_IN_GIF)).tolist()


def _write_mp4(path: Path, pictures: Iterator[np.ndarray], step_s: float) -> None:
    _require("imageio_ffmpeg")
    writer = _require("imageio.v2").get_writer(
        path,
        format="FFMPEG",
        mode="I",
        fps=1 / step_s,
        codec="libx264",
        pixelformat="yuv420p",  # The only one that every browser shows.
        macro_block_size=2,  # No other size than the screen's, whose height is even.
        quality=None,
        output_params=["-crf", "12"],
    )
    with writer:
        for picture in pictures:
            writer.append_data(picture)


def _require(module: str) -> Any:
    """Returns a module of a package that a video needs.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.partition(".")[0], "imageio[ffmpeg]")
        raise ImportError(
            f"record_video: expected the package {package}, got none; pip install 'rlbatch[video]'"
        ) from error
