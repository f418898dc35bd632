"""Options of `vllm bench` that are understood, and refused with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

_IMAGES = "tokenmill takes text only"
_HUB = "datasets of the Hugging Face hub are not downloaded: use a file, with --dataset-path"
_RANDOM = "prompts are random: `tokenmill bench serve` reads datasets"
_TEXTS = "texts are part of every answer"
_PLOTS = "use --html, or --save-result --save-detailed with a plotting tool"
_PROFILE = "run `tokenmill trace` against a server"
_NO_BEAMS = "there is no beam search"

SERVE: Mapping[str, str] = {
    "--use-beam-search": _NO_BEAMS,
    "--lora-modules": "one model is measured: name it with --model",
    "--lora-assignment": "one model is measured: name it with --model",
    "--probe-request-rate": "start a second `bench serve` with this --request-rate beside this one",
    "--plot-timeline": _PLOTS,
    "--timeline-itl-thresholds": _PLOTS,
    "--plot-dataset-stats": _PLOTS,
    "--profiler-config": "--profile needs none: the server's step log is the profile",
    "--append-result": "use --save-result with a --result-filename of its own for each run",
    "--no-stream": "only streamed answers have times per token",
    "--enable-multimodal-chat": _IMAGES,
    "--no-reranker": "rerankers are not measured",
    "--random-batch-size": "one text per request is embedded",
    **dict.fromkeys(
        (
            *("--hf-subset", "--hf-split", "--hf-name", "--hf-output-len", "--bfcl-categories"),
            *("--spec-bench-output-len", "--spec-bench-category", "--blazedit-min-distance"),
            *("--blazedit-max-distance", "--speed-bench-dataset-subset"),
            *("--speed-bench-output-len", "--speed-bench-category"),
        ),
        _HUB,
    ),
    **dict.fromkeys(
        (
            *("--asr-max-audio-len-sec", "--asr-min-audio-len-sec"),
            *("--random-mm-base-items-per-request", "--random-mm-num-mm-items-range-ratio"),
            *("--random-mm-limit-mm-per-prompt", "--random-mm-bucket-config"),
        ),
        _IMAGES,
    ),
}
THROUGHPUT: Mapping[str, str] = {
    "--profile": _PROFILE,
    "--disable-detokenize": _TEXTS,
    "--lora-path": "one model is measured: name it as the model",
    "--lora-assignment": "one model is measured: name it as the model",
    "--prequeue-requests": "requests are planned as they are queued",
    "--enable-log-requests": "there is no server that logs them",
    "--no-enable-log-requests": "there is no server that logs them",
    "--no-reranker": SERVE["--no-reranker"],
    "--random-batch-size": SERVE["--random-batch-size"],
    "--enable-multimodal-chat": _IMAGES,
    **dict.fromkeys(
        (
            *("--dataset-path", "--no-oversample", "--custom-output-len", "--random-range-ratio"),
            *("--prefix-len", "--random-prefix-len", "--prefix-repetition-num-prefixes"),
            *("--prefix-repetition-output-len", "--prefix-repetition-prefix-len"),
            *("--prefix-repetition-suffix-len", "--hf-subset", "--hf-split", "--hf-name"),
        ),
        _RANDOM,
    ),
    **{
        flag: reason
        for flag, reason in SERVE.items()
        if flag.startswith(("--asr-", "--random-mm-"))
    },
    **dict.fromkeys(
        ("--hf-enable-torch-compile", "--hf-max-batch-size"), "transformers is not measured"
    ),
}
LATENCY: Mapping[str, str] = {
    "--profile": _PROFILE,
    "--disable-detokenize": _TEXTS,
    "--use-beam-search": _NO_BEAMS,
}
SERVE_WITHOUT_EFFECT = (
    *("--tokenizer", "--tokenizer-mode", "--trust-remote-code", "--skip-tokenizer-init"),
    *("--skip-chat-template", "--custom-ensure-client-side-data"),
)
"""vLLM's client loads a tokenizer and formats chats. Here the server does both."""


class Refusing(argparse.Action):
    """Ends the command with the reason, which is the option's `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{self.option_strings[0]}: {self.const}")


def add_refused(
    parser: argparse.ArgumentParser, refused: Mapping[str, str], without_effect: Sequence[str] = ()
) -> None:
    """Add the options, without lines in the help."""
    for flag, reason in refused.items():
        parser.add_argument(
            flag, action=Refusing, const=reason, nargs="*", metavar="TEXT", help=argparse.SUPPRESS
        )
    for flag in without_effect:
        parser.add_argument(flag, nargs="?", metavar="TEXT", help=argparse.SUPPRESS)
