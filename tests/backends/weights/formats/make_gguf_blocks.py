"""Writes gguf_blocks.safetensors: the sample numbers in GGUF's formats, made by libgguf.

libgguf wraps ggml's own C code. It runs outside of the project's environment:

    python -m venv /tmp/makers && /tmp/makers/bin/pip install libgguf==0.2.2 safetensors
    /tmp/makers/bin/python tests/backends/weights/formats/make_gguf_blocks.py

The tensors are the blocks by the type's name, uint8 [rows, bytes of a row]. The metadata has the
SHA-256 of the float32 numbers that libgguf decodes from them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import libgguf
import numpy as np
from safetensors.numpy import save_file
from sample_numbers import make_numbers

FILE = Path(__file__).with_name("gguf_blocks.safetensors")
KINDS = [
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
]


def main() -> None:
    numbers = make_numbers()
    tensors, digests = {}, {}
    for name in KINDS:
        kind = int(libgguf.GGMLQuantizationType[name])
        blocks = np.asarray(libgguf.quantize_rows(numbers, kind)).view(np.uint8)
        decoded = np.asarray(libgguf.dequantize_rows(blocks, kind, numbers.shape[1]))
        tensors[name] = blocks.reshape(len(numbers), -1)
        digests[name] = hashlib.sha256(decoded.astype(np.float32).tobytes()).hexdigest()
    save_file(tensors, FILE, metadata=digests)


if __name__ == "__main__":
    main()
