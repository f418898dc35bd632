"""Runs a program of Linux on x86-64 by Bochs's CPU, which has AVX-512.

`python program.py PROGRAM ARGUMENTS...`, with the variables that emulation.py sets. The program has
one thread and one process: what starts another one fails. Addresses are physical addresses.
"""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import bochscpu
from bochscpu import cpu as registers
from bochscpu import memory

PAGE = 4096
PROGRAM, INTERPRETER, MAPPED = 0x1000_0000, 0x2000_0000, 0x4000_0000
STACK, STACK_BYTES = 0xE000_0000, 8 << 20
TABLES, ENTRY, DESCRIPTORS = 0xF000_0000, 0xF001_0000, 0xF001_1000
SYSTEM_CALL = bytes.fromhex("0fae3d00000000 480f07")
"""What `syscall` jumps to: clflush of itself, which calls the hook below, and sysretq."""
KNOWN_FLAGS = 0xE7
"""Of XCR0: x87, SSE, AVX and AVX-512."""
NOT_FOUND, BAD_FILE, NO_MEMORY, UNKNOWN_CALL = -2, -9, -12, -38
SET_FS, EXECUTABLE_HEADER = 0x1002, 64


class Memory:
    """Pages, made when they are first used."""

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def make(self, address: int) -> None:
        page = address & -PAGE
        if page not in self._pages:
            memory.page_insert(page, memory.allocate_host_page())
            self._pages.add(page)

    def write(self, address: int, data: bytes) -> None:
        for start, size, offset in _pieces(address, len(data)):
            self.make(start)
            memory.phy_write(start, list(data[offset : offset + size]))

    def read(self, address: int, size: int) -> bytes:
        parts = []
        for start, length, _ in _pieces(address, size):
            self.make(start)
            parts.append(bytes(memory.phy_read(start, length)))
        return b"".join(parts)

    def text(self, address: int) -> str:
        data = bytearray()
        while (byte := self.read(address + len(data), 1)) != b"\0":
            data += byte
        return data.decode()


def _in_pages(size: int) -> int:
    return (size + PAGE - 1) & -PAGE


def _pieces(address: int, size: int) -> Any:
    done = 0
    while done < size:
        length = min(size - done, PAGE - (address + done) % PAGE)
        yield address + done, length, done
        done += length


@dataclass(frozen=True, slots=True)
class Loaded:
    """An ELF file in memory."""

    entry: int
    headers: int
    num_headers: int
    interpreter: str
    end: int


def load(ram: Memory, path: str, base: int) -> Loaded:
    """Load a program or its interpreter at `base`, unless its addresses are fixed."""
    elf = Path(path).read_bytes()
    kind, entry, offset = *struct.unpack_from("<H", elf, 16), *struct.unpack_from("<QQ", elf, 24)
    base = 0 if kind == 2 else base
    (number,) = struct.unpack_from("<H", elf, 56)
    interpreter, end = "", 0
    for i in range(number):
        header = struct.unpack_from("<IIQQQQQQ", elf, offset + 56 * i)
        segment, _, start, address, _, in_file, size, _ = header
        if segment == 1:
            ram.write(base + address, elf[start : start + in_file])
            end = max(end, base + address + size)
        elif segment == 3:
            interpreter = elf[start : start + in_file - 1].decode()
    return Loaded(base + entry, base + EXECUTABLE_HEADER, number, interpreter, end)


