"""What is known of a program when its kernels are compiled.

That it runs as it should is tested with the kernels, in `test_device.py`.
"""

from __future__ import annotations

import pytest

from rlbatch.envs.atari import GAMES
from rlbatch.envs.atari.program import PROGRAM_CARTS, program_macros
from rlbatch.envs.atari.roms import read_rom


def rom_of(code: str, origin: int = 0xF000) -> bytes:
    """A cartridge of 4 KiB with code from its beginning on."""
    vectors = origin.to_bytes(2, "little") * 2
    return bytes.fromhex(code).ljust(0xFFC, b"\xff") + vectors


def test_blocks_begin_where_something_leads_to() -> None:
    # F000 LDX #3; DEX; BNE F002; JSR F009; BRK; F009 STA 85; RTS
    macros = program_macros(rom_of("a2 03 ca d0 fd 20 09 f0 00 85 85 60"), "4K")
    assert macros["PARTS"] == "RLB_CASE(0)"
    assert macros["PROGRAM"] == (
        "RLB_PART(0,RLB_ENTRY(0,f000) RLB_ENTRY(8,f008),"
        "RLB_BLOCK(0,f000,1) RLB_STEP(f000,a2,3,1) RLB_GOTO(2) "
        "RLB_BLOCK(2,f002,2) RLB_STEP(f002,ca,0,2) RLB_BRANCH(d0,fd,1) RLB_GOTO(2) RLB_GOTO(5) "
        "RLB_BLOCK(5,f005,1) RLB_CALL(f005,f008,f009,1) RLB_GOTO(9) "
        "RLB_BLOCK(8,f008,1) RLB_LEAVE(f008,1) "
        "RLB_BLOCK(9,f009,2) RLB_STEP(f009,85,85,2) RLB_RETURN(f00b,1))"
    )


def test_the_interpreter_comes_back_behind_what_is_left_to_it() -> None:
    # F000 LDA INTIM; BNE F000; LDA CXM0P; STA WSYNC; JMP F000
    text = program_macros(rom_of("ad 84 02 d0 fb a5 30 85 02 4c 00 f0"), "4K")["PROGRAM"]
    assert "RLB_ENTRY(5,f005)" in text
    assert "RLB_ENTRY(7,f007)" in text
    assert "RLB_LEAVE(f003,1)" in text  # It may leave out turns of the loop.


@pytest.mark.parametrize(
    ("behind", "is_code"), [("a9 01 85 80 60", True), ("a9 01 02 60", False), ("a9 01 00", False)]
)
def test_code_behind_a_jump(behind: str, is_code: bool) -> None:
    text = program_macros(rom_of("4c 00 f0" + behind), "4K")["PROGRAM"]
    assert ("RLB_ENTRY(3,f003)" in text) is is_code


def test_a_bank_goes_on_behind_the_access_that_switches_to_it() -> None:
    banks = rom_of("2c f9 ff 00"), rom_of("ea ea ea a9 01 00", origin=0xD000)
    text = program_macros(b"".join(banks), "F8")["PROGRAM"]
    assert "RLB_ENTRY(1003,f003)" in text
    assert "RLB_STEP(f003,a9,1,2)" in text


def test_programs_are_found() -> None:
    """Of the games for which they are compiled most of the ROM is code."""
    games = [game for game in GAMES.values() if game.reset_depends_on == "play"]
    games = [game for game in games if game.cart in PROGRAM_CARTS]
    assert [game.name for game in games] == ["haunted_house", "sir_lancelot", "space_war"]
    for game in games:
        text = program_macros(read_rom(game), game.cart)["PROGRAM"]
        assert text.count("RLB_STEP") > game.size / 6


def test_a_branch_to_another_page_takes_a_cycle_more() -> None:
    code = bytes.fromhex("4c fc f0").ljust(0xFC, b"\xea") + bytes.fromhex("d0 02 d0 fe ea 60")
    text = program_macros(rom_of(code.hex()), "4K")["PROGRAM"]
    assert "RLB_BRANCH(d0,2,2)" in text
    assert "RLB_BRANCH(d0,fe,2)" in text
