"""Writes the two generated pages of the documentation: the table of Atari games and the gallery.

`docs/atari_games.md` is made of `GAMES` and of what the console says while it plays;
`docs/atari_gallery.md` shows a picture of every game, `docs/gallery/GAME.png`, of the same frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from rlbatch.envs.atari import GAMES, Console, Game
from rlbatch.envs.atari.video import palette_image

DOCS = Path(__file__).parents[1] / "docs"

N_FRAMES = 600
FIRST_FRAME = 200  # Of those that may become the picture: titles and counting-in are over.
PICTURE_EVERY = 20  # Frames.
HOLD = 8  # Frames that an action is held.
N_COLUMNS = 4
MOST_PARTS = 4  # Of a list of numbers, beyond which it is only counted.

GAMES_HEAD = """\
# The games

<!-- Written by `python -m scripts.atari_docs`: change that. -->

All games of [Atari 2600](atari.md), with the names that `AtariEnv` takes; [pictures](atari_gallery.md) of them.

- *Cartridge*: how it switches its banks of memory. 2K and 4K have none; F8 has 8 KB, F6 16 KB, and SC says that there is RAM on it; E0, FE and DPC are kinds of their own.
- *Screen*: lines by pixels, which is the shape of a picture from `AtariEnv.render`.
- *Actions*: how many have an effect. With `full_action_space=True` all can be chosen that the console knows, or those without FIRE in `skiing` and `lost_luggage`.
- *Modes* and *difficulties*: the options `mode` and `difficulty`; `GAMES` lists them one by one. The first mode is the default.
- *Lives*: yes, if `lives` was more than 1 at some time during {n_frames} random frames. Where it says no, it was 0 or 1.

{table}

The same in Python:

```python
from rlbatch.envs.atari import GAMES, find_game

game = find_game("Pong")
print(game.cart, game.pal, game.height, len(game.minimal_actions), game.difficulties)
print(sum(game.pal for game in GAMES.values()), "of", len(GAMES), "games are for PAL")
```

```text
{printed}
```
"""  # noqa: E501

GALLERY_HEAD = """\
# Gallery

<!-- Written by `python -m scripts.atari_docs`: change that. -->

One picture of every game in the [table](atari_games.md), drawn by rlbatch. A console plays {n_frames} frames at random, with seed 0; of every {every}th frame from number {first} on, the one is shown in which most neighbouring pixels differ. Pixels are square here; a television shows them about twice as wide.

{table}

`Console.getScreenRGB` returns such a picture, and `AtariEnv.render` those of a batch:

```python
from rlbatch.envs.atari import Console

console = Console("breakout")
print(console.getScreenRGB().shape)
```

