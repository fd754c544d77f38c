"""The 104 Atari games: which file each one is, how its screen lies, what an agent may choose.

The table holds data alone. The rules of the games (reward, lives, end of an episode) are in
`native/games.h`, in the order of `GAMES`.

Source: the ROMs and behaviour of ale-py 0.12.1.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

# fmt: off
# In ALE's order: an action's number is its place here. The native code also knows 40, RESET.
ACTIONS = (
    "NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT",
    "UPFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE", "UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE",
    "DOWNLEFTFIRE",
)
# fmt: on

# Of every console.
SCREEN_WIDTH, RAM_BYTES = 160, 128
# What ALE has where nobody sets another one: what is random in the console itself; and the largest
# resistance of a paddle, in ohms.
SYSTEM_SEED, PADDLE_MAX = 4753849, 790196

# How cartridges switch banks, in the order of `cart` in the configuration of a console.
CARTS = ("2K", "4K", "F8", "F8SC", "F6", "F6SC", "E0", "FE", "DPC")
_ROM_BYTES = {"2K": 2048, "4K": 4096, "E0": 8192, "FE": 8192, "F8": 8192, "F8SC": 8192}
_ROM_BYTES |= {"F6": 16384, "F6SC": 16384, "DPC": 10495}

_TWO_PLAYER = ("combat", "joust", "maze_craze", "warlords")


@dataclass(frozen=True)
class Game:
    """What has to be known of one game to load and to start it.

    Attributes:
        name: ALE's name, which is also the stem of the ROM's file.
        md5: Digest of the ROM, 32 hexadecimal digits.
        cart: How the cartridge switches banks: 2K, 4K, F8, F8SC, F6, F6SC, E0, FE or DPC.
        minimal_actions: Numbers of the actions that have an effect, ascending; see `ACTIONS`.
        modes: The game's modes; the first is the default.
        difficulties: Settings of the two difficulty switches, bit 0 left and bit 1 right. An
            episode starts with 0 also where 0 is not listed.
        pal: Whether the game was made for PAL television: other colours, more lines.
        ystart: First line of the television picture that is on the screen.
        height: Lines on the screen; each has 160 pixels.
        hmove_blanks: Whether a horizontal move blanks the left 8 pixels of its line.
        paddles: Whether the left port holds paddles rather than a joystick.
        swap_ports: Whether the player's stick is in the right port.
        swap_paddles: Whether the two paddles of a port change places.
        n_legal_actions: 18, or 9 where those with FIRE are left out.
        paddle_max: Largest resistance of a paddle, in ohms.
        reset_depends_on: What the state after a reset depends on: "nothing", the "timer", which
            begins at random, or also what was played before, "play".
        left_by_reset: Addresses of bytes of RAM that a reset leaves as they are, or to which it
            adds a constant, and which change nothing else, except for bits of `reset_key`; at most
            31.
        reset_key: Addresses of bytes of RAM, and masks of their bits, that the state after a
            reset depends on as well; at most three, and four bits.
        reset_needs: Addresses of bytes of RAM, masks, and the first and the last of the values
            that the masked bits may have for all this to be true; 0 follows 255. At most three.
        reset_acts: For how many frames without an action after a reset all this is true, at least.
        runs_ram: Whether it executes more than a few instructions per frame in RAM.
        detection_difficulty: Setting of the difficulty switches while a newly loaded ROM is
            tested for PAL.
        mode: Which of `modes` is played; -1 becomes the first.
        difficulty: Setting of the difficulty switches that is played.
    """

    name: str
    md5: str
    cart: str
    minimal_actions: tuple[int, ...] = tuple(range(18))
    modes: tuple[int, ...] = (0,)
    difficulties: tuple[int, ...] = (0,)
    pal: bool = False
    ystart: int = 34
    height: int = 210
    hmove_blanks: bool = True
    paddles: bool = False
    swap_ports: bool = False
    swap_paddles: bool = False
    n_legal_actions: int = 18
    paddle_max: int = PADDLE_MAX
    reset_depends_on: Literal["nothing", "timer", "play"] = "nothing"
    left_by_reset: tuple[int, ...] = ()
    reset_key: tuple[tuple[int, int], ...] = ()
    reset_needs: tuple[tuple[int, int, int, int], ...] = ()
    reset_acts: int = 29
    runs_ram: bool = False
    detection_difficulty: int = 0
    mode: int = -1
    difficulty: int = 0

    def __post_init__(self) -> None:
        if self.mode == -1:
            object.__setattr__(self, "mode", self.modes[0])

    @property
    def size(self) -> int:
        """Bytes of the ROM."""
        return _ROM_BYTES[self.cart]

    @property
    def frames_per_second(self) -> int:
        """Of its television."""
        return 50 if self.pal else 60

    @property
    def rule(self) -> int:
        """Number of the game in alphabetical order: `Rule` in `native/rule.h`."""
        return list(GAMES).index(self.name)

    @property
    def is_default(self) -> bool:
        """Whether it is played in its default mode and difficulty."""
        return self.mode == self.modes[0] and self.difficulty == 0

    @property
    def legal_actions(self) -> tuple[int, ...]:
        """Numbers of the actions that the game accepts."""
        return tuple(range(18)) if self.n_legal_actions == 18 else (0, 2, 3, 4, 5, 6, 7, 8, 9)


# fmt: off
_GAMES = (
    Game("adventure", "4b27f5397c442d25f0c418ccdacf1926", "4K", modes=(0, 1, 2),
         difficulties=(0, 1, 2, 3), pal=True, height=250),
    Game("air_raid", "35be55426c1fec32dfb503b4f0651572", "4K", minimal_actions=(0, 1, 3, 4, 11, 12),
         modes=tuple(range(1, 9)), pal=True, height=250),
    Game("alien", "f1a0a23e6464d954e3a9579c4ccd01c8", "4K", modes=tuple(range(4)),
         difficulties=(0, 1, 2, 3)),
    Game("amidar", "acb7750b4d0c4bd34969802a7deb2990", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 10, 11, 12, 13), difficulties=(0, 3),
         detection_difficulty=3),
    Game("assault", "de78b3a064d374390ac0710f95edde92", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 11, 12), reset_depends_on="timer"),
    Game("asterix", "89a68746eff7f266bbf08de2483abe55", "F8",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9)),
    Game("asteroids", "ccbd36746ed4525821a8083b0d6d2c2c", "F8",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15), modes=(*range(32), 128),
         difficulties=(0, 3), hmove_blanks=False),
    Game("atlantis", "9ad36e699ef6f45d9eb6c4cf90475c9f", "4K", minimal_actions=(0, 1, 11, 12),
         modes=tuple(range(4))),
    Game("atlantis2", "826481f6fc53ea47c9f272f7050eedf7", "4K", minimal_actions=(0, 1, 11, 12)),
    Game("backgammon", "8556b42aa05f94bc29ff39c39b11bff4", "4K", minimal_actions=(1, 3, 4),
         difficulties=(3,), paddles=True, paddle_max=1_000_000, reset_depends_on="timer"),
    Game("bank_heist", "00ce0bdd43aed84a983bef38fe7f5ee3", "4K", modes=tuple(range(0, 32, 4)),
         difficulties=(0, 1, 2, 3)),
    Game("basic_math", "819aeeb9a2e11deb54e6de334f843894", "2K", minimal_actions=(0, 1, 2, 3, 4, 5),
         modes=tuple(range(5, 9)), difficulties=(0, 2, 3)),
    Game("battle_zone", "41f252a66c6301f1e8ab3612c19bc5d4", "F8", modes=(1, 2, 3),
         hmove_blanks=False),
    Game("beam_rider", "79ab4123a83dc11d468fb2108ea09e2e", "F8",
         minimal_actions=(0, 1, 2, 3, 4, 6, 7, 11, 12), difficulties=(0, 1),
         reset_depends_on="timer"),
    Game("berzerk", "136f75c4dd02c29283752b7e5799f978", "4K", modes=(*range(1, 10), 16, 17, 18),
         reset_depends_on="timer"),
    Game("blackjack", "0a981c03204ac2b278ba392674682560", "2K", minimal_actions=(0, 1, 2, 5),
         difficulties=(0, 1, 2, 3), paddles=True, paddle_max=795_000),
    Game("bowling", "c9b7afad3bfd922e006a6bfc1d4f3fe7", "2K", minimal_actions=(0, 1, 2, 5, 10, 13),
         modes=(0, 2, 4), difficulties=(0, 1)),
    Game("boxing", "c3ef5c4653212088eda54dc91d787870", "2K", difficulties=(0, 1, 2, 3),
         reset_depends_on="timer"),
    Game("breakout", "f34f08e5eb96e500e851a80be3277a56", "2K", minimal_actions=(0, 1, 3, 4),
         modes=tuple(range(0, 48, 4)), difficulties=(0, 1), paddles=True),
    Game("carnival", "028024fb8e5e5f18ea586652f9799c96", "4K", minimal_actions=(0, 1, 3, 4, 11, 12),
         ystart=26, height=214),
    Game("casino", "b816296311019ab69a21cb9e9e235d12", "4K", minimal_actions=(0, 1, 2, 5),
         modes=(0, 2, 3), difficulties=(0, 1, 2, 3), paddles=True),
    Game("centipede", "91c2098e88a6b13f977af8c003e0bca5", "F8", modes=(22, 86)),
    Game("chopper_command", "c1cb228470a87beb5f36e90ac745da26", "4K", modes=(0, 2),
         difficulties=(0, 1), reset_depends_on="timer"),
    Game("crazy_climber", "55ef7b65066428367844342ed59f956c", "F8",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9), modes=tuple(range(4)), difficulties=(0, 1)),
    Game("crossbow", "8cd26dcf249456fe4aeb8db42d49df74", "F6", modes=(0, 2, 4, 6),
         difficulties=(0, 1), left_by_reset=(0xEA,)),
    Game("darkchambers", "106855474c69d08c8ffa308d47337269", "F6SC", hmove_blanks=False,
         runs_ram=True),
    Game("defender", "0f643c34e40e3f1daafd9c524d3ffe64", "4K", modes=(*range(1, 10), 16),
         difficulties=(0, 1)),
    Game("demon_attack", "f0e0addc07971561ab80d9abe1b8d333", "4K",
         minimal_actions=(0, 1, 3, 4, 11, 12), modes=(1, 3, 5, 7), difficulties=(0, 1),
         reset_depends_on="timer"),
    Game("donkey_kong", "36b20c427975760cb9cf4a47e41369e4", "4K"),
    Game("double_dunk", "368d88a6c071caba60b4f778615aae94", "F6", modes=tuple(range(16))),
    Game("earthworld", "5aea9974b975a6a844e6df10d2b861c4", "F8"),
    Game("elevator_action", "71f8bacfbdca019113f3f0801849057e", "F8SC",
         reset_depends_on="play"),
    Game("enduro", "94b92a882f6dbaa6993a46e2dcc58402", "4K",
         minimal_actions=(0, 1, 3, 4, 5, 8, 9, 11, 12)),
    Game("entombed", "6b683be69f92958abe0e2a9945157ad5", "4K", difficulties=(0, 2),
         left_by_reset=(0xF7, 0xF8, 0xF9)),
    Game("et", "615a3bf251a38eb6638cdc7ffbde5480", "F8", modes=(0, 1, 2),
         difficulties=(0, 1, 2, 3)),
    Game("fishing_derby", "b8865f05676e64f3bec72b9defdacfa7", "2K", difficulties=(0, 1, 2, 3),
         reset_depends_on="timer"),
    Game("flag_capture", "30512e0e83903fc05541d2f6a6a62654", "2K", modes=(8, 9, 10)),
    Game("freeway", "8e0ab801b1705a740b476b7f588c6d16", "2K", minimal_actions=(0, 2, 5),
         modes=tuple(range(8)), difficulties=(0, 1), reset_depends_on="timer"),
    Game("frogger", "081e2c114c9c20b61acf25fc95c71bf4", "4K", minimal_actions=(0, 2, 3, 4, 5),
         modes=(0, 1, 2), difficulties=(0, 1)),
    Game("frostbite", "4ca73eb959299471788f0b685c3ba0b5", "4K", modes=(0, 2),
         reset_depends_on="timer"),
    Game("galaxian", "211774f4c5739042618be8ff67351177", "F8", minimal_actions=(0, 1, 3, 4, 11, 12),
         modes=tuple(range(1, 10)), difficulties=(0, 1)),
    Game("gopher", "c16c79aad6272baffb8aae9a7fff0864", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 10, 11, 12), modes=(0, 2), difficulties=(0, 1)),
    Game("gravitar", "8ac18076d01a6b63acf6e2cab4968940", "F8", modes=tuple(range(5))),
    Game("hangman", "f16c709df0a6c52f47ff52b9d95b7d8d", "4K", modes=tuple(range(4)),
         difficulties=(0, 1), reset_depends_on="timer", left_by_reset=(0xFF,),
         reset_key=((0xFF, 0x01),), reset_needs=((0xEE, 0xFF, 0, 0),)),
    Game("haunted_house", "f0a6e99f5875891246c3dbecbf2d2cea", "4K", modes=tuple(range(9)),
         difficulties=(0, 1), reset_depends_on="play"),
    Game("hero", "fca4a5be1251927027f2c24774a02160", "F8", modes=tuple(range(5)),
         reset_depends_on="timer"),
    Game("human_cannonball", "7972e5101fa548b952d852db24ad6060", "2K", modes=tuple(range(8)),
         difficulties=(0, 1)),
    Game("ice_hockey", "a4c08c4994eb9d24fb78be1793e82e26", "4K", modes=(0, 2),
         difficulties=(0, 1, 2, 3), reset_depends_on="timer",
         left_by_reset=(0xEE, 0xF3, 0xF4, 0xF5, 0xF6, 0xFA, 0xFB, 0xFC, 0xFD),
         reset_needs=((0xE6, 0xFF, 0, 3), (0xE7, 0xFF, 0, 4), (0xE9, 0xFF, 0xB0, 0x7F))),
    Game("jamesbond", "e51030251e440cffaab1ac63438b44ae", "E0", modes=(0, 1)),
    Game("journey_escape", "718ae62c70af4e5fd8e932fee216948a", "4K",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17),
         difficulties=(0, 1), height=230),
    Game("kaboom", "5428cdfada281c569c74c7308c7f2c26", "2K", minimal_actions=(0, 1, 3, 4),
         paddles=True, reset_depends_on="timer"),
    Game("kangaroo", "4326edb70ff20d0ee5ba58fa5cb09d60", "F8", modes=(0, 1)),
    Game("keystone_kapers", "6c1f3f2e359dbf55df462ccbcdd2f6bf", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), pal=True, height=250),
    Game("king_kong", "0dd4c69b5f9a7ae96a7a08329496779a", "4K", minimal_actions=(0, 1, 2, 3, 4, 5),
         modes=tuple(range(4)), pal=True, height=250),
    Game("klax", "eed9eaf1a0b6a2b9bc4c8032cb43e3fb", "F6SC", modes=(0, 1, 2), pal=True, height=250),
    Game("koolaid", "534e23210dd1993c828d944c6ac4d9fb", "4K",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9)),
    Game("krull", "4baada22435320d185c95b7dd2bcdb24", "F8", reset_depends_on="timer"),
    Game("kung_fu_master", "5b92a93b23523ff16e2789b820e2a4c5", "F8",
         minimal_actions=(0, 2, 3, 4, 5, 8, 9, 11, 12, 13, 14, 15, 16, 17),
         left_by_reset=(0xD1, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xE1, 0xFB),
         reset_key=((0xDA, 0x0A), (0xDC, 0x08), (0xDE, 0x80)), reset_needs=((0xDE, 0x04, 0, 0),)),
    Game("laser_gates", "8e4cd60d93fcde8065c1a2b972a26377", "4K", pal=True, height=250),
    Game("lost_luggage", "2d76c5d1aad506442b9e9fb67765e051", "4K",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9), modes=(0, 1), difficulties=(0, 1),
         n_legal_actions=9),
    Game("mario_bros", "e908611d99890733be31733a979c62d8", "F8", modes=(0, 2, 4, 6)),
    Game("miniature_golf", "df62a658496ac98a3aa4a6ee5719c251", "2K", difficulties=(0, 1),
         reset_depends_on="timer"),
    Game("montezuma_revenge", "3347a6dd59049b15a38394aa2dafa585", "E0"),
    Game("mr_do", "aa7bb54d2c189a31bb1fa20099e42859", "F8",
         minimal_actions=(0, 1, 2, 3, 4, 5, 10, 11, 12, 13), modes=tuple(range(4)), pal=True,
         height=250),
    Game("ms_pacman", "87e79cd41ce136fd4f72cc6e2c161bee", "F8",
         minimal_actions=(0, 2, 3, 4, 5, 6, 7, 8, 9), modes=tuple(range(4)), hmove_blanks=False),
    Game("name_this_game", "36306070f0c90a72461551a7a4f3a209", "4K",
         minimal_actions=(0, 1, 3, 4, 11, 12), modes=(8, 24, 40), difficulties=(0, 1)),
    Game("othello", "113cd09c9771ac278544b7e90efe7df2", "2K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), modes=(0, 1, 2), difficulties=(0, 2)),
    Game("pacman", "fc2233fc116faef0d3c31541717ca2db", "4K", minimal_actions=(0, 2, 3, 4, 5),
         modes=tuple(range(8)), difficulties=(0, 1), pal=True, height=250),
    Game("phoenix", "7e52a95074a66640fcfde124fffd491a", "F8",
         minimal_actions=(0, 1, 3, 4, 5, 11, 12, 13)),
    Game("pitfall", "3e90cf23106f2e08b2781e41299de556", "4K"),
    Game("pitfall2", "6d842c96d5a01967be9680080dd5be54", "DPC", reset_depends_on="timer"),
    Game("pong", "60e0ea3cbe0913d39803477945e9e5ec", "2K", minimal_actions=(0, 1, 3, 4, 11, 12),
         modes=(0, 1), difficulties=(0, 1, 2, 3), paddles=True, swap_paddles=True),
    Game("pooyan", "4799a40b6e889370b7ee55c17ba65141", "4K", minimal_actions=(0, 1, 2, 5, 10, 13),
         modes=(10, 30, 50, 70), ystart=26, height=220, left_by_reset=(0xFA, 0xFB)),
    Game("private_eye", "ef3a4f64b6494ba770862768caf04b86", "F8", modes=tuple(range(5)),
         difficulties=(0, 1, 2, 3), reset_depends_on="timer"),
    Game("qbert", "484b0076816a104875e00467d431c2d2", "4K", minimal_actions=(0, 1, 2, 3, 4, 5),
         difficulties=(0, 1), ystart=40),
    Game("riverraid", "393948436d1f4cc3192410bb918f9724", "4K", difficulties=(0, 1)),
    Game("road_runner", "ce5cc62608be2cd3ed8abd844efb8919", "F6"),
    Game("robotank", "4f618c2429138e0280969193ed6c107e", "FE"),
    Game("seaquest", "240bfbac5163af4df5ae713985386f92", "4K", difficulties=(0, 1),
         reset_depends_on="timer", left_by_reset=(0xFB,)),
    Game("sir_lancelot", "dd0cbe5351551a538414fb9e37fc56e8", "F8",
         minimal_actions=(0, 1, 3, 4, 11, 12), pal=True, height=250, reset_depends_on="play"),
    Game("skiing", "b76fbadc8ffb1f83e2ca08b6fb4d6c9f", "2K", minimal_actions=(0, 3, 4),
         n_legal_actions=9),
    Game("solaris", "e72eb8d4410152bdcb69e7fba327b420", "F6", reset_depends_on="timer"),
    Game("space_invaders", "72ffbef6504b75e69ee1045af9075f66", "4K",
         minimal_actions=(0, 1, 3, 4, 11, 12), modes=tuple(range(16)), difficulties=(0, 1)),
    Game("space_war", "b702641d698c60bcdc922dbd8c9dd49c", "2K", modes=tuple(range(6, 18)), pal=True,
         height=250, reset_depends_on="play"),
    Game("star_gunner", "a3c1c70024d7aabb41381adbfb6d3b25", "4K", modes=tuple(range(4))),
    Game("superman", "a9531c763077464307086ec9a1fd057d", "4K", difficulties=(0, 1, 2, 3)),
    Game("surround", "4d7517ae69f95cfbc053be01312b7dba", "2K", minimal_actions=(0, 2, 3, 4, 5),
         modes=(0, 2), difficulties=(0, 1, 2, 3), swap_ports=True, reset_depends_on="timer",
         left_by_reset=(0xE6, 0xE9, 0xEA, 0xEB, 0xFD), reset_acts=12),
    Game("tennis", "42cdd6a9e42a3639e190722b8ea3fc51", "2K", modes=(0, 2),
         difficulties=(0, 1, 2, 3), reset_depends_on="timer"),
    Game("tetris", "b0e1ee07fbc73493eac5651a52f90f00", "2K", minimal_actions=(0, 1, 3, 4, 5)),
    Game("tic_tac_toe_3d", "0db4f4150fecf77e4ce72ca4d04c052f", "2K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), modes=tuple(range(9)),
         difficulties=(0, 2)),
    Game("time_pilot", "fc2104dd2dadf9a6176c1c1c8f87ced9", "F8",
         minimal_actions=(0, 1, 2, 3, 4, 5, 10, 11, 12, 13), difficulties=(0, 1, 2),
         reset_needs=((0x80, 0xFF, 2, 2),)),
    Game("trondead", "fb27afe896e7c928089307b32e5642ee", "4K", difficulties=(0, 1)),
    Game("turmoil", "7a5463545dfb2dcfdafa6074b2f2c15e", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12), modes=tuple(range(9))),
    Game("tutankham", "085322bae40d904f53bdcc56df0593fc", "E0",
         minimal_actions=(0, 2, 3, 4, 5, 10, 11, 12), modes=(0, 4, 8, 12)),
    Game("up_n_down", "a499d720e7ee35c62424de882a3351b6", "F8",
         minimal_actions=(0, 1, 2, 5, 10, 13), difficulties=(0, 1, 2, 3), ystart=30,
         runs_ram=True),
    Game("venture", "3e899eba0ca8cd2972da1ae5479b4f0d", "4K", difficulties=(0, 1, 2, 3),
         left_by_reset=(0xFB, 0xFC, 0xFD)),
    Game("video_checkers", "539d26b6e9df0da8e7465f0f5ad863b7", "4K",
         minimal_actions=(1, 6, 7, 8, 9), modes=(*range(1, 10), *range(11, 20))),
    Game("video_chess", "f0b7db930ca0e548c41a97160b9f6275", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), modes=tuple(range(5))),
    Game("video_cube", "3f540a30fdee0b20aed7288e4a5ea528", "4K",
         modes=tuple(100 * cube + kind for cube in range(51) for kind in range(3)),
         difficulties=(0, 1)),
    Game("video_pinball", "107cc025334211e6d29da0b6be46aec7", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 10, 11, 12), modes=(0, 2), difficulties=(0, 1)),
    Game("wizard_of_wor", "7e8aa18bc9502eb57daaf5e7c1e94da7", "4K",
         minimal_actions=(0, 1, 2, 3, 4, 5, 10, 11, 12, 13), difficulties=(0, 1), swap_ports=True),
    Game("word_zapper", "ec3beb6d8b5689e867bafb5d5f507491", "4K", modes=tuple(range(24)),
         difficulties=(0, 1, 2, 3)),
    Game("yars_revenge", "c5930d0e8cdae3e037349bfa08e871be", "4K", modes=(0, 32, 64, 96),
         difficulties=(0, 1),
         left_by_reset=(0x9B, 0x9C, 0xA1, 0xA2, 0xA6, 0xAF, 0xB0, 0xB1, 0xB3, 0xB6,
                        *range(0xB8, 0xBD), *range(0xC9, 0xD9)),
         reset_key=((0x95, 0x08),), reset_needs=((0x95, 0x01, 0, 0),), reset_acts=0),
    Game("zaxxon", "eea0da9b987d661264cce69a7c13c3bd", "F8", modes=(0, 8, 16, 24)),
)
# fmt: on

GAMES: dict[str, Game] = {game.name: game for game in _GAMES}


def find_game(name: str) -> Game:
    """Returns the game of that name.

    Case and underscores do not matter, nor does what Gymnasium puts around a name: a namespace
    in front, a version and the kind of environment behind. But for `-ram`: what is observed is an
    option of the environment.

    Args:
        name: Such as `ms_pacman`, `MsPacman`, `ALE/MsPacman-v5` or `MsPacmanNoFrameskip-v4`.

    Raises:
        TypeError: It is not a string.
        ValueError: There is no such game, or none for a single player; or it is an environment
            that observes the RAM.

    Example:
        >>> find_game("ALE/TicTacToe3D-v5").name
        'tic_tac_toe_3d'
    """
    if not isinstance(name, str):
        raise TypeError(f"game: expected a name, got {name!r}")
    by_key = {_key(game): game for game in GAMES}
    stem = name.rpartition("/")[2]
    stem = re.sub(r"(Deterministic|NoFrameskip)?(-v\d+)?$", "", stem)
    if stem.endswith("-ram"):
        raise ValueError(
            f"game: expected a name without -ram, got {name!r}; for the RAM use obs_type='ram'"
        )
    key = _key(stem)
    if key in by_key:
        return GAMES[by_key[key]]
    if key in map(_key, _TWO_PLAYER):
        raise ValueError(
            f"game: expected one with rules for a single player, got {name!r}; "
            f"there are none for {', '.join(_TWO_PLAYER)}"
        )
    close = difflib.get_close_matches(key, by_key, n=3, cutoff=0.5)
    closest = f"; closest: {', '.join(by_key[one] for one in close)}" if close else ""
    raise ValueError(f"game: expected one of the {len(GAMES)} in GAMES, got {name!r}{closest}")


def _key(name: str) -> str:
    return name.replace("_", "").lower()
