"""From the disassembler's text to instructions that can be played."""

from __future__ import annotations

import ctypes
import re

import numpy as np

from scripts.sass.player import Instruction, Predicate, Source, load_player

_COMPARISONS = {name: k + 1 for k, name in enumerate(("LT", "EQ", "LE", "GT", "NE", "GE", "NAN"))}
_SPECIAL_REGISTERS = {"SR_TID.X": 0, "SR_CTAID.X": 1, "SR_SWINHI": 2, "SR_CgaCtaId": 3}

# What the modifiers of an instruction mean; those that change nothing here are "".
_MODIFIERS = {
    "IMAD": {"U32": "Unsigned", "X": "Carry", **dict.fromkeys(("MOV", "SHL", "IADD"), "")},
    "IADD3": {"X": "Carry"},
    "VIADD": {},
    "LEA": {"X": "Carry", "SX32": "SignExtended"},
    "LOP3": {"LUT": ""},
    "PLOP3": {"LUT": ""},
    "SHF": {
        **{"L": "Left", "HI": "High", "W": "Wraps", "R": "", "U32": "", "S32": "SignExtended"},
        **{"U64": "Is64", "S64": "Is64 SignExtended"},
    },
    "ISETP": {
        **{"U32": "Unsigned", "EX": "Extended", "OR": "IsOr", "XOR": "IsXor", "AND": ""},
        **{"U64": "Unsigned Is64", "S64": "Is64"},
    },
    "FSETP": {"OR": "IsOr", "AND": "", "FTZ": ""},
    "DSETP": {"OR": "IsOr", "AND": ""},
    "SGXT": {"U32": "Unsigned"},
    "IADD": {"X": "Carry"},
    "IMNMX": {"U32": "Unsigned", "U64": "Unsigned Is64"},
    "VIMNMX": {"U32": "Unsigned", "S32": "", "RELU": "Relu", "U16x2": "Pairs16"},
    "VIMNMX3": {"U32": "Unsigned", "RELU": "Relu"},
    "VIADDMNMX": {"U32": "Unsigned", "RELU": "Relu"},
    "FLO": {"U32": "", "SH": "ShiftAmount"},
    "IDP": {"4A": "", "U8": "", "2A": "Pairs16", "LO": "", "U16": ""},
    "CS2R": {"32": ""},
    "HFMA2": {"MMA": ""},
    **dict.fromkeys(("BSSY", "BSYNC", "BREAK"), {"RECONVERGENT": "", "RELIABLE": ""}),
    "BMOV": {"32": "", "CLEAR": "Clears"},
    **dict.fromkeys(("VOTE", "MATCH"), {"ANY": ""}),
    "REDUX": {"MIN": "", "OR": "IsOr"},
    "SHFL": {"IDX": ""},
    "BRA": {"U": ""},
    "CALL": {"REL": "", "NOINC": ""},
    "RET": {"REL": "", "NODEC": ""},
    "WARPSYNC": {"EXCLUSIVE": "", "ALL": "", "COLLECTIVE": ""},
    "BAR": {"SYNC": "", "DEFER_BLOCKING": ""},
    **dict.fromkeys(
        ("FADD", "FMUL", "FFMA"), {"RP": "Up", "RM": "Down", "RZ": "ToZero", "FTZ": ""}
    ),
    **dict.fromkeys(("DADD", "DMUL", "DFMA"), {"RP": "Up", "RM": "Down"}),
    **dict.fromkeys(
        ("I2F", "I2FP"), {"U32": "Unsigned", "S32": "", "RP": "Up", "RZ": "ToZero", "F32": ""}
    ),
    "F2I": {"U32": "Unsigned", "U64": "Unsigned Is64", "TRUNC": "", "FTZ": "", "NTZ": ""},
    "F2F": {"F64": "", "F32": ""},
}
_MODIFIERS["I2F"] = {
    **_MODIFIERS["I2F"],
    **{"F64": "", "U16": "Unsigned Pairs16", "U64": "Unsigned Is64"},
}
_MODIFIERS["F2I"] = {**_MODIFIERS["F2I"], "F64": ""}

_OF_WARP = ("UMOV", "UIMAD", "UIADD3", "USHF", "ULEA", "UISETP", "USEL", "ULDC", "ULOP3", "UPRMT")
_OF_WARP += ("UPLOP3",)
_SAME = {"VOTEU": "VOTE", "LDCU": "LDC", "CREDUX": "REDUX", "YIELD": "NOP"}
_LOADS, _STORES = ("LD", "LDG", "LDL", "LDS"), ("ST", "STG", "STL", "STS")

