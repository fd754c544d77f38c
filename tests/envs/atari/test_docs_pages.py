"""The generated pages of the documentation: as the script would write them now."""

from pathlib import Path

import numpy as np
import pytest

from rlbatch.envs.atari import GAMES
from scripts import atari_docs

pytest.importorskip("ale_py")
Image = pytest.importorskip("PIL.Image")

DOCS = Path(__file__).parents[3] / "docs"
CURE = "run `python -m scripts.atari_docs`"


@pytest.fixture(scope="module")
def looks():
    return {name: atari_docs.look_at(game) for name, game in GAMES.items()}


def test_the_table_of_the_games_is_the_one_that_the_script_makes(looks):
    assert (DOCS / "atari_games.md").read_text() == atari_docs.games_page(looks), CURE


def test_the_table_has_a_row_for_every_game():
    lines = (DOCS / "atari_games.md").read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")] == list(GAMES)


def test_the_gallery_is_the_one_that_the_script_makes():
    assert (DOCS / "atari_gallery.md").read_text() == atari_docs.gallery_page(), CURE


def test_there_is_one_picture_of_every_game_and_the_gallery_shows_it():
    pictures = {path.name for path in (DOCS / "gallery").iterdir()}
    assert pictures == {f"{name}.png" for name in GAMES}
    page = (DOCS / "atari_gallery.md").read_text()
    assert [name for name in pictures if page.count(f"](gallery/{name})") != 1] == []


def test_the_pictures_are_what_the_console_draws_now(looks):
    differ = []
    for name, look in looks.items():
        with Image.open(DOCS / "gallery" / f"{name}.png") as image:
            assert image.mode == "P", name
            if not np.array_equal(np.asarray(image.convert("RGB")), look.picture):
                differ.append(name)
    assert differ == [], CURE


def test_something_can_be_seen_on_every_picture(looks):
    empty = [name for name, look in looks.items() if len(np.unique(look.picture)) < 2]
    assert empty == []


def test_all_pictures_together_are_small():
    assert sum(path.stat().st_size for path in (DOCS / "gallery").iterdir()) < 200_000


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0], "0"),
        ([22, 86], "22, 86"),
        ([0, 1, 2, 3, 128], "0 to 3, 128"),
        ([1, 2, 3, 16, 17, 18], "1 to 3, 16 to 18"),
        ([0, 4, 8, 12], "0 to 12 by 4"),
        ([0, 2, 3], "0, 2, 3"),
        ([0, 7, 9, 30, 31, 90], "6 from 0 to 90"),
    ],
)
def test_numbers_are_written_short(values, text):
    assert atari_docs.numbers(values) == text
