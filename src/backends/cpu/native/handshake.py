"""Checks that Python and the native library agree on the structures that they share."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from ...machine.compiling import BuildError
from .structures import DRAWN_ROW, STRUCTURES

Layout = Mapping[str | None, tuple[int, int]]
"""Offset and size of each field, in bytes. The key None has 0 and the size of the structure."""


class _FieldLayoutStruct(ctypes.Structure):
    """`FieldLayout` of csrc/abi/structures.h. It must not change, because nothing checks it."""

    _fields_ = (
        ("structure", ctypes.c_char_p),
        ("field", ctypes.c_char_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


def check_structures(library: ctypes.CDLL) -> None:
    """Raise BuildError if the library's structures differ from structures.py.

    The error names the structure and field.
    """
    theirs = _layouts_of(library)
    for name, mine in _own_layouts().items():
        for field in {**mine, **theirs.get(name, {})}:
            have, wants = mine.get(field), theirs.get(name, {}).get(field)
            if have != wants:
                what = name if field is None else f"{name}.{field}"
                raise BuildError(
                    f"the native library was built from other sources: {what} has "
                    f"{_describe(wants)} there and {_describe(have)} here"
                )


def _own_layouts() -> dict[str, Layout]:
    layouts = {one.__name__.removesuffix("Struct"): _layout_of(one) for one in STRUCTURES}
    drawn_row: dict[str | None, tuple[int, int]] = {None: (0, DRAWN_ROW.itemsize)}
    for name, field in (DRAWN_ROW.fields or {}).items():
        drawn_row[name] = field[1], field[0].itemsize
    return {**layouts, "DrawnRow": drawn_row}


def _layout_of(structure: type[ctypes.Structure]) -> Layout:
    layout: dict[str | None, tuple[int, int]] = {None: (0, ctypes.sizeof(structure))}
    for name, *_ in structure._fields_:
        field = getattr(structure, name)
        layout[name] = field.offset, field.size
    return layout


def _layouts_of(library: ctypes.CDLL) -> dict[str, dict[str | None, tuple[int, int]]]:
    library.tm_structures.restype = ctypes.POINTER(_FieldLayoutStruct)
    entries = library.tm_structures()
    layouts: dict[str, dict[str | None, tuple[int, int]]] = {}
    for entry in entries:
        if entry.structure is None:
            break
        field = None if entry.field is None else entry.field.decode()
        layouts.setdefault(entry.structure.decode(), {})[field] = entry.offset, entry.size
    return layouts


def _describe(place: tuple[int, int] | None) -> str:
    return "no place" if place is None else f"offset {place[0]} and size {place[1]}"
