"""GGUF files that lie: one field of a valid file changed, or headers made up from nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gguf import GGML_QUANT_SIZES
from hypothesis import strategies as st

from tokenmill.backends.weights.gguf.file import GGUFFile

STRING, ARRAY, UINT32, FLOAT32, BOOL = 8, 9, 4, 6, 7
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ALIGNMENT = 32
NUMBERS = [
    0,
    1,
    2,
    3,
    31,
    48,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
]
"""Numbers at which a reader may go wrong."""
TEXTS = [
    b"",
    b"\xff\xfe",
    b"a\nb",
    b"x" * 5000,
    "ä€😀".encode(),
    b"\x00",
    b"llama",
    b"qwen3",
    b"gpt2",
]
KEYS = [
    b"",
    b"a\nb",
    b"k" * 300,
    b"general.alignment",
    b"general.architecture",
    b"llama.block_count",
    b"llama.rope.scaling.type",
    b"llama.expert_count",
    b"split.count",
    b"split.no",
    b"tokenizer.ggml.tokens",
    b"tokenizer.ggml.eos_token_id",
    b"general.sampling.temp",
]
TENSORS = [
    b"",
    b"two\nlines",
    b"n" * 300,
    b"output.weight",
    b"rope_freqs.weight",
    b"token_embd.weight",
    b"model.embed_tokens.weight",
    b"blk.0.attn_q.weight",
    b"blk.999999999999.attn_q.weight",
    b"blk.0.attn_q.bias",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the metadata as its bytes, after the type number."""

    kind: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A row of the table of tensors, as it is stated."""

    name: bytes
    dims: tuple[int, ...]
    kind: int
    offset: int
    num_dims: int | None = None
    """What the file states; None: the truth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A GGUF file, field by field."""

    entries: tuple[tuple[bytes, Value], ...] = ()
    tensors: tuple[Tensor, ...] = ()
    data: bytes = field(default=b"", repr=False)
    version: int = 3
    num_entries: int | None = None
    """What the file states; None: the truth."""
    num_tensors: int | None = None


def layout_of(file: GGUFFile, content: bytes) -> Layout:
    """Take a valid file apart."""
    start = min(tensor.offset for tensor in file.tensors.values())
    return Layout(
        entries=tuple((key.encode(), value(found)) for key, found in file.metadata.items()),
        tensors=tuple(
            Tensor(
                name=name.encode(),
                dims=tuple(reversed(tensor.shape)),
                kind=tensor.kind.value,
                offset=tensor.offset - start,
            )
            for name, tensor in file.tensors.items()
        ),
        data=content[start:],
    )


def value(found: Any) -> Value:
    """The value in the type that llama.cpp's converter would choose."""
    if isinstance(found, list):
        items = [value(item) for item in found]
        head = struct.pack("<IQ", items[0].kind, len(items))
        return Value(kind=ARRAY, content=head + b"".join(item.content for item in items))
    if isinstance(found, str):
        return Value(kind=STRING, content=text(found.encode()))
    if isinstance(found, bool):
        return Value(kind=BOOL, content=struct.pack("<?", found))
    code, kind = ("f", FLOAT32) if isinstance(found, float) else ("I", UINT32)
    return Value(kind=kind, content=struct.pack(f"<{code}", found))


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def serialize(layout: Layout) -> bytes:
    """The file's bytes; the data begin at the default alignment."""
    stated = [
        len(layout.tensors) if layout.num_tensors is None else layout.num_tensors,
        len(layout.entries) if layout.num_entries is None else layout.num_entries,
    ]
    parts = [b"GGUF", struct.pack("<IQQ", layout.version, *stated)]
    for key, found in layout.entries:
        parts += [text(key), struct.pack("<I", found.kind), found.content]
    for tensor in layout.tensors:
        num_dims = len(tensor.dims) if tensor.num_dims is None else tensor.num_dims
        parts += [text(tensor.name), struct.pack("<I", num_dims)]
        parts += [struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)]
        parts += [struct.pack("<IQ", tensor.kind, tensor.offset)]
    header = b"".join(parts)
    return header + bytes(-len(header) % _ALIGNMENT) + layout.data


numbers = st.sampled_from(NUMBERS) | st.integers(0, 2**64 - 1)
kinds = st.sampled_from([*GGML_QUANT_SIZES, 4, 5, 40, 99, 2**31])


@st.composite
def values(draw: st.DrawFn) -> Value:
    """A value of any type, true to its type, or with a length that is not."""
    kind = draw(st.sampled_from([*_CODES, STRING, ARRAY, 13, 2**32 - 1]))
    if kind == STRING:
        content = draw(st.sampled_from(TEXTS))
        return Value(
            kind=kind, content=struct.pack("<Q", draw(numbers | st.just(len(content)))) + content
        )
    if kind == ARRAY:
        inner = draw(st.sampled_from([*_CODES, STRING, ARRAY, 77]))
        body = draw(st.binary(max_size=64))
        return Value(
            kind=kind, content=struct.pack("<IQ", inner, draw(numbers | st.integers(0, 8))) + body
        )
    return Value(
        kind=kind,
        content=draw(st.binary(min_size=8, max_size=8))[: struct.calcsize(_CODES.get(kind, "Q"))],
    )


def _changed(rows: Sequence[Any], at: int, row: Any) -> tuple[Any, ...]:
    return (*rows[:at], row, *rows[at + 1 :])


