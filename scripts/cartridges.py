"""Generated cartridges: programs that no game contains, for comparing emulators.

Each is a frame loop of random stores to the TIA and RIOT, reads into RAM and arithmetic, so that
what happened shows in the RAM and on the screen; or bytes at random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# fmt: off
# Documented opcodes whose operand may be any byte: no branches, jumps, returns or stack writes.
DOCUMENTED = (
    0x05, 0x06, 0x08, 0x09, 0x0A, 0x16, 0x18, 0x24, 0x25, 0x26, 0x28, 0x29, 0x2A, 0x38, 0x45, 0x46,
    0x48, 0x49, 0x4A, 0x65, 0x66, 0x68, 0x69, 0x6A, 0x75, 0x81, 0x84, 0x85, 0x86, 0x88, 0x8A, 0x91,
    0x95, 0x98, 0x99, 0x9D, 0xA0, 0xA1, 0xA2, 0xA4, 0xA5, 0xA6, 0xA8, 0xA9, 0xAA, 0xAD, 0xB1, 0xB4,
    0xB5, 0xB6, 0xB9, 0xBA, 0xBD, 0xC0, 0xC5, 0xC6, 0xC8, 0xC9, 0xCA, 0xD6, 0xD8, 0xDE, 0xE0, 0xE5,
    0xE6, 0xE8, 0xE9, 0xEA, 0xF5, 0xF6, 0xF8, 0xFE,
)
UNDOCUMENTED = (
    0x03, 0x04, 0x07, 0x0B, 0x0C, 0x0F, 0x13, 0x14, 0x1A, 0x1C, 0x1F, 0x23, 0x27, 0x2F, 0x33, 0x3B,
    0x43, 0x47, 0x4B, 0x4F, 0x53, 0x5B, 0x63, 0x67, 0x6B, 0x6F, 0x73, 0x7B, 0x7F, 0x80, 0x83, 0x87,
    0x8B, 0x8F, 0x93, 0x97, 0x9B, 0x9C, 0x9E, 0x9F, 0xA3, 0xA7, 0xAB, 0xAF, 0xB3, 0xB7, 0xBB, 0xBF,
    0xC3, 0xC7, 0xCB, 0xCF, 0xD3, 0xD7, 0xDB, 0xE3, 0xE7, 0xEB, 0xEF, 0xF3, 0xF7, 0xFB,
)
# fmt: on

ORIGIN = 0xF000
_NOP, _LDA, _LDY, _STA_ZP, _STA, _LDA_ZP, _LDA_ABS = 0xEA, 0xA9, 0xA0, 0x85, 0x8D, 0xA5, 0xAD
_JMP, _JSR, _RTS, _JAM = 0x4C, 0x20, 0x60, 0x02
_VSYNC, _WSYNC, _COLUBK, _HMOVE = 0x00, 0x02, 0x09, 0x2A
_VECTORS = 6  # Bytes at the end of a cartridge that say where it starts.


class Writer:
    """Writes one random program.

    Args:
        rng: Where the program comes from.
        start: Offset of the first instruction in its 4 KB.
    """

    def __init__(self, rng: np.random.Generator, start: int = 0):
        self.rng, self.start = rng, start
        self.code: list[int] = []

    def below(self, n: int) -> int:
        """Draws a number in [0, n)."""
        return int(self.rng.integers(n))

    def pick(self, *choices: int) -> int:
        """Draws one of the numbers."""
        return choices[self.below(len(choices))]

    def value(self) -> int:
        """Draws a byte, often one in which all bits or none or one are set."""
        return self.pick(0, 255, self.below(256), 1 << self.below(8))

    def ram(self) -> int:
        """Draws an address in RAM, below the stack."""
        return 0x80 + self.below(0x70)

    def emit(self, *code: int) -> None:
        """Appends bytes."""
        self.code += code

    def operation(self, opcodes: tuple[int, ...]) -> None:
        """Appends one instruction with any operand, mostly in RAM."""
        opcode = opcodes[self.below(len(opcodes))]
        length = _length(opcode)
        operand = 0x80 + self.below(0x80) if self.rng.random() < 0.8 else self.below(256)
        high = self.pick(0x00, 0x02, 0x10, 0xF0, 0xF1)
        self.emit(*(opcode, operand, high)[:length])

    def statement(self, opcodes: tuple[int, ...]) -> None:
        """Appends something that games do as well, or one instruction of `opcodes`."""
        writes: tuple[tuple[float, Callable[[], None]], ...] = (
            (0.55, lambda: self.emit(_LDA, self.value(), _STA_ZP, 1 + self.below(0x2C))),
            (0.07, lambda: self.emit(_STA_ZP, _WSYNC)),
            (0.04, lambda: self.emit(_LDA_ZP, self.below(16), _STA_ZP, self.ram())),
            (0.04, self.read_riot),
            (0.02, lambda: self.emit(_LDA, self.below(256), _STA, 0x94 + self.below(4), 0x02)),
            (0.13, lambda: self.emit(*[_NOP] * (1 + self.below(5)))),
            (0.02, self.wait_lines),
        )
        draw = float(self.rng.random())
        for share, write in writes:
            draw -= share
            if draw < 0:
                return write()
        return self.operation(opcodes)

    def read_riot(self) -> None:
        """Appends a read of a port or the timer into RAM."""
        self.emit(_LDA_ABS, self.pick(0x80, 0x82, 0x84, 0x85), 0x02, _STA_ZP, self.ram())

    def wait_lines(self) -> None:
        """Appends a loop over a few lines: LDY n; STA WSYNC; DEY; BNE."""
        self.emit(_LDY, 2 + self.below(38), _STA_ZP, _WSYNC, 0x88, 0xD0, 0xFB)

    def wait_for_timer(self) -> None:
        """Appends a loop that reads INTIM or INSTAT until BNE or BPL ends it, and keeps all flags.

        Its last read goes into RAM as well.
        """
        if self.below(2) == 0:
            self.jump(len(self.code) + 6)  # Begins with the branch, by what flags there are.
        load, store = ((0xAD, 0x85), (0xAE, 0x86), (0xAC, 0x84), (0x2C, 0x85))[self.below(4)]
        self.emit(load, self.pick(0x84, 0x84, 0x85), 0x02, self.pick(0xD0, 0x10, 0x10), 0xFB)
        self.emit(store, self.ram(), 0x08, 0x68, 0x85, self.ram())  # PHP; PLA; STA.

    def frame_start(self, delay: int = 0, n_writes: int = 0) -> None:
        """Appends the vertical synchronisation; it ends the frame after `delay` more NOPs.

        Before these are `n_writes` to the TIA, the first to HMOVE, which blanks a part of the line.
        """
        self.emit(_LDA, 2, _STA_ZP, _VSYNC, *[_STA_ZP, _WSYNC] * 3, _LDA, 0)
        if n_writes:
            self.emit(_STA_ZP, _HMOVE, *[_STA_ZP, _COLUBK, _NOP] * (n_writes - 1))
        self.emit(*[_NOP] * delay, _STA_ZP, _VSYNC)

    def short_sync(self) -> None:
        """Appends a vertical synchronisation of up to 93 cycles; less than 76 end no frame."""
        self.emit(_LDA, 2, _STA_ZP, _VSYNC, *[_NOP] * self.below(45), _LDA, 0, _STA_ZP, _VSYNC)

    def jump(self, offset: int) -> None:
        """Appends a jump to an offset of this program."""
        target = ORIGIN + self.start + offset
        self.emit(_JMP, target & 255, target >> 8)

    def bank(self, size: int = 4096) -> bytearray:
        """Returns the program at its place, filled up with NOPs, and the vectors."""
        room = size - self.start - _VECTORS
        vector = ORIGIN + self.start
        code = bytes([_NOP] * self.start) + bytes(self.code[:room])
        return bytearray(code.ljust(size - _VECTORS, bytes([_NOP]))) + bytes(
            [vector & 255, vector >> 8] * 3
        )


def _length(opcode: int) -> int:
    """Returns how many bytes an instruction has; branches and jumps left aside."""
    if opcode & 15 in (8, 10):
        return 1
    return 3 if opcode & 15 > 11 or opcode & 31 in (0x19, 0x1B) else 2


def program(
    rng: np.random.Generator,
    opcodes: tuple[int, ...] = DOCUMENTED,
    *,
    start: int = 0,
    n_bytes: tuple[int, int] = (600, 3000),
) -> Writer:
    """Returns a program of one frame, repeated for ever."""
    writer = Writer(rng, start)
    writer.emit(0x78, 0xD8, 0xA2, 0xFF, 0x9A)  # SEI; CLD; LDX #FF; TXS.
    loop = len(writer.code)
    writer.frame_start()
    size = int(rng.integers(*n_bytes))
    while len(writer.code) < size:
        writer.statement(opcodes)
    writer.jump(loop)
    return writer


def documented(rng: np.random.Generator) -> bytes:
    """Documented opcodes only."""
    return bytes(program(rng).bank())


def undocumented(rng: np.random.Generator) -> bytes:
    """Half of the arithmetic with opcodes that no data sheet names."""
    return bytes(program(rng, DOCUMENTED + UNDOCUMENTED).bank())


def cut_frames(rng: np.random.Generator) -> bytes:
    """Frames that end in the middle of a line, many of them inside the picture."""
    writer = Writer(rng)
    writer.emit(0x78, 0xD8, 0xA2, 0xFF, 0x9A)
    loop = len(writer.code)
    for _ in range(1 + writer.below(4)):
        writer.frame_start(delay=writer.below(36), n_writes=max(0, writer.below(8) - 4))
        end = len(writer.code) + 60 + writer.below(600)
        while len(writer.code) < end:
            writer.statement(DOCUMENTED + UNDOCUMENTED)
        if writer.below(2):
            writer.short_sync()
    writer.jump(loop)
    return bytes(writer.bank())


def random_bytes(rng: np.random.Generator) -> bytes:
    """Anything; such a program soon jams or runs in a small circle."""
    rom = bytearray(rng.bytes(4096))
    rom[-_VECTORS:] = [0x00, 0xF0] * 3
    return bytes(rom)


def long_frames(rng: np.random.Generator) -> bytes:
    """Frames longer than a television allows, or as long as PAL's, with many lines of waiting."""
    writer = Writer(rng)
    writer.emit(0x78, 0xD8, 0xA2, 0xFF, 0x9A)
    loop = len(writer.code)
    writer.frame_start()
    n_lines = 240 + writer.below(120)
    while n_lines > 0:
        for _ in range(writer.below(4)):
            writer.statement(DOCUMENTED)
        writer.emit(_LDY, min(n_lines, 40), _STA_ZP, _WSYNC, 0x88, 0xD0, 0xFB)
        n_lines -= 40
    writer.jump(loop)
    return bytes(writer.bank())


