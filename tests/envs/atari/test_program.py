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
    ("code", "is_left"),
    [
        *((read, True) for read in ("24 07", "a4 0c", "a5 7f", "a6 0c", "b5 00", "b6 00", "e6 02")),
        *((store, False) for store in ("84 02", "85 02", "86 02", "94 02", "95 02", "96 02")),
        *((in_ram, False) for in_ram in ("24 80", "a5 80", "b5 80", "c6 ff")),
        *((elsewhere, True) for elsewhere in ("ad 84 02", "8d 96 02", "ad 80 00", "b9 00 00")),
        *((in_rom, False) for in_rom in ("ad 00 f1", "bd 00 10", "a9 02", "0a", "68", "28")),
        *((push, True) for push in ("08", "48")),
        *((wait, True) for wait in ("ad 84 02 d0 fb", "ad 84 02 10 fb")),
        *((branch, False) for branch in ("ad 84 02 f0 fb", "ad 84 02 d0 fa")),
    ],
)
def test_what_is_left_to_the_interpreter(code: str, is_left: bool) -> None:
    """Or may be: what reads the TIA or a timer, waits for one, or pushes onto what may be a TIA."""
    text = program_macros(rom_of(code + " ea 4c 00 f0"), "4K")["PROGRAM"]
    at = len(bytes.fromhex(code))
    assert (f"RLB_ENTRY({at:x},f00{at:x})" in text) is is_left


@pytest.mark.parametrize(
    ("behind", "is_code"), [("a9 01 85 80 60", True), ("a9 01 02 60", False), ("a9 01 00", False)]
)
@pytest.mark.parametrize("jump", ["4c 00 f0", "ea ea 60"])
def test_code_behind_a_jump(jump: str, behind: str, is_code: bool) -> None:
    text = program_macros(rom_of(jump + behind), "4K")["PROGRAM"]
    assert ("RLB_ENTRY(3,f003)" in text) is is_code


def test_code_at_another_of_its_addresses_is_left_to_the_interpreter() -> None:
    # F000 BNE F005; JMP D005; F005 NOP; JMP F000
    text = program_macros(rom_of("d0 03 4c 05 d0 ea 4c 00 f0"), "4K")["PROGRAM"]
    assert "RLB_JUMP(d005) RLB_GOTO(5)" in text
    assert "RLB_BRANCH(d0,3,1) RLB_GO(f005)" in text


def test_a_bank_goes_on_behind_the_access_that_switches_to_it() -> None:
    banks = rom_of("2c f9 ff 00"), rom_of("ea ea ea a9 01 00", origin=0xD000)
    text = program_macros(b"".join(banks), "F8")["PROGRAM"]
    assert "RLB_ENTRY(1003,f003)" in text
    assert "RLB_ENTRY(3,f003)" in text  # It may have been there already.
    assert "RLB_STEP(f003,a9,1,2)" in text


def test_code_in_another_part_is_entered() -> None:
    # F000 JMP F200; F200 LDA #1; JMP F000
    code = bytes.fromhex("4c 00 f2").ljust(0x200, b"\xff") + bytes.fromhex("a9 01 4c 00 f0")
    text = program_macros(rom_of(code.hex()), "4K")["PROGRAM"]
    assert "RLB_JUMP(f200) RLB_GO(f200)" in text
    assert "RLB_ENTRY(200,f200)" in text


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
