"""Writes GGUF files with random weights in the shapes of other models, for compare.py --models.

python benchmarks/cpu/peers/make_shapes.py --help

The bfloat16 file is tokenmill's; llama.cpp's own llama-quantize makes the others of it, so that
they mix formats as published files do. It needs llama.cpp, which make_peers.py builds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from gguf import GGMLQuantizationType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from make_peers import say
from random_models import SHAPES, write_gguf

HERE = Path(__file__).parent
KINDS = ("Q4_K_M", "Q6_K", "Q8_0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, default=HERE / ".peers", help="folder of the peers")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.6B"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    for shape in args.shapes:
        source = args.peers / f"{shape}-bf16.gguf"
        if not source.exists():
            say(f"{source.name} with random weights")
            write_gguf(source, SHAPES[shape], GGMLQuantizationType.BF16, seed=0)
        for kind in args.kinds:
            quantize(args.peers, source, kind)


def quantize(peers: Path, source: Path, kind: str) -> None:
    """Make a file of another kind with llama.cpp's tool."""
    made = source.with_name(source.name.replace("bf16", kind))
    if made.exists():
        return
    say(made.name)
    tool = peers / "llama.cpp" / "bin" / "llama-quantize"
    subprocess.run([tool, source, made, kind], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