def endless(rng: np.random.Generator) -> bytes:
    """Stops ending frames at some point: an empty loop, a subroutine that calls itself, a jam."""
    writer = program(rng, DOCUMENTED, n_bytes=(100, 1500))
    del writer.code[-3:]  # The jump back.
    end = ORIGIN + len(writer.code)
    opcode = writer.pick(_JMP, _JSR, _JAM, _RTS)
    writer.emit(opcode, end & 255, end >> 8)
    return bytes(writer.bank())


def small(rng: np.random.Generator) -> bytes:
    """A cartridge of 2 KB."""
    return bytes(program(rng, DOCUMENTED + UNDOCUMENTED, n_bytes=(300, 1800)).bank(2048))


def banked(rng: np.random.Generator) -> bytes:
    """8 or 16 KB whose programs touch the addresses that switch banks."""
    return _banks(rng, n_banks=2 << int(rng.integers(2)), start=0)


def with_ram(rng: np.random.Generator) -> bytes:
    """8 or 16 KB whose banks leave room for RAM on the cartridge, and use it."""
    return _banks(rng, n_banks=2 << int(rng.integers(2)), start=0x100)


def coprocessor(rng: np.random.Generator) -> bytes:
    """The size of the cartridge with a data-fetching chip, whose registers are read and written."""
    rom = _banks(rng, n_banks=2, start=0x80)
    return rom + rng.bytes(10495 - len(rom))