class Linux:
    """The system calls of a program with one thread."""

    def __init__(self, ram: Memory, end: int) -> None:
        self._ram = ram
        self._least_break = self._break = _in_pages(end)
        self._next = MAPPED
        self._free: dict[int, list[int]] = {}
        """Places that were unmapped, by their size."""
        self._files: dict[int, bytes] = {}
        self._offsets: dict[int, int] = {}
        self._calls = {
            0: self._read,
            1: self._write,
            3: lambda *_: 0,  # close
            5: lambda file, at, *_: self._describe(file, at),
            9: self._map,
            11: self._unmap,
            12: self._set_break,
            17: self._read_at,
            20: self._write_parts,
            204: lambda _, size, at, *__: self._ram.write(at, b"\1" + bytes(7)) or 8,
            257: lambda _, path, *__: self._open(path),
            262: lambda file, _, at, *__: self._describe(file, at),
            318: lambda at, size, *_: self._ram.write(at, bytes(size)) or size,  # getrandom
        }
        for harmless in (10, 13, 14, 28, 202, 218, 234, 273, 302):
            self._calls[harmless] = lambda *_: 0

    def call(self, number: int, arguments: tuple[int, ...]) -> int:
        if number in (60, 231):
            _exit(arguments[0])
        return self._calls.get(number, lambda *_: UNKNOWN_CALL)(*arguments)

    def _open(self, path: int) -> int:
        try:
            data = Path(self._ram.text(path)).read_bytes()
        except OSError:
            return NOT_FOUND
        file = max(self._files, default=2) + 1
        self._files[file], self._offsets[file] = data, 0
        return file

    def _read(self, file: int, at: int, size: int, *_: int) -> int:
        done = self._read_at(file, at, size, self._offsets.get(file, 0))
        self._offsets[file] = self._offsets.get(file, 0) + done
        return done

    def _read_at(self, file: int, at: int, size: int, offset: int, *_: int) -> int:
        data = self._files.get(file, b"")[offset : offset + size]
        self._ram.write(at, data)
        return len(data)

    def _describe(self, file: int, at: int) -> int:
        """struct stat: the type, and the size. Standard streams are pipes."""
        is_file = file in self._files
        if not is_file and file > 2:
            return BAD_FILE
        mode, size = (0o100755, len(self._files[file])) if is_file else (0o010600, 0)
        stat = struct.pack("<QQQIIIIQQQ", 1, file + 1, 1, mode, 0, 0, 0, 0, size, PAGE)
        self._ram.write(at, stat.ljust(144, b"\0"))
        return 0

    def _map(self, at: int, size: int, _: int, flags: int, file: int, offset: int) -> int:
        is_fixed, is_anonymous = flags & 0x10, flags & 0x20
        free = self._free.get(_in_pages(size))
        is_used = is_fixed or bool(free)
        if not is_fixed and free:
            at = free.pop()
        elif not is_fixed:
            at, self._next = self._next, self._next + _in_pages(size)
            if self._next > STACK - STACK_BYTES:
                return NO_MEMORY
        data = b"" if is_anonymous else self._files[file & 0xFFFFFFFF][offset : offset + size]
        self._ram.write(at, data.ljust(_in_pages(size), b"\0") if is_used else data)
        return at

    def _unmap(self, at: int, size: int, *_: int) -> int:
        self._free.setdefault(_in_pages(size), []).append(at)
        return 0

    def _set_break(self, to: int, *_: int) -> int:
        if self._least_break <= to < INTERPRETER:
            self._break = to
        return self._break

    def _write(self, file: int, at: int, size: int, *_: int) -> int:
        os.write(file, self._ram.read(at, size))
        return size

    def _write_parts(self, file: int, parts: int, number: int, *_: int) -> int:
        pairs = (struct.unpack("<QQ", self._ram.read(parts + 16 * i, 16)) for i in range(number))
        return sum(self._write(file, at, size) for at, size in pairs)


def make_stack(ram: Memory, arguments: list[str], program: Loaded, base: int) -> int:
    """Arguments, no environment, and the auxiliary vector. Returns the stack pointer."""
    place, addresses = STACK - 64, []
    random_bytes = place
    for argument in arguments:
        text = argument.encode() + b"\0"
        place -= len(text)
        ram.write(place, text)
        addresses.append(place)
    vector = {3: program.headers, 4: 56, 5: program.num_headers, 6: PAGE, 7: base, 9: program.entry}
    vector |= {11: 0, 12: 0, 13: 0, 14: 0, 23: 0, 25: random_bytes, 16: 0, 17: 100, 0: 0}
    words = [len(addresses), *addresses, 0, 0, *(x for pair in vector.items() for x in pair)]
    place = (place - 8 * len(words)) & -64
    ram.write(place, struct.pack(f"<{len(words)}Q", *words))
    return place


