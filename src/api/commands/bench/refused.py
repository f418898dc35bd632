"""Options of `vllm bench serve` that are understood, and refused with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

_IMAGES = "tokenmill takes text only"
_HUB = "datasets of the Hugging Face hub are not downloaded: use a file, with --dataset-path"
_PLOTS = "use --html, or --save-result --save-detailed with a plotting tool"

REFUSED: Mapping[str, str] = {
    "--use-beam-search": "servers have no beam search any more",
    "--lora-modules": "one model is measured: name it with --model",
    "--lora-assignment": "one model is measured: name it with --model",
    "--probe-request-rate": "start a second `bench serve` with this --request-rate beside this one",
    "--plot-timeline": _PLOTS,
    "--timeline-itl-thresholds": _PLOTS,
    "--plot-dataset-stats": _PLOTS,
    "--profile": "run `tokenmill trace` against the server meanwhile",
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
WITHOUT_EFFECT = (
    *("--tokenizer", "--tokenizer-mode", "--trust-remote-code", "--skip-tokenizer-init"),
    *("--skip-chat-template", "--custom-ensure-client-side-data"),
)
"""vLLM's client loads a tokenizer and formats chats. Here the server does both."""


class Refusing(argparse.Action):
    """Ends the command with the reason."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{self.option_strings[0]}: {REFUSED[self.option_strings[0]]}")


def add_refused(parser: argparse.ArgumentParser) -> None:
    """Add the options, without lines in the help."""
    for flag in REFUSED:
        parser.add_argument(
            flag, action=Refusing, nargs="*", metavar="TEXT", help=argparse.SUPPRESS
        )
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, nargs="?", metavar="TEXT", help=argparse.SUPPRESS)