def timed(rng: np.random.Generator) -> bytes:
    """Waits for the timer, from any count, in loops that emulators may recognise and cut short."""
    writer = Writer(rng)
    writer.emit(0x78, 0xD8, 0xA2, 0xFF, 0x9A)
    loop = len(writer.code)
    writer.frame_start()
    for _ in range(1 + writer.below(8)):
        interval = writer.pick(0x94, 0x95, 0x96, 0x96, 0x97)  # Of 1, 8, 64 or 1,024 cycles.
        writer.emit(_LDA, writer.below(3 if interval == 0x97 else 256), _STA, interval, 0x02)
        for _ in range(writer.below(4)):
            writer.statement(DOCUMENTED)
        writer.wait_for_timer()
    writer.jump(loop)
    return bytes(writer.bank())


def _banks(rng: np.random.Generator, n_banks: int, start: int) -> bytes:
    # One program for all banks, differing in its constants: it goes on wherever it is switched.
    seed = int(rng.integers(2**32))
    banks = []
    for _ in range(n_banks):
        writer = Writer(np.random.default_rng(seed), start)
        writer.emit(0x78, 0xD8, 0xA2, 0xFF, 0x9A)
        loop = len(writer.code)
        writer.frame_start()
        while len(writer.code) < 2500:
            if writer.rng.random() < 0.1:
                # Not FFE0 to FFEF: from such code ALE takes a cartridge for one of another kind.
                low, high = writer.pick(writer.below(0xE0), 0xF4 + writer.below(8)), 0xFF
                if start and writer.rng.random() < 0.7:
                    low, high = writer.below(256), 0xF0
                # Read, write or read-modify-write; what was read is kept.
                writer.emit(writer.pick(_LDA_ABS, _STA, 0xEE), low, high, _STA_ZP, writer.ram())
            elif writer.rng.random() < 0.2:
                writer.emit(_LDA, int(rng.integers(256)), _STA_ZP, writer.ram())
            else:
                writer.statement(DOCUMENTED)
        writer.jump(loop)
        bank = writer.bank()
        if start == 0x100:
            bank[:256] = bytes([_NOP] * 256)  # One value throughout is how such RAM is recognised.
        banks.append(bytes(bank))
    return b"".join(banks)


KINDS: tuple[Callable[[np.random.Generator], bytes], ...] = (
    documented,
    undocumented,
    cut_frames,
    random_bytes,
    long_frames,
    endless,
    small,
    banked,
    with_ram,
    coprocessor,
    timed,
)


def cartridge(number: int) -> tuple[str, bytes]:
    """Returns the kind and the content of a generated cartridge; the same for the same number."""
    make = KINDS[number % len(KINDS)]
    return make.__name__, make(np.random.default_rng(number))