_PREDICATE = re.compile(r"!?U?P[0-6T]")
_REGISTER = re.compile(r"(-?)(~?)(\|?)(U?)R(\d+|Z)\|?")
_CONSTANT = re.compile(r"(-?)(~?)c\[0x(\w+)\]\[0x(\w+)\]")
_INDEXED_CONSTANT = re.compile(r"c\[0x(\w+)\]\[(U?R\d+|U?RZ)?\+?(-?0x\w+)?\]")
_ADDRESS = re.compile(
    r"(?:desc\[UR\d+\])?\[(?:(R\d+|RZ)(?:\.64|\.X(\d+)|\.(U32))?)?(?:\+?(UR\d+))?"
    r"(?:\+?(-?0x[0-9a-f]+))?\]"
)


class SassError(RuntimeError):
    """Code with something in it that is not known here."""


def _predicate(text: str) -> Predicate:
    name = text.lstrip("!")
    number = 7 if name.endswith("T") else int(name[-1])
    return Predicate(number + 8 * name.startswith("U"), text.startswith("!"))


def _source(text: str, immediate: int) -> Source:
    """Returns an operand; what is written as a real number is taken from the encoding.

    Raises:
        SassError: It is none.
    """
    text = re.sub(r"\.(reuse|64|B\d)", "", text)
    if match := _REGISTER.fullmatch(text):
        negated, inverted, absolute, uniform, number = match.groups()
        value = (63 if uniform else 255) if number == "Z" else int(number)
        kind = 2 if uniform else 1
        return Source(kind, bool(negated), bool(inverted), bool(absolute), value, 0)
    if match := _CONSTANT.fullmatch(text):
        negated, inverted, bank, offset = match.groups()
        return Source(4, bool(negated), bool(inverted), 0, int(offset, 16), int(bank, 16))
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        number = int(text, 16) & 0xFFFFFFFF_FFFFFFFF
        return Source(3, 0, 0, 0, number & 0xFFFFFFFF, number >> 32)
    if re.fullmatch(r"[-+]?(\d.*|INF|QNAN)", text):
        return Source(3, 0, 0, 0, immediate, 0)
    raise SassError(f"operand {text!r}: expected a register, a constant or a number")


