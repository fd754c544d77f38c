"""Files with code for a GPU."""

from __future__ import annotations

import struct
from typing import NamedTuple


class Symbol(NamedTuple):
    """A name in a file; a program can ask for those that are global."""

    name: str
    value: int
    is_global: bool


class Elf:
    """The sections and symbols of a 64-bit ELF file.

    Args:
        content: The file.

    Attributes:
        content: As above.
    """

    def __init__(self, content: bytes):
        self.content = content
        offset = struct.unpack_from("<Q", content, 40)[0]
        size, n, strings = struct.unpack_from("<HHH", content, 58)
        headers = [struct.unpack_from("<IIQQQQ", content, offset + i * size) for i in range(n)]
        names = headers[strings][4]
        self._sections = {self._text(names + head[0]): head[4:6] for head in headers}

    def _text(self, at: int) -> str:
        return self.content[at : self.content.index(b"\0", at)].decode()

    def section(self, name: str) -> bytes:
        """Returns a section, empty if there is none of this name."""
        begin, size = self._sections.get(name, (0, 0))
        return self.content[begin : begin + size]

    def symbols(self) -> list[Symbol]:
        """Returns all symbols, in the order of the file."""
        names = self._sections[".strtab"][0]
        return [
            Symbol(self._text(names + name), value, info >> 4 == 1)
            for name, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", self.section(".symtab"))
        ]

    def frame_sizes(self) -> dict[str, int]:
        """Returns the bytes of local memory that a thread takes in each function.

        In `.nv.info`, as `cuobjdump -elf` shows it: entries of a format, an attribute and a size;
        those of EIATTR_FRAME_SIZE are the number of a symbol and the bytes.
        """
        has_size, frame_size = 4, 0x11
        names, found = [symbol.name for symbol in self.symbols()], {}
        info = self.section(".nv.info")
        at = 0
        while at < len(info):
            form, attribute, size = struct.unpack_from("<BBH", info, at)
            if form == has_size and attribute == frame_size:
                symbol, n_bytes = struct.unpack_from("<II", info, at + 4)
                found[names[symbol]] = n_bytes
            at += 4 + (size if form == has_size else 0)
        return found
