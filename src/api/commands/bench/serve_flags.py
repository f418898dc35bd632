"""The flags of `tokenmill bench serve`, which are those of `vllm bench serve`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..flags.groups import add_numbers
from ..flags.keys import ADMIN_VARIABLE
from .refused import SERVE, SERVE_WITHOUT_EFFECT, add_refused
from .saving import add_html_flag

SENT_AS_IS = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    "repetition_penalty",
)
"""Sampling parameters that are flags, and fields of the bodies."""


ALIASES = {
    "input_len": ("--input-tokens", "--random-input-len", "--prefix-repetition-suffix-len"),
    "output_len": (
        *("--output-tokens", "--random-output-len", "--sharegpt-output-len"),
        *("--custom-output-len", "--prefix-repetition-output-len"),
    ),
    "prefix_len": ("--random-prefix-len", "--prefix-repetition-prefix-len"),
}
"""Other names of flags, by field: vLLM has one for each dataset."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    _add_server_flags(parser)
    _add_dataset_flags(parser)
    _add_traffic_flags(parser)
    _add_body_flags(parser)
    _add_result_flags(parser)
    add_refused(parser, SERVE, SERVE_WITHOUT_EFFECT)


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--backend",
        default="openai",
        choices=["openai", "vllm", "openai-chat", "openai-embeddings"],
        help="API of the server: completions, chat or embeddings",
    )
    group.add_argument("--base-url", metavar="URL", help="server; default: --host and --port")
    group.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="host of the server")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="port of the server")
    group.add_argument("--endpoint", metavar="PATH", help="path of the API; default: its own")
    group.add_argument(
        "--header", nargs="*", default=[], metavar="KEY=VALUE", help="headers of every request"
    )
    group.add_argument("--model", metavar="NAME", help="model; default: the server's first one")
    group.add_argument("--served-model-name", metavar="NAME", help="its name in the API")
    group.add_argument("--insecure", action="store_true", help="do not check certificates")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=float,
        default=0,
        metavar="SECONDS",
        help="wait so long for a first answer; 0: send no request before the others",
    )


def _add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    from ....bench.prompts import DATASETS, TRACE_FIELDS, Dataset

    group = parser.add_argument_group("requests")
    default = Dataset()
    group.add_argument(
        "--dataset-name",
        default="random",
        choices=[*DATASETS],
        metavar="NAME",
        help=f"kind: {', '.join(sorted(DATASETS))}",
    )
    group.add_argument("--dataset-path", type=Path, metavar="PATH", help="file of the dataset")
    add_numbers(
        group,
        ("--num-prompts", default.num_prompts, "requests"),
        ("--seed", 0, "seed of all choices"),
        (
            *("--input-len", int),
            "tokens of a random prompt, or after its prefix; default: 1024, after prefixes 256",
        ),
        (
            *("--output-len", int),
            "tokens of an answer; default: what the dataset says, or 128; -1 in a custom file: "
            "its output_tokens",
        ),
        ("--random-range-ratio", 0.0, "random lengths vary by this part"),
        (
            *("--prefix-len", int),
            "tokens of a prefix that prompts share; default: 0, or 256 in prefix_repetition",
        ),
        ("--prefix-repetition-num-prefixes", 10, "prefixes"),
    )
    for name, aliases in ALIASES.items():
        group.add_argument(*aliases, dest=name, type=int, metavar="N", help=argparse.SUPPRESS)
    group.add_argument("--disable-shuffle", action="store_true", help="keep the dataset's order")
    group.add_argument("--no-oversample", action="store_true", help="never repeat a request")
    add_numbers(
        group,
        (
            *("--timed-trace-sec-multiplier", 1.0),
            "seconds per unit of the trace's timestamps: 0.001 for milliseconds",
        ),
        (
            "--timed-trace-chunk-hash-size",
            16,
            "tokens per hash id of the trace: 512 for Mooncake's",
        ),
    )
    for name in TRACE_FIELDS:
        group.add_argument(
            f"--timed-trace-label-{name.replace('_', '-')}",
            default=name,
            metavar="NAME",
            help=f"the trace's name of the field {name}",
        )


def _add_traffic_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    add_numbers(
        group,
        ("--request-rate", math.inf, "requests per second; inf: all at once"),
        ("--burstiness", 1.0, "1: a Poisson process; less: more bursts; inf: equal intervals"),
        ("--max-concurrency", int, "maximum number of requests in flight"),
    )
    group.add_argument(
        "--ramp-up-strategy", choices=["linear", "exponential"], help="how the rate changes"
    )
    add_numbers(
        group,
        ("--ramp-up-start-rps", float, "requests per second at first"),
        ("--ramp-up-end-rps", float, "requests per second at last"),
    )
    group.add_argument(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        help="send requests at the times of the trace; default: if it has them",
    )
    add_numbers(group, ("--num-warmups", 0, "requests before the measurement"))


def _add_body_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fields of the requests")
    for name in SENT_AS_IS:
        kind = int if name == "top_k" else float
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar="N", help=f"the field {name}")
    group.add_argument("--ignore-eos", action="store_true", help="answers have all their tokens")
    group.add_argument("--logprobs", type=int, metavar="N", help="log-probabilities per token")
    group.add_argument("--extra-body", type=_json, default={}, metavar="JSON", help="more fields")
    group.add_argument(
        "--chat-template-kwargs", type=_json, metavar="JSON", help="the field of this name"
    )
    group.add_argument(
        "--request-id-prefix", default="bench-", metavar="TEXT", help="beginning of X-Request-Id"
    )


def _add_result_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument(
        "--percentile-metrics",
        metavar="LIST",
        help="figures to report; default: ttft,tpot,itl; also e2el",
    )
    group.add_argument("--metric-percentiles", default="99", metavar="LIST", help="percentiles")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count requests within these limits: ttft, tpot or e2el, in milliseconds",
    )
    group.add_argument("--save-result", action="store_true", help="write the figures to a file")
    group.add_argument(
        "--save-detailed", action="store_true", help="also the times and texts of each request"
    )
    group.add_argument(
        "--result-dir", type=Path, default=Path(), metavar="PATH", help="folder of this file"
    )
    group.add_argument("--result-filename", metavar="NAME", help="name of this file")
    group.add_argument("--label", metavar="TEXT", help="name of this run in the file")
    group.add_argument(
        "--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="further fields of the file"
    )
    add_html_flag(group)
    group.add_argument(
        "--profile",
        action="store_true",
        help="trace the measured requests, for Perfetto: the server needs an admin key",
    )
    group.add_argument(
        "--admin-key",
        metavar="KEY",
        help=f"the server's admin key, for --profile (default: ${ADMIN_VARIABLE})",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return found