```text
{printed}
```
"""  # noqa: E501


@dataclass(frozen=True)
class Config:
    """What to write: without any of the options all of it."""

    games: tuple[str, ...] = ()
    """Names of the games whose pictures are written; all of them if there is none."""
    docs: Path = DOCS
    """Folder of the documentation."""


@dataclass(frozen=True)
class Look:
    """What was seen of a game.

    Attributes:
        picture: [height, 160, 3] uint8 RGB.
        has_lives: Whether there was more than one life at some time.
    """

    picture: np.ndarray
    has_lives: bool


def look_at(game: Game) -> Look:
    """Plays a game at random, always the same way, and returns what was seen."""
    console = Console()
    console.setInt("random_seed", 0)
    console.setFloat("repeat_action_probability", 0.0)
    console.loadROM(game.name)
    generator = np.random.default_rng(0)
    most_lives, most_edges, picture = console.lives(), -1, None
    for frame in range(1, N_FRAMES + 1):
        if frame % HOLD == 1:
            action = game.minimal_actions[generator.integers(len(game.minimal_actions))]
        if console.game_over():
            console.reset_game()
        console.act(action)
        most_lives = max(most_lives, console.lives())
        if frame >= FIRST_FRAME and frame % PICTURE_EVERY == 0:
            n_edges = count_edges(console.getScreen())
            if n_edges > most_edges:
                most_edges, picture = n_edges, console.getScreenRGB()
    assert picture is not None
    return Look(picture, most_lives > 1)


def count_edges(screen: np.ndarray) -> int:
    """Returns how many neighbours, [height, width] uint8, differ: little where little is seen.

    Example:
        >>> count_edges(np.array([[1, 1], [1, 2]]))
        2
    """
    return sum(int(np.count_nonzero(np.diff(screen, axis=axis))) for axis in (0, 1))


def games_page(looks: dict[str, Look]) -> str:
    """Returns the page with the table of the games."""
    head = ("Game", "Cartridge", "Television", "Screen", "Actions", "Modes", "Difficulties")
    rows = [
        (
            f"`{game.name}`",
            game.cart,
            "PAL" if game.pal else "NTSC",
            f"{game.height} x 160",
            str(len(game.minimal_actions)),
            numbers(game.modes),
            numbers(game.difficulties),
            "yes" if looks[game.name].has_lives else "no",
        )
        for game in GAMES.values()
    ]
    pong, n_pal = GAMES["pong"], sum(game.pal for game in GAMES.values())
    printed = (
        f"{pong.cart} {pong.pal} {pong.height} {len(pong.minimal_actions)} {pong.difficulties}\n"
        f"{n_pal} of {len(GAMES)} games are for PAL"
    )
    return GAMES_HEAD.format(
        n_frames=N_FRAMES, table=table((*head, "Lives"), rows), printed=printed
    )


def gallery_page() -> str:
    """Returns the page with the pictures."""
    cells = [f"![The screen of {name}](gallery/{name}.png)<br>`{name}`" for name in GAMES]
    cells += [""] * (-len(cells) % N_COLUMNS)
    rows = [cells[start : start + N_COLUMNS] for start in range(0, len(cells), N_COLUMNS)]
    return GALLERY_HEAD.format(
        n_frames=N_FRAMES,
        every=PICTURE_EVERY,
        first=FIRST_FRAME,
        table=table([""] * N_COLUMNS, rows),
        printed=(GAMES["breakout"].height, 160, 3),
    )


def numbers(values: Iterable[int]) -> str:
    """Returns ascending numbers as text, short where they are evenly spaced or many.

    Example:
        >>> numbers([0, 1, 2, 3, 128]), numbers([0, 4, 8, 12]), numbers([22, 86])
        ('0 to 3, 128', '0 to 12 by 4', '22, 86')
    """
    values = list(values)
    parts = list(_parts(values))
    if len(parts) > MOST_PARTS:
        return f"{len(values)} from {values[0]} to {values[-1]}"
    return ", ".join(parts)


def _parts(values: list[int]) -> Iterator[str]:
    # Three numbers or more with one distance are written as a range.
    while values:
        n = len(values)
        while n > 2 and values[:n] != list(
            range(values[0], values[n - 1] + 1, values[1] - values[0])
        ):
            n -= 1
        if n > 2:
            by = values[1] - values[0]
            yield f"{values[0]} to {values[n - 1]}" + (f" by {by}" if by > 1 else "")
        else:
            n = 1
            yield str(values[0])
        values = values[n:]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(config: Config) -> None:
    """Writes the pages and the pictures.

    Raises:
        ValueError: There is no such game.
    """
    unknown = sorted(set(config.games) - GAMES.keys())
    if unknown:
        raise ValueError(f"games: expected names in GAMES, got {', '.join(unknown)}")
    looks = {name: look_at(game) for name, game in GAMES.items()}
    folder = config.docs / "gallery"
    folder.mkdir(exist_ok=True)
    for name in config.games or GAMES:
        palette_image(looks[name].picture).save(folder / f"{name}.png", optimize=True)
    (config.docs / "atari_games.md").write_text(games_page(looks))
    (config.docs / "atari_gallery.md").write_text(gallery_page())
    n_bytes = sum(path.stat().st_size for path in folder.glob("*.png"))
    print(
        f"{config.docs}: 2 pages, {len(config.games or GAMES)} pictures; all take {n_bytes} bytes"
    )


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
