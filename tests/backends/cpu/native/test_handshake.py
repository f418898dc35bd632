"""The structures that Python and the native library share are the same in both."""

from __future__ import annotations

import ctypes

import pytest

from tokenmill.backends.cpu.native import handshake
from tokenmill.backends.cpu.native.handshake import check_structures
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.machine.compiling import BuildError


class LogitsCallStruct(ctypes.Structure):
    """As it is in structures.py, but for two fields that changed places."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("logits", ctypes.c_void_p),
        ("best", ctypes.c_void_p),
        ("is_finite", ctypes.c_void_p),
    )


def test_every_structure_of_the_library_is_known_here(library: Library) -> None:
    theirs = handshake._layouts_of(library._library)
    assert theirs == handshake._own_layouts()
    assert len(theirs) == 22


def test_a_field_in_another_place_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "STRUCTURES", (LogitsCallStruct,))
    with pytest.raises(
        BuildError, match=r"LogitsCall.size has offset 8 and size 8 .* offset 0 and size 8"
    ):
        check_structures(library._library)


def test_a_structure_that_the_library_lacks_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherStruct(LogitsCallStruct):
        pass

    monkeypatch.setattr(handshake, "STRUCTURES", (OtherStruct,))
    with pytest.raises(BuildError, match="Other has no place there"):
        check_structures(library._library)
