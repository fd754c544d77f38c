"""`record_video`: files that are read back, what they show, and mistakes."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from rlbatch import DictTensor
from rlbatch.envs.atari import GAMES, AtariEnv
from rlbatch.envs.atari.video import check_mp4, palette_image, record_video, replaced
from rlbatch.errors import CallOrderError
from tests.processes import at_most

pytest.importorskip("ale_py")
Image = pytest.importorskip("PIL.Image")

N_STEPS = 12


def make(game="breakout", n_envs=2, **options):
    env = AtariEnv(game, n_envs, seed=3, num_threads=1, **options)
    env.reset()
    return env


def always(action, n_envs=2):
    return lambda observation: DictTensor({"action": torch.full((n_envs,), action)})


def screens(env, n_steps, policy, ids):
    """Returns what has to be in the file, [n_steps, height, width, 3]."""
    observation, found = env.observe(), []
    for _ in range(n_steps):
        _, (observation, _) = env.step(policy(observation))
        found.append(np.concatenate([env.render([i])[0].numpy() for i in ids], axis=1))
    return np.stack(found)


def read_gif(path):
    """Returns the pictures in the file, and for how many milliseconds each is shown."""
    pictures, milliseconds = [], []
    with Image.open(path) as image:
        for i in range(image.n_frames):
            image.seek(i)
            pictures.append(np.asarray(image.convert("RGB")))
            milliseconds.append(image.info["duration"])
    return pictures, milliseconds


@pytest.mark.parametrize("ids", [(0,), (1,), (1, 0), None])
def test_a_gif_holds_what_is_on_the_screens_after_every_step(tmp_path, ids):
    path = tmp_path / "game.gif"
    policy = always(2)
    record_video(make(), path, N_STEPS, policy, ids)
    shown = [0, 1] if ids is None else ids
    expected = screens(make(), N_STEPS, policy, shown)
    distinct = [0, *(1 + np.flatnonzero((np.diff(expected.astype(int), axis=0)).any((1, 2, 3))))]
    assert len(distinct) > N_STEPS // 2, "the game stood still"
    pictures, _ = read_gif(path)
    assert pictures[0].shape == (210, 160 * len(shown), 3)
    np.testing.assert_array_equal(pictures, expected[distinct])


@pytest.mark.parametrize(
    ("game", "frameskip", "seconds"),
    [("breakout", 4, 4 / 60), ("adventure", 4, 4 / 50), ("pong", 3, 3 / 60), ("klax", 1, 1 / 50)],
)
def test_a_gif_is_as_fast_as_the_console(tmp_path, game, frameskip, seconds):
    env = make(game, frameskip=frameskip)
    record_video(env, tmp_path / "game.GIF", 30, seed=0)
    _, milliseconds = read_gif(tmp_path / "game.GIF")
    assert sum(milliseconds) == pytest.approx(1000 * 30 * seconds)


def test_a_gif_shows_no_picture_too_shortly_for_browsers(tmp_path):
    record_video(make(frameskip=1), tmp_path / "game.gif", 30, seed=0)
    assert min(read_gif(tmp_path / "game.gif")[1]) >= 20


def test_a_gif_begins_anew_when_it_has_ended(tmp_path):
    record_video(make(), tmp_path / "game.gif", 3, seed=0)
    with Image.open(tmp_path / "game.gif") as image:
        assert image.info["loop"] == 0  # For ever.


def test_equal_seeds_make_equal_files_and_others_do_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record_video(make(), tmp_path / f"{name}.gif", 30, seed=seed)
    first, second, third = ((tmp_path / f"{name}.gif").read_bytes() for name in "abc")
    assert first == second != third


def test_random_actions_are_all_there_are(tmp_path, monkeypatch):
    drawn, step = set(), AtariEnv.step

    def spy(env, action):
        drawn.update(action["action"].tolist())
        return step(env, action)

    monkeypatch.setattr(AtariEnv, "step", spy)
    record_video(make(), tmp_path / "game.gif", 30, seed=0)
    assert drawn == {0, 1, 2, 3}


def test_a_policy_sees_what_to_act_on(tmp_path):
    seen = []

    def policy(observation):
        seen.append(observation)
        return always(1)(observation)

    env, other = make(), make()
    record_video(env, tmp_path / "game.gif", 3, policy)
    expected = [other.observe()]
    for _ in range(3):
        expected.append(other.step(always(1)(None))[1][0])
    for found, wanted in zip([*seen, env.observe()], expected, strict=True):
        assert torch.equal(found["frame"], wanted["frame"])
        assert torch.equal(found["episode_length"], wanted["episode_length"])


def test_an_mp4_has_every_picture_at_its_size_and_speed(tmp_path):
    pytest.importorskip("imageio.v2")
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    path = tmp_path / "game.mp4"
    record_video(make(), path, N_STEPS, always(2), [0, 1])
    # By ffmpeg itself: imageio's reader leaves files open.
    command = [ffmpeg, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    read = subprocess.run(command, capture_output=True, check=True)
    assert b" 320x210" in read.stderr
    assert b" 15 fps" in read.stderr
    assert b" yuv420p" in read.stderr  # Which every browser shows.
    pictures = np.frombuffer(read.stdout, np.uint8).reshape(-1, 210, 320, 3)
    expected = screens(make(), N_STEPS, always(2), [0, 1])
    assert pictures.shape == expected.shape == (N_STEPS, 210, 320, 3)
    # Colours are stored at half the resolution, so no pixel is exact.
    difference = np.abs(pictures.astype(int) - expected).mean((1, 2, 3))
    assert difference.max() < 2
    assert np.abs(pictures[0].astype(int) - expected[-1]).mean() > difference[0]


def test_an_mp4_may_have_a_broken_number_of_pictures_per_second(tmp_path):
    counter = pytest.importorskip("imageio_ffmpeg")
    record_video(make(frameskip=7), tmp_path / "game.mp4", 60, seed=0)
    n_pictures, seconds = counter.count_frames_and_secs(tmp_path / "game.mp4")
    assert (n_pictures, seconds) == (60, pytest.approx(60 * 7 / 60, abs=0.05))


def test_a_film_that_lacks_a_picture_is_refused(tmp_path):
    record_video(make(), tmp_path / "game.mp4", 3, seed=0)
    check_mp4(tmp_path / "game.mp4", 3)
    with pytest.raises(OSError, match="expected a film of 4 pictures, got 3$"):
        check_mp4(tmp_path / "game.mp4", 4)


@pytest.mark.parametrize(
    ("package", "name", "wanted"),
    [("PIL.Image", "game.gif", "pillow"), ("imageio_ffmpeg", "game.mp4", "imageio")],
)
def test_a_missing_package_is_named_with_its_cure(monkeypatch, tmp_path, package, name, wanted):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"^record_video: expected .*{wanted}.*rlbatch\[video\]"):
        record_video(make(), tmp_path / name, 3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"path": "game.avi"}, ValueError, r"^path: expected one that ends in .gif or .mp4, got"),
        ({"path": "no/game.gif"}, FileNotFoundError, "^path: expected a folder that exists, got"),
        ({"n_steps": 0}, ValueError, "^n_steps: expected an integer from 1"),
        ({"n_steps": 2.0}, TypeError, "^n_steps: expected an integer"),
        ({"policy": 3}, TypeError, "^policy: expected a function or None, got int"),
        ({"policy": always(0), "seed": 3}, ValueError, "^seed: expected None, .* got 3"),
        ({"seed": -1}, ValueError, "^seed: expected an integer from 0"),
        ({"seed": 1.5}, TypeError, "^seed: expected an integer"),
        ({"ids": []}, ValueError, "^ids: expected at least one environment, got none"),
        ({"ids": [2]}, ValueError, "^ids: expected numbers from 0 to 1, got 2"),
        ({"policy": always(9)}, ValueError, "^action: expected numbers from 0 to 3"),
    ],
)
def test_mistakes_are_named_and_leave_no_file(tmp_path, arguments, error, match):
    arguments = {"path": "game.gif", "n_steps": 3, **arguments}
    arguments["path"] = tmp_path / arguments["path"]
    with pytest.raises(error, match=match):
        record_video(make(), **arguments)
    assert not list(tmp_path.iterdir())


def test_refuses_what_is_no_atari_env_or_was_not_reset_or_draws_nothing(tmp_path):
    path = tmp_path / "game.gif"
    with pytest.raises(TypeError, match="^env: expected an AtariEnv, got int"):
        record_video(3, path, 3)
    with pytest.raises(CallOrderError, match="expected a reset before"):
        record_video(AtariEnv("pong", 1, seed=0), path, 3)
    with pytest.raises(ValueError, match="^render: expected obs_type pixels or rgb, got ram"):
        record_video(make(obs_type="ram"), path, 3)
    mixed = AtariEnv(games=["pong", "klax"], n_envs=2, seed=0)
    mixed.reset()
    with pytest.raises(ValueError, match="^render: expected screens of one height"):
        record_video(mixed, path, 3, ids=None)
    assert not path.exists()


def test_a_picture_with_a_palette_has_the_same_colours():
    picture = make().render([0])[0].numpy()
    image = palette_image(picture)
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), picture)


SMALL = {"img_height": 20, "img_width": 16}


def test_where_nothing_is_drawn_no_file_is_left(tmp_path):
    env = AtariEnv("pong", seed=0, obs_type="ram")
    env.reset()
    with pytest.raises(ValueError, match="render"):
        record_video(env, tmp_path / "a.mp4", 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["game.gif", "game.mp4"])
def test_a_video_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path, name):
    path = tmp_path / name
    record_video(make(), path, 2, seed=0)
    film = path.read_bytes()
    with (
        at_most(resource.RLIMIT_FSIZE, len(film) // 2),
        pytest.raises(OSError, match=r"expected a film of 60 pictures|File too large"),
    ):
        record_video(make(), path, 60, seed=0)
    assert path.read_bytes() == film
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["game.gif", "game.mp4"])
def test_a_video_that_is_not_finished_leaves_the_one_before(tmp_path, name):
    path, actions = tmp_path / name, iter([always(0)(None)] * 2)
    record_video(make(), path, 3, seed=0)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="StopIteration"):
        record_video(make(), path, 5, lambda _: next(actions))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_under_way_is_hidden_and_its_process_has_it_alone(tmp_path):
    with replaced(tmp_path / "game.gif") as unfinished:
        unfinished.touch()
        assert unfinished == tmp_path / f".{os.getpid()}-game.gif"
    assert [path.name for path in tmp_path.iterdir()] == ["game.gif"]


def test_games_for_other_televisions_are_shown_at_their_speed(tmp_path):
    pal = next(name for name, game in GAMES.items() if game.pal)
    env = AtariEnv(games=["pong", pal], n_envs=2, seed=0, **SMALL)
    env.reset()
    times = []
    for number in (0, 1):
        record_video(env, tmp_path / "a.gif", 3, ids=[number], seed=0)
        with Image.open(tmp_path / "a.gif") as image:
            times.append(image.info["duration"])
    assert times[0] < times[1] == 80  # Milliseconds for four frames at 50 per second.


def test_a_palette_has_256_colours():
    picture = np.zeros((1, 257, 3), np.uint8)
    picture[0, :, 0], picture[0, 256, 1] = np.arange(257), 1
    palette_image(picture[:, :256])
    with pytest.raises(ValueError, match="at most 256 colours, got 257"):
        palette_image(picture)


def test_a_seed_is_for_random_actions(tmp_path):
    env = AtariEnv("pong", seed=0, **SMALL)
    env.reset()
    with pytest.raises(ValueError, match="seed: expected None"):
        record_video(env, tmp_path / "a.gif", 2, policy=lambda observation: observation, seed=0)