def _change_entry(layout: Layout, draw: st.DrawFn) -> Layout:
    at = draw(st.integers(0, len(layout.entries) - 1))
    key, found = layout.entries[at]
    how = draw(st.sampled_from(["key", "value", "number", "twice", "gone"]))
    if how == "gone":
        return replace(layout, entries=layout.entries[:at] + layout.entries[at + 1 :])
    if how == "twice":
        return replace(layout, entries=(*layout.entries, (key, draw(values()))))
    if how == "key":
        return replace(
            layout, entries=_changed(layout.entries, at, (draw(st.sampled_from(KEYS)), found))
        )
    if how == "number" and found.kind in _CODES:
        code = _CODES[found.kind]
        content = (draw(numbers)).to_bytes(8, "little")[: struct.calcsize(code)]
        found = Value(kind=found.kind, content=content)
    else:
        found = draw(values())
    return replace(layout, entries=_changed(layout.entries, at, (key, found)))


def _add_entry(layout: Layout, draw: st.DrawFn) -> Layout:
    entry = (draw(st.sampled_from(KEYS)), draw(values()))
    return replace(layout, entries=(*layout.entries, entry))


def _change_tensor(layout: Layout, draw: st.DrawFn) -> Layout:
    at = draw(st.integers(0, len(layout.tensors) - 1))
    tensor = layout.tensors[at]
    how = draw(
        st.sampled_from(["name", "dims", "dim", "num_dims", "kind", "offset", "moved", "gone"])
    )
    if how == "gone":
        return replace(layout, tensors=layout.tensors[:at] + layout.tensors[at + 1 :])
    if how == "name":
        names = st.sampled_from([*TENSORS, *(other.name for other in layout.tensors)])
        tensor = replace(tensor, name=draw(names))
    elif how == "dims":
        tensor = replace(
            tensor, dims=tuple(draw(st.lists(numbers | st.integers(1, 64), max_size=5)))
        )
    elif how == "dim" and tensor.dims:
        dim = draw(st.integers(0, len(tensor.dims) - 1))
        near = [tensor.dims[dim] * 2, tensor.dims[dim] // 2, tensor.dims[dim] - 1]
        wanted = draw(numbers | st.sampled_from(near) | st.integers(1, 64))
        tensor = replace(tensor, dims=_changed(tensor.dims, dim, wanted))
    elif how == "num_dims":
        tensor = replace(tensor, num_dims=draw(st.sampled_from([0, 1, 3, 5, 2**32 - 1])))
    elif how == "kind":
        tensor = replace(tensor, kind=draw(kinds))
    elif how == "moved":
        tensor = replace(tensor, offset=draw(st.integers(0, len(layout.data) // 32)) * 32)
    else:
        tensor = replace(tensor, offset=draw(numbers))
    return replace(layout, tensors=_changed(layout.tensors, at, tensor))


def _add_tensor(layout: Layout, draw: st.DrawFn) -> Layout:
    tensor = Tensor(
        name=draw(st.sampled_from(TENSORS)),
        dims=tuple(draw(st.lists(st.integers(1, 64), min_size=1, max_size=4))),
        kind=draw(kinds),
        offset=len(layout.data),
    )
    return replace(layout, tensors=(*layout.tensors, tensor), data=layout.data + bytes(4096))


def _change_counts(layout: Layout, draw: st.DrawFn) -> Layout:
    field_name = draw(st.sampled_from(["num_tensors", "num_entries"]))
    return replace(layout, **{field_name: draw(numbers | st.integers(0, 60))})


_MUTATIONS: Sequence[Callable[[Layout, st.DrawFn], Layout]] = (
    _change_entry,
    _change_entry,
    _change_entry,
    _add_entry,
    _change_tensor,
    _change_tensor,
    _change_tensor,
    _add_tensor,
    _change_counts,
)


@st.composite
def mutated(draw: st.DrawFn, valid: Layout) -> bytes:
    """A valid file with one to three fields changed, or with damage anywhere in its bytes."""
    layout = valid
    for mutate in draw(st.lists(st.sampled_from(_MUTATIONS), min_size=1, max_size=3)):
        if layout.entries and layout.tensors:
            layout = mutate(layout, draw)
    content = bytearray(serialize(layout))
    if draw(st.integers(0, 9)) == 0:
        header = len(content) - len(layout.data)
        for _ in range(draw(st.integers(1, 3))):
            content[draw(st.integers(0, header))] = draw(st.integers(0, 255))
        content = content[: draw(st.integers(0, len(content)))]
    return bytes(content)


@st.composite
def made_up(draw: st.DrawFn) -> bytes:
    """A header of any fields: mostly wrong, and often in several ways."""
    entries = st.tuples(st.sampled_from(KEYS), values())
    tensors = st.builds(
        Tensor,
        name=st.sampled_from(TENSORS),
        dims=st.lists(numbers | st.integers(1, 64), max_size=5).map(tuple),
        kind=kinds,
        offset=numbers | st.integers(0, 8).map(lambda n: n * 32),
    )
    layout = Layout(
        entries=tuple(draw(st.lists(entries, max_size=4))),
        tensors=tuple(draw(st.lists(tensors, max_size=4))),
        data=bytes(draw(st.sampled_from([0, 31, 4096]))),
        version=draw(st.sampled_from([3, 3, 3, 3, 2, 1, 0, 0x03000000, 2**32 - 1])),
        num_entries=draw(st.none() | numbers),
        num_tensors=draw(st.none() | numbers),
    )
    return serialize(layout)
