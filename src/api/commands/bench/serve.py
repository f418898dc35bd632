"""`tokenmill bench serve`: sends requests to a server, and reports their times."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....core.errors import ConfigError
from ..flags.keys import ADMIN_VARIABLE
from ..progress import ProgressDisplay
from ..running.trace import describe_trace
from .saving import save_text
from .serve_flags import SENT_AS_IS, add_flags

if TYPE_CHECKING:
    from ....bench.client import Server
    from ....bench.profiling import Profile
    from ....bench.prompts import Dataset
    from ....bench.reports.figures import Wishes
    from ....bench.running import Load, Run


def add_serve_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "serve",
        help="send requests to a server, and report their times",
        description="Send requests to a server with an OpenAI-compatible API, at the times that "
        "--request-rate says, whether it keeps up or not.",
        examples=(
            "tokenmill bench serve --request-rate 4 --goodput ttft:500 tpot:50",
            "tokenmill bench serve --max-concurrency 8 --save-result --save-detailed",
            "tokenmill bench serve --dataset-name sharegpt --dataset-path chats.json",
            "tokenmill bench serve --num-prompts 20 --profile --admin-key KEY",
        ),
    )
    add_flags(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ....bench.reports.figures import DETAILS, describe
    from ....bench.reports.report import lines

    wishes = _wishes(args)
    model, run, profile = asyncio.run(_measure(args))
    result = _head(args, model) | describe(run, wishes)
    for line in lines(result, wishes):
        print(line)
    for answer in [answer for answer in run.answers if not answer.is_ok][:3]:
        print(f"failed: {answer.error}")
    if args.html is not None:
        from ....bench.reports.page import serve_page

        save_text(args.html, serve_page(result))
    if not args.save_detailed:
        result = {name: value for name, value in result.items() if name not in DETAILS}
    path = args.result_dir / (args.result_filename or _file_name(args, model))
    if args.save_result:
        save_text(path, json.dumps(result) + "\n")
        print(f"saved to {path}")
    if profile is not None:
        _save_profile(profile, path.with_suffix(".trace.json"))
    return 0 if result["completed"] and not (profile and profile.error) else 1


def _save_profile(profile: Profile, path: Path) -> None:
    """Write the trace of the server, or say where the profile is."""
    from msgspec import DecodeError

    if profile.error:
        print(f"failed: --profile: {profile.error}")
        return
    try:
        line = describe_trace(path, profile.answer)
    except DecodeError:  # not tokenmill
        print("profile: the server keeps it")
    else:
        save_text(path, profile.answer.decode())
        print(f"profile: {line}")


async def _measure(args: argparse.Namespace) -> tuple[str, Run, Profile | None]:
    """Return the model's name, the measured run and its profile."""
    from ....bench.client import Server
    from ....bench.endpoints import ENDPOINTS
    from ....bench.profiling import Profile
    from ....bench.running import Load, run
    from ....bench.vocabulary import vocabulary_of

    dataset = _dataset(args)
    server = Server(
        url=args.base_url or f"http://{args.host}:{args.port}",
        headers=_headers(args),
        is_insecure=args.insecure,
    )
    model = args.served_model_name or args.model or await _first_model(server)
    vocabulary, is_exact = await vocabulary_of(server, model)
    if not is_exact:
        print("The server counts no tokens (POST /tokenize): a word of a prompt counts as one.")
    prompts = dataset.prompts(vocabulary)
    times = _times(args, [prompt.at for prompt in prompts])
    endpoint = ENDPOINTS[args.backend]()
    load = Load(
        server=server,
        endpoint=endpoint,
        path=args.endpoint or endpoint.path,
        extra={"model": model, **_fields(args)},
        max_concurrency=args.max_concurrency,
        request_id_prefix=args.request_id_prefix,
    )
    await _get_ready(args, load, prompts[0])
    warmups = [replace(prompts[i % len(prompts)], after=None) for i in range(args.num_warmups)]
    if warmups:
        await run(load, warmups, [0.0] * len(warmups))
    key = args.admin_key or os.environ.get(ADMIN_VARIABLE)
    profile = Profile(server=server, admin_key=key) if args.profile else None
    done = 0
    with ProgressDisplay() as progress:

        def on_answer() -> None:
            nonlocal done
            done += 1
            if not args.disable_tqdm:
                progress("answers", done / len(prompts))

        async with profile or nullcontext():
            measured = await run(load, prompts, times, on_answer)
    await server.close()
    return model, measured, profile


async def _first_model(server: Server) -> str:
    from ....bench.client import ServerError

    found = await server.get_json("/v1/models")
    try:
        name: str = found["data"][0]["id"]
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"{server.url}/v1/models lists no model: name it with --model") from None
    return name


async def _get_ready(args: argparse.Namespace, load: Load, prompt: Any) -> None:
    """Repeat one request until it is answered, for at most --ready-check-timeout-sec."""
    from ....bench.client import ServerError
    from ....bench.running import send

    loop = asyncio.get_running_loop()
    end = loop.time() + args.ready_check_timeout_sec
    while args.ready_check_timeout_sec:
        answer = await send(load, prompt)
        if answer.is_ok:
            return
        if loop.time() > end:
            raise ServerError(f"the first request failed: {answer.error}")
        await asyncio.sleep(1.0)


