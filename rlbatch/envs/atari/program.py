"""The program of a cartridge as instructions that are known when its kernels are compiled.

They are found as a processor would come to them: from the reset vector of every bank on, along
branches, jumps and calls, and behind accesses that switch banks; and behind jumps, where there is
what looks like code. What is not found is interpreted. The result is text for the macros of
`native/program.h`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# With one window of 4 KiB, all of it ROM. Larger ones are too long for a compiler's command line.
PROGRAM_CARTS = ("2K", "4K", "F8")

_BANK = 4096
# Bytes of a documented instruction, by the lower half of its opcode, where all have as many.
# Source: MCS6500 programming manual (MOS Technology, 1976), appendix B.
_LENGTHS = {0x1: 2, 0x4: 2, 0x5: 2, 0x6: 2, 0x8: 1, 0xA: 1, 0xC: 3, 0xD: 3, 0xE: 3}
_UNDOCUMENTED = frozenset(
    bytes.fromhex("04 0c 14 1a 1c 34 3a 3c 44 54 5a 5c 64 74 7a 7c 80 82 89 9c 9e")
    + bytes.fromhex("c2 d4 da dc e2 f4 fa fc")
)
_JSR, _JMP, _JMP_INDIRECT, _RTS, _RTI, _BRK = 0x20, 0x4C, 0x6C, 0x60, 0x40, 0x00
_ENDS = (_JMP, _JMP_INDIRECT, _JSR, _RTS, _RTI, _BRK)
_PUSHES = (0x08, 0x48)  # PHP, PHA.
_WAITS = (0x10FB, 0xD0FB)  # BPL and BNE to an instruction that may read the timer.
_HOT_SPOT = 0xFF8  # Of the first bank.
_PART = 512  # `kPartBytes` in `native/program.h`.
_LAST = 0xFF0  # From here on a bank has hot-spots and vectors.


@dataclass(frozen=True)
class _Instruction:
    at: int  # Where it is in the ROM.
    pc: int
    opcode: int
    operand: int
    length: int

    @property
    def following(self) -> int:
        return self.pc + self.length

    @property
    def is_branch(self) -> bool:
        return self.opcode & 0x1F == 0x10

    @property
    def target(self) -> int | None:
        """Where it leads to, other than to what follows, if that is known."""
        if self.opcode in (_JSR, _JMP):
            return self.operand
        if self.is_branch:
            return (self.following + (self.operand ^ 0x80) - 0x80) & 0xFFFF
        return None

    @property
    def is_left(self) -> bool:
        """Whether it is left to the interpreter, or may be: it reaches neither RAM nor ROM."""
        is_wait = self.opcode << 8 | self.operand in _WAITS
        reaches_page_0 = self.length == 2 and self.opcode & 0xF in (4, 5, 6) and self.operand < 0x80
        is_store = self.opcode & 0xE0 == 0x80
        reaches_other = self.length == 3 and not self.operand & 0x1000
        pushes = self.opcode in _PUSHES  # Where a stack is in the TIA.
        return is_wait or (reaches_page_0 and not is_store) or reaches_other or pushes


def _length(opcode: int) -> int:
    """Returns the bytes of a documented instruction; 0 for others."""
    column, row = opcode & 0xF, opcode >> 4
    if opcode in _UNDOCUMENTED:
        return 0
    if opcode in (_JSR, 0xA0, 0xA2, 0xC0, 0xE0):
        return 3 if opcode == _JSR else 2
    if column == 0:
        return 2 if row & 1 else 1
    if column == 9:
        return 3 if row & 1 else 2
    return _LENGTHS.get(column, 0)


class _Program:
    def __init__(self, rom: bytes, cart: str):
        self._rom = rom * 2 if len(rom) < _BANK else rom
        self._cart = cart
        self.found: dict[int, _Instruction] = {}
        self.leaders: set[int] = set()  # Where blocks begin.
        self.entries: set[int] = set()  # Those of them to which the interpreter or a return leads.
        for bank in range(len(self._rom) // _BANK):
            reset = int.from_bytes(self._rom[bank * _BANK + 0xFFC :][:2], "little")
            self._follow(bank, reset)
            for pc in range(reset & 0xF000, reset & 0xF000 | _LAST):
                self._look_behind(bank, pc)

    def place(self, bank: int, pc: int) -> int | None:
        """Returns where in the ROM code is; None where it is none that stays as it is."""
        return bank * _BANK + (pc & 0xFFF) if pc & 0x1000 and pc & 0xFFF < _LAST else None

    def _read(self, bank: int, pc: int) -> _Instruction | None:
        at = self.place(bank, pc)
        length = 0 if at is None else _length(self._rom[at])
        if at is None or not length:
            return None
        operand = int.from_bytes(self._rom[at + 1 : at + length], "little")
        return _Instruction(at, pc, self._rom[at], operand, length)

    def _follow(self, bank: int, pc: int) -> None:
        waiting = [(bank, pc, True)]
        while waiting:
            bank, pc, is_entry = waiting.pop()
            one = self._read(bank, pc)
            if one is None:
                continue
            self.leaders.add(one.at)
            if is_entry:
                self.entries.add(one.at)
            while one is not None and one.at not in self.found:
                self.found[one.at] = one
                waiting += self._ways(bank, one)
                one = None if one.opcode in _ENDS else self._read(bank, one.following)

    def _ways(self, bank: int, one: _Instruction) -> Iterator[tuple[int, int, bool]]:
        """Yields where a block begins: its bank and address, and whether it is an entry."""
        if one.target is not None:
            yield bank, one.target, False
        if one.is_branch:
            yield bank, one.following, False
        if one.opcode == _JSR or one.is_left:
            yield bank, one.following, True
        if self._cart == "F8" and one.length == 3 and one.opcode not in _ENDS:
            chosen = (one.operand & 0xFFF) - _HOT_SPOT
            if one.operand & 0x1000 and chosen in (0, 1):
                yield chosen, one.following, True
                yield bank, one.following, True

    def _look_behind(self, bank: int, pc: int) -> None:
        """Finds what is behind a jump: code to which others come in ways that are not known.

        Or data, in which there is soon a byte that is no documented opcode; if not, nothing leads
        there.
        """
        end = self._read(bank, pc)
        if end is None or end.opcode not in (_JMP, _RTS):
            return
        one = self._read(bank, end.following)
        while one is not None and one.opcode not in _ENDS:
            one = self._read(bank, one.following)
        if one is not None and one.opcode != _BRK:
            self._follow(bank, end.following)

    def blocks(self) -> Iterator[list[_Instruction]]:
        """Yields what is executed from its first to its last instruction."""
        for leader in sorted(self.leaders & self.found.keys()):
            block = [self.found[leader]]
            while not (block[-1].is_branch or block[-1].opcode in _ENDS):
                at = self.place(leader // _BANK, block[-1].following)
                following = self.found.get(-1 if at is None else at)
                if following is None or following.pc != block[-1].following or at in self.leaders:
                    break
                block.append(following)
            yield block

    def way_to(self, pc: int, block: list[_Instruction]) -> str:
        """Returns the text that goes on at an address, from a block in the same bank."""
        at = self.place(block[0].at // _BANK, pc)
        if at not in self.found or self.found[at].pc != pc:
            return f"RLB_GO({pc:x})"
        if at // _PART == block[0].at // _PART:
            return f"RLB_GOTO({at:x})"
        self.entries.add(at)
        return f"RLB_GO({pc:x})"


def program_macros(rom: bytes, cart: str) -> dict[str, str]:
    """Returns a program as macros for `native/program.h`, by their names without RLB_.

    Args:
        rom: The ROM.
        cart: How the cartridge switches banks: one of `PROGRAM_CARTS`.
    """
    program = _Program(rom, cart)
    parts: dict[int, list[str]] = {}
    for block in program.blocks():
        text = parts.setdefault(block[0].at // _PART, [])
        text.append(f"RLB_BLOCK({block[0].at:x},{block[0].pc:x},{len(block)})")
        text += [_statement(program, block, k) for k in range(len(block))]
        if block[-1].opcode not in _ENDS:
            text.append(program.way_to(block[-1].following, block))
    entries: dict[int, list[str]] = {number: [] for number in parts}
    for at in sorted(program.entries & program.leaders & program.found.keys()):
        entries[at // _PART].append(f"RLB_ENTRY({at:x},{program.found[at].pc:x})")
    texts = (f"RLB_PART({n},{' '.join(entries[n])},{' '.join(parts[n])})" for n in parts)
    return {"PROGRAM": " ".join(texts), "PARTS": " ".join(f"RLB_CASE({n})" for n in parts)}


def _statement(program: _Program, block: list[_Instruction], k: int) -> str:
    one, to_come = block[k], len(block) - k
    pc, target = f"{one.pc:x}", one.target
    if one.opcode == _RTS:
        return f"RLB_RETURN({pc},{to_come})"
    if (one.opcode in _ENDS and target is None) or one.opcode << 8 | one.operand in _WAITS:
        return f"RLB_LEAVE({pc},{to_come})"
    if target is None:
        return f"RLB_STEP({pc},{one.opcode:x},{one.operand:x},{to_come})"
    way = program.way_to(target, block)
    if one.opcode == _JMP:
        return f"RLB_JUMP({target:x}) {way}"
    if one.opcode == _JSR:
        return f"RLB_CALL({pc},{one.following:x},{target:x},{to_come}) {way}"
    extra = 2 if (target ^ one.following) & 0xFF00 else 1
    return f"RLB_BRANCH({one.opcode:x},{one.operand:x},{extra}) {way}"