def _split(text: str) -> list[str]:
    """Returns operands: what lies between commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[(]*[\])])", text) if part.strip()]


class Decoder:
    """Makes an `Instruction` of a line of text.

    Args:
        text: Instruction as the disassembler writes it.
        low: The lower 64 bits of its encoding.
        high: The upper ones.
        labels: Where names are, in instructions.
    """

    def __init__(self, text: str, low: int, high: int, labels: dict[str, int]):
        self.i, self.labels, self.immediate = Instruction(), labels, low >> 32
        i = self.i
        i.guard, i.target = Predicate(7, 0), 255
        i.predicates[0] = i.predicates[1] = 7
        control = high >> 41
        i.stall, i.write_barrier, i.read_barrier = control & 15, control >> 5 & 7, control >> 8 & 7
        i.waits = control >> 11 & 63
        text = re.sub(r"\(\*.*?\*\)", "", text).strip()
        if match := re.match(r"@(\S+)\s+(.*)", text):
            i.guard, text = _predicate(match[1]), match[2]
        name, _, rest = text.partition(" ")
        self.stem, *modifiers = name.split(".")
        self.stem = self.stem[1:] if self.stem in _OF_WARP else self.stem
        self.stem = _SAME.get(self.stem, self.stem)
        self.modifiers = set(modifiers)
        self.operands = _split(rest)

    def decode(self) -> Instruction:
        """Returns the instruction.

        Raises:
            SassError: Something in it is not known here.
        """
        special = {
            **dict.fromkeys((*_LOADS, *_STORES), self._access),
            **dict.fromkeys(("ISETP", "FSETP", "DSETP"), self._compare),
            **dict.fromkeys(("LOP3", "PLOP3"), self._logic),
            **dict.fromkeys(("P2R", "R2P"), self._pack),
            **dict.fromkeys(("S2R", "S2UR", "CS2R"), self._special_register),
            **dict.fromkeys(("VOTE", "SHFL"), self._exchange),
            **dict.fromkeys(("BSSY", "BSYNC", "BREAK", "BMOV"), self._barrier),
            **dict.fromkeys(("BRA", "CALL", "RET", "BRX", "EXIT"), self._jump),
            **dict.fromkeys(("WARPSYNC", "ENDCOLLECTIVE", "BAR", "NOP"), self._jump),
            **dict.fromkeys(("R2UR", "IMNMX"), self._behind_predicates),
            "LDC": self._constant,
            "HFMA2": self._halves,
        }
        special.get(self.stem, self._usual)()
        return self.i

    def _usual(self) -> None:
        self._operation(self._arithmetic())
        self._target(self.operands[0])
        self._sources(self._predicates(1))

    def _compare(self) -> None:
        self._operation(self.stem, self._comparison())
        self._sources(self._predicates(0))

    def _logic(self) -> None:
        operands = self.operands
        self._operation(self.stem)
        first = self._predicates(0)
        if self.stem == "PLOP3":
            self.i.table, self.i.second_table = (int(text, 16) for text in operands[5:7])
            self._sources(2, operands[2:5])
            return
        self._target(operands[first])
        self.i.table = int(operands[first + 4], 16)
        self._sources(first + 1, operands[first + 1 : first + 4] + operands[first + 5 :])

    def _pack(self) -> None:
        self._operation(self.stem)
        if self.stem == "P2R":
            self._target(self.operands[0])
        byte = re.search(r"\.B(\d)", self.operands[1])
        self.i.table = 8 * int(byte[1]) if byte else 0
        self._sources(0, self.operands[-2:])

    def _special_register(self) -> None:
        self._operation("CS2R" if self.stem == "CS2R" else "S2R")
        self._target(self.operands[0])
        if self.stem != "CS2R":
            self.i.immediate = _SPECIAL_REGISTERS[self.operands[1]]
        elif "32" not in self.modifiers:
            self.i.flags |= load_player().flags["Is64"]

    def _exchange(self) -> None:
        operands = self.operands
        self._operation(self.stem)
        if self.stem == "SHFL":
            self._target(operands[1])
            self._sources(0, operands[2:4])
            return
        if not self._predicates(0):
            self._target(operands[0])
        self._sources(0, operands[-1:])

    def _behind_predicates(self) -> None:
        self._operation(self._arithmetic())
        first = self._predicates(0)
        self._target(self.operands[first])
        self._sources(first + 1)

    def _constant(self) -> None:
        sizes = {"64": 8, "128": 16}
        found = self.modifiers & set(sizes)
        self.i.size = sizes[found.pop()] if found else 4
        self._operation(self.stem, set(sizes))
        self._target(self.operands[0])
        match = _INDEXED_CONSTANT.fullmatch(self.operands[1])
        if not match:
            raise SassError(f"operand {self.operands[1]!r}: expected a place in a constant bank")
        self.i.table, self.i.offset = int(match[1], 16), int(match[3] or "0", 16)
        self._sources(1, [match[2] or "RZ"])

    def _operation(self, name: str, ignored: set[str] | None = None) -> None:
        known = _MODIFIERS.get(self.stem, {})
        for modifier in self.modifiers - (ignored or set()):
            if modifier not in known:
                raise SassError(f"{self.stem}.{modifier}: expected one of {sorted(known)}")
            for flag in known[modifier].split():
                self.i.flags |= load_player().flags[flag]
        if name not in load_player().operations:
            raise SassError(f"{name}: expected an instruction that is known here")
        self.i.operation = load_player().operations[name]

    def _target(self, text: str) -> None:
        source = _source(text, 0)
        self.i.target, self.i.target_is_uniform = source.value, source.kind == 2

    def _predicates(self, first: int) -> int:
        """Takes predicates that are results; returns the number of the operand behind them."""
        while first < len(self.operands) and _PREDICATE.fullmatch(self.operands[first]):
            if self.i.n_predicates == 2:
                break
            self.i.predicates[self.i.n_predicates] = _predicate(self.operands[first]).index
            self.i.n_predicates += 1
            first += 1
        return first

    def _sources(self, first: int, operands: list[str] | None = None) -> None:
        for text in self.operands[first:] if operands is None else operands:
            if _PREDICATE.fullmatch(text):
                self.i.conditions[self.i.n_conditions] = _predicate(text)
                self.i.n_conditions += 1
            else:
                self.i.sources[self.i.n_sources] = _source(text, self.immediate)
                self.i.n_sources += 1

    def _comparison(self) -> set[str]:
        """Takes the comparison from the modifiers; returns which of them it is.

        Raises:
            SassError: There is none.
        """
        for modifier in self.modifiers:
            name = modifier[:-1] if modifier.endswith("U") else modifier
            if name in _COMPARISONS:
                self.i.comparison = _COMPARISONS[name]
                self.i.flags |= load_player().flags["Unordered"] if name != modifier else 0
                return {modifier}
        raise SassError(f"{self.stem}: expected a comparison, got {sorted(self.modifiers)}")

    def _arithmetic(self) -> str:
        """Returns the operation, where modifiers tell it apart, and takes those away."""
        special = {
            "IMAD": {"WIDE": "IMAD_WIDE", "HI": "IMAD_HI"},
            "LEA": {"HI": "LEA_HI"},
            **{name: {"64": f"{name}_64"} for name in ("IADD", "SEL", "MOV")},
            "I2F": {"F64": "I2F_64"},
            "F2I": {"F64": "F2I_64"},
            "MUFU": {"RCP": "MUFU_RCP", "RCP64H": "MUFU_RCP64"},
        }.get(self.stem, {})
        for modifier in self.modifiers & set(special):
            self.modifiers.remove(modifier)
            return special[modifier]
        same = {
            "VIADD": "IADD3",
            "I2FP": "I2F",
            "F2F": "F2F_64",
            "IMNMX": "VIMNMX",
            "IADD": "IADD3",
        }
        return same.get(self.stem, self.stem)

    def _access(self) -> None:
        i, is_load = self.i, self.stem in _LOADS
        sizes = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
        found = self.modifiers & set(sizes)
        i.size = sizes[found.pop()] if found else 4
        i.is_signed = bool(self.modifiers & {"S8", "S16"})
        name = {"LDG": "LD", "STG": "ST"}.get(self.stem, self.stem)
        self._operation(name, {*sizes, "E", "CONSTANT", "LU", "SYS", "U"})
        text = self.operands[1 if is_load else 0]
        match = _ADDRESS.fullmatch(text)
        if not match:
            raise SassError(f"operand {text!r}: expected an address")
        register, scale, is_short, uniform, offset = match.groups()
        i.table, i.offset = int(scale or "1"), int(offset or "0", 16)
        if is_load:
            self._target(self.operands[0])
        # The first has 64 bits where addresses have, the other one 32.
        first, other = (uniform, register) if is_short or not register else (register, uniform)
        stored = [] if is_load else [self.operands[1]]
        self._sources(0, [first or "RZ", *stored, *([other] if other else [])])

    def _halves(self) -> None:
        """HFMA2 as it is used here: two constants of 16 bits.

        Raises:
            SassError: It does more.
        """
        self._operation(self.stem)
        if self.operands[1:3] != ["-RZ", "RZ"]:
            raise SassError(f"HFMA2 {self.operands}: expected a constant")
        self._target(self.operands[0])
        high, low = (int(np.float16(text).view(np.uint16)) for text in self.operands[3:5])
        self.i.immediate = ctypes.c_int32(high << 16 | low).value

    def _jump(self) -> None:
        i, operands = self.i, self.operands
        is_divergence = "DIV" in self.modifiers
        self._operation("BRA_DIV" if is_divergence else self.stem, {"DIV"})
        conditions = [text for text in operands if _PREDICATE.fullmatch(text)]
        rest = [text for text in operands if not _PREDICATE.fullmatch(text)]
        self._sources(0, conditions)
        if self.stem in ("BRA", "CALL"):
            i.to = self.labels[rest[-1].strip("`()")]
            self._sources(0, rest[:-1])
        elif self.stem in ("BRX", "RET"):
            register, place = rest[0].split()
            self._sources(0, [register])
            i.offset = int(place, 16) if self.stem == "BRX" else 0
        elif self.stem == "WARPSYNC":
            self._sources(0, rest[:1])

    def _barrier(self) -> None:
        operands = self.operands
        names = [text for text in operands if re.fullmatch(r"B\d+", text)]
        self.i.table = int(names[0][1:])
        if self.stem != "BMOV":
            self._operation(self.stem)
            self._sources(0, [text for text in operands if _PREDICATE.fullmatch(text)])
        elif operands[0] == names[0]:
            self._operation("BMOV_SET")
            self._sources(1)
        else:
            self._operation("BMOV_GET")
            self._target(operands[0])
