"""Hugging Face directories that lie: changed fields of safetensors headers and of config.json."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

ABSURD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    10**18,
    10**400,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "64",
    "a\nb",
    "x" * 5000,
    [],
    [1],
    ["full_attention"] * 3,
    [[[]]],
    {},
    {"rope_type": "llama3"},
    {"factor": 1e300},
    {"": None},
]
"""Values that no field of a configuration should have."""
_DTYPES = [
    "F32",
    "F64",
    "F16",
    "BF16",
    "I64",
    "I8",
    "U8",
    "BOOL",
    "F8_E4M3",
    "F8_E8M0",
    "F4",
    "C64",
]
numbers = st.sampled_from([0, 1, 7, 2**31, 2**53, 2**63, 2**64 - 1, 2**70]) | st.integers(0, 4096)


@st.composite
def configs(draw: st.DrawFn, valid: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """A config.json with one to three fields changed; `extra` are fields that it may get."""
    config = dict(valid)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted({*valid, *extra})))
        how = draw(st.integers(0, 5))
        if how == 0:
            config.pop(name, None)
        elif how == 1 and name in extra:
            config[name] = extra[name]
        else:
            config[name] = draw(st.sampled_from(ABSURD))
    return json.dumps(config).encode()


@st.composite
def safetensors(draw: st.DrawFn, valid: bytes) -> bytes:
    """A safetensors file with one to three fields of its header changed, or its lengths."""
    (length,) = struct.unpack("<Q", valid[:8])
    header, data = json.loads(valid[8 : 8 + length]), valid[8 + length :]
    for _ in range(draw(st.integers(1, 3))):
        _change(header, draw)
    content = json.dumps(header).encode()
    if draw(st.integers(0, 9)) == 0:
        content = content[: draw(st.integers(0, len(content)))]
    stated = len(content) if draw(st.integers(0, 9)) else draw(numbers)
    data = data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data
    return struct.pack("<Q", stated & (2**64 - 1)) + content + data


def _change(header: dict[str, Any], draw: st.DrawFn) -> None:
    names = sorted(header)
    if not names:
        return
    name = draw(st.sampled_from(names))
    entry = header[name]
    how = draw(
        st.sampled_from(["gone", "renamed", "absurd", "dtype", "shape", "offsets", "swapped"])
    )
    if how == "gone":
        del header[name]
    elif how == "renamed":
        header[draw(st.sampled_from(["", "two\nlines", "n" * 5000, "__metadata__"]))] = header.pop(
            name
        )
    elif how == "absurd" or not isinstance(entry, dict) or "shape" not in entry:
        header[name] = draw(st.sampled_from(ABSURD))
    elif how == "dtype":
        entry["dtype"] = draw(st.sampled_from(_DTYPES))
    elif how == "shape":
        entry["shape"] = draw(st.lists(numbers, max_size=5))
    elif how == "swapped":
        entry["shape"] = entry["shape"][::-1]
    else:
        entry["data_offsets"] = draw(st.lists(numbers, min_size=1, max_size=3))