def _dataset(args: argparse.Namespace) -> Dataset:
    from ....bench.prompts import TRACE_FIELDS, Dataset

    repeats = args.dataset_name == "prefix_repetition"
    if args.num_prompts < 1:
        raise ConfigError(f"--num-prompts must be at least 1, got {args.num_prompts}")
    if args.dataset_name == "multi_turn" and args.backend != "openai-chat":
        raise ConfigError("--dataset-name multi_turn needs --backend openai-chat")
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio must be in [0, 1), got {args.random_range_ratio}")
    return Dataset(
        name=args.dataset_name,
        path=args.dataset_path,
        num_prompts=args.num_prompts,
        seed=args.seed,
        input_len=args.input_len or (256 if repeats else 1024),
        output_len=args.output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=(256 if repeats else 0) if args.prefix_len is None else args.prefix_len,
        num_prefixes=args.prefix_repetition_num_prefixes,
        shuffles=not args.disable_shuffle,
        oversamples=not args.no_oversample,
        sec_multiplier=args.timed_trace_sec_multiplier,
        chunk_hash_size=args.timed_trace_chunk_hash_size,
        trace_fields={name: getattr(args, f"timed_trace_label_{name}") for name in TRACE_FIELDS},
    )


def _times(args: argparse.Namespace, of_trace: list[float | None]) -> Any:
    from ....bench.arrivals import Traffic

    known = [at for at in of_trace if at is not None]
    if len(known) == len(of_trace) and args.self_timed is not False:
        return known
    if args.request_rate <= 0 or args.burstiness <= 0:
        raise ConfigError("--request-rate and --burstiness must be positive")
    if args.ramp_up_strategy is not None:
        if not math.isinf(args.request_rate):
            raise ConfigError("give --request-rate or --ramp-up-strategy, not both")
        if min(args.ramp_up_start_rps or 0, args.ramp_up_end_rps or 0) <= 0:
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    traffic = Traffic(
        rate=args.request_rate,
        burstiness=args.burstiness,
        ramp=args.ramp_up_strategy,
        ramp_start=args.ramp_up_start_rps or 0.0,
        ramp_end=args.ramp_up_end_rps or 0.0,
    )
    return traffic.times(len(of_trace), args.seed)


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    if args.backend == "openai-embeddings":
        return dict(args.extra_body)
    fields = {name: getattr(args, name) for name in SENT_AS_IS}
    fields["chat_template_kwargs"] = args.chat_template_kwargs
    if args.logprobs is not None:
        chat = {"logprobs": True, "top_logprobs": args.logprobs}
        fields |= chat if args.backend == "openai-chat" else {"logprobs": args.logprobs}
    if args.ignore_eos:
        fields["ignore_eos"] = True
    chosen = {name: value for name, value in fields.items() if value is not None}
    return {**chosen, **args.extra_body}


def _headers(args: argparse.Namespace) -> dict[str, str]:
    headers = {}
    if (key := os.environ.get("OPENAI_API_KEY")) is not None:
        headers["Authorization"] = f"Bearer {key}"
    for given in args.header:
        name, separator, value = given.partition("=")
        if not separator:
            raise ConfigError(f"--header must be NAME=VALUE, got {given!r}")
        headers[name.strip()] = value.strip()
    return headers


def _wishes(args: argparse.Namespace) -> Wishes:
    from ....bench.reports.figures import METRICS, Wishes, parse_limits

    metrics = (args.percentile_metrics or "ttft,tpot,itl").split(",")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise ConfigError(f"--percentile-metrics: unknown {unknown[0]!r}; known: {[*METRICS]}")
    try:
        percentiles = [float(one) for one in args.metric_percentiles.split(",")]
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles must be numbers: {error}") from error
    if not all(0 <= one <= 100 for one in percentiles):
        raise ConfigError("--metric-percentiles must be from 0 to 100")
    return Wishes(
        metrics=metrics,
        percentiles=percentiles,
        goodput=parse_limits(args.goodput, ("ttft", "tpot", "e2el")),
        generates=args.backend != "openai-embeddings",
    )


def _head(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """The fields that describe the run."""
    head: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": args.backend,
        "backend": args.backend,
        "label": args.label,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": args.num_prompts,
    }
    for given in args.metadata:
        key, separator, value = given.partition("=")
        if not separator:
            raise ConfigError(f"--metadata must be KEY=VALUE, got {given!r}")
        head[key.strip()] = value.strip()
    rate, dataset = args.request_rate, _dataset(args)
    head |= {
        "dataset_name": dataset.name,
        "dataset_path": None if dataset.path is None else str(dataset.path),
        "input_len": dataset.input_len,
        "output_len": dataset.output_len,
        "prefix_len": dataset.prefix_len,
        "random_range_ratio": dataset.range_ratio,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
    }
    if args.ramp_up_strategy is not None:
        for name in ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"):
            head[name] = getattr(args, name)
    return head


def _file_name(args: argparse.Namespace, model: str) -> str:
    rate = "inf" if math.isinf(args.request_rate) else f"{args.request_rate:g}"
    limit = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{args.label or args.backend}-{rate}qps{limit}-{model.split('/')[-1]}-{now}.json"