def start_state(ram: Memory, entry: int, stack: int) -> Any:
    """Long mode, ring 3, and four gigabytes whose virtual addresses are their physical ones."""
    ram.write(TABLES, struct.pack("<Q", (TABLES + PAGE) | 7))
    for i in range(4):
        table = TABLES + (2 + i) * PAGE
        ram.write(TABLES + PAGE + 8 * i, struct.pack("<Q", table | 7))
        entries = ((i << 30) + (j << 21) | 0x87 for j in range(512))
        ram.write(table, struct.pack("<512Q", *entries))
    ram.write(ENTRY, SYSTEM_CALL)
    segments = (0, 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF, 0, 0x00CFF3000000FFFF)
    ram.write(DESCRIPTORS, struct.pack("<8Q", *segments, 0x00AFFB000000FFFF, 0))
    state = bochscpu.State()
    registers.set_long_mode(state)
    state.cr0 |= 2
    state.cr4 |= 1 << 18 | 1 << 10 | 1 << 9  # XSAVE, exceptions of SSE, and SSE
    state.cr3, state.xcr0 = TABLES, KNOWN_FLAGS
    state.efer |= 1
    state.star, state.lstar, state.sfmask = 0x10 << 32 | 0x1B << 48, ENTRY, 0x200
    state.cs = _segment(0x33, 0xA0FB)
    for name in ("ss", "ds", "es", "fs", "gs"):
        setattr(state, name, _segment(0x2B, 0xC0F3))
    table = bochscpu.GlobalSegment()
    table.base, table.limit = DESCRIPTORS, 63
    state.gdtr = table
    state.mxcsr, state.mxcsr_mask, state.fpcw, state.fptw = 0x1F80, 0xFFFF, 0x37F, 0xFFFF
    state.rflags, state.rip, state.rsp = 2, entry, stack
    return state


def _segment(selector: int, attributes: int) -> Any:
    segment = bochscpu.Segment()
    segment.present, segment.selector, segment.attr = True, selector, attributes
    segment.base, segment.limit = 0, 0xFFFFFFFF
    return segment


def _exit(status: int) -> NoReturn:
    """End at once: without the hook after each instruction, a session never stops."""
    os._exit(status & 0xFF)


def main(arguments: list[str]) -> None:
    """Run a program to its exit, or to a fault, which is printed."""
    ram = Memory()
    program = load(ram, arguments[0], PROGRAM)
    entry, base = program.entry, 0
    if program.interpreter:
        entry, base = load(ram, program.interpreter, INTERPRETER).entry, INTERPRETER
    linux = Linux(ram, program.end)
    session = bochscpu.Session()
    session.missing_page_handler = ram.make

    def on_system_call(session: Any, *_: int) -> None:
        cpu = session.cpu
        number = cpu.rax
        given = (cpu.rdi, cpu.rsi, cpu.rdx, cpu.r10, cpu.r8, cpu.r9)
        if number == 158 and given[0] == SET_FS:
            segment = cpu.fs
            segment.base = given[1]
            cpu.fs, cpu.rax = segment, 0
            return
        cpu.rax = linux.call(number, given) & (1 << 64) - 1

    def on_exception(session: Any, _: int, vector: int, code: int) -> None:
        where = f"code {code}, at {session.cpu.rip:#x}, address {session.cpu.cr2:#x}"
        fault = "Illegal instruction" if vector == 6 else f"exception {vector} {where}"
        print(fault, file=sys.stderr, flush=True)
        _exit(-4)

    hook = bochscpu.Hook()
    hook.clflush, hook.exception = on_system_call, on_exception
    stack = make_stack(ram, arguments, program, base)
    session.cpu.state = start_state(ram, entry, stack)
    session.run([hook])


if __name__ == "__main__":
    main(sys.argv[1:])
