"""Runs a hostile variant in the smallest engine or server that calls it, and says what comes of it.

Nothing here knows what should come of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.api.scripted import scripted_server
from tests.api.toy_process import toy_process, until
from tests.backends.media.readers import image_of, read, reader_for
from tests.core.host.test_routing import REQUEST, VIEWS
from tests.core.plugin_packages import Packages
from tests.core.shell.test_engine_shell import make_engine
from tokenmill.api.parsing.chosen_parsers import build_answer_parsers
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.plugin_info import HookStats, PluginInfo
from tokenmill.core.errors import ConfigError, EngineStoppedError, TokenmillError
from tokenmill.core.host.routing import build_router
from tokenmill.core.interfaces import ChatFormat
from tokenmill.core.log import event_fields
from tokenmill.core.requests.grammar import Grammar, GrammarKind
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.testing.simulated.drafting import DraftingSettings
from tokenmill.testing.simulated.executor import SimulatedExecutor, expected_tokens

from .computing import COMPUTING
from .places import NAME, Place
from .serving import ROUTE_PATH, SERVING
from .variants import ACTS, FAULTS, Outcome, Variant

PATIENCE = 60.0
SEED, LENGTH = 7, 12
PROMPTS = [[10 + i, 20, 30, 40] for i in range(6)]
TOLD = f"'{NAME}'"
"""How messages name the plugin."""
CHAT = {
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "clock"}}],
}


class Unexpected(AssertionError):
    """What came of a variant is none of the outcomes."""


def observe(variant: Variant, packages: Packages) -> Outcome:
    """Install the variant, let an engine or a server call it, and return what comes of it."""
    act = ACTS.get(variant.act) or once(FAULTS[variant.act], packages.folder)
    if not (packages.folder / f"{NAME}-1.0.dist-info").exists():
        packages.install(NAME, "")
        packages.write_settings(f"[plugins]\nenable = ['{NAME}']\n")
    packages.replace(NAME, variant.place.plugin(act))
    if variant.act in FAULTS:
        return asyncio.run(_in_a_process(variant.place))
    if variant.where in SERVING:
        return _in_the_server(variant.where, variant.place)
    make = _tiny_engine if variant.where in COMPUTING else _toy_engine
    return asyncio.run(_in_an_engine(make(variant.place), variant.where in COMPUTING))


def once(fault: str, folder: Path) -> str:
    """Code that does something only when it is called first, in whatever process."""
    armed = folder / "armed"
    armed.touch()
    return f"if os.path.exists({str(armed)!r}):\n        os.remove({str(armed)!r})\n        {fault}"


# In an engine


def _toy_engine(place: Place) -> EngineShell:
    drafts = "speculative_method" in place.options
    drafting = DraftingSettings.like_ngram(2) if drafts else None
    return make_engine(
        SimulatedExecutor(num_blocks=12, block_size=4, drafting=drafting), **place.options
    )


def _tiny_engine(place: Place) -> EngineShell:
    from tokenmill.assembly import AsyncEngine

    drafts = place.kind == "speculative_method"
    return AsyncEngine(
        str(_tiny_model(NAME if place.kind == "weight_format" else "")),
        disable_log_stats=True,
        device="cpu",
        num_gpu_blocks_override=32,
        draft_length="fixed" if drafts else None,
        **place.options,
    )


@cache
def _tiny_model(quant_method: str) -> Path:
    import atexit
    import shutil
    import tempfile

    from tests.backends.tiny_checkpoints import TARGET, write_model

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = write_model(folder / "tiny", TARGET, SEED)
    fields = json.loads((path / "config.json").read_text()) | {"eos_token_id": 3}
    if quant_method:
        fields["quantization_config"] = {"quant_method": quant_method}
    (path / "config.json").write_text(json.dumps(fields))
    return path


async def _in_an_engine(engine: EngineShell, computes: bool) -> Outcome:
    with logged() as log:
        try:
            await asyncio.wait_for(engine.start(), PATIENCE)
        except ConfigError as error:
            return _refused(error)
        asking = (_ask(engine, prompt, computes) for prompt in PROMPTS)
        errors = await asyncio.wait_for(asyncio.gather(*asking), PATIENCE)
        engine.render_metrics()
        plugins, stats = engine.plugins(), engine.hook_stats()
        await asyncio.wait_for(engine.close(), PATIENCE)
    return _judge([one for one in errors if one is not None], plugins, stats, log)


async def _ask(engine: EngineShell, prompt: Sequence[int], computes: bool) -> TokenmillError | None:
    """The error of a request, or None if its answer is right."""
    params = SamplingParams(max_tokens=LENGTH, seed=SEED)
    if computes:
        needed = "grammar_backend", "logits_processor"
        kinds = [kind for kind in needed if _offers(engine, kind)]
        grammar = Grammar(kind=GrammarKind.CHOICE, text='["a", "b"]')
        params = SamplingParams(
            max_tokens=LENGTH,
            temperature=0,
            grammar=grammar if "grammar_backend" in kinds else None,
            extra_args={NAME: 1} if "logits_processor" in kinds else None,
        )
    try:
        outputs = [output async for output in engine.generate(prompt, params)]
    except TokenmillError as error:
        return error
    found = outputs[-1].outputs[0].token_ids
    if not computes and list(found) != expected_tokens(prompt, LENGTH, SEED, 1000):
        raise Unexpected(f"{prompt} was answered with {found}")
    return None


def _offers(engine: EngineShell, kind: str) -> bool:
    return any(f"{kind}:{NAME}" in plugin.provides for plugin in engine.plugins())


def _refused(error: Exception) -> Outcome:
    if TOLD not in str(error):
        raise Unexpected(f"the refusal does not name the plugin: {error}") from error
    return Outcome.REFUSED


def _judge(
    errors: Sequence[TokenmillError],
    plugins: Sequence[PluginInfo],
    stats: Sequence[HookStats],
    log: Sequence[str],
) -> Outcome:
    counted = sum(one.failures for one in plugins if one.name == NAME)
    by_hook = sum(one.failures for one in stats if one.plugin == NAME)
    if counted != by_hook:
        raise Unexpected(f"{counted} failures of the plugin, {by_hook} of its hooks")
    if not errors:
        return Outcome.CONTAINED if counted else Outcome.HARMLESS
    if not counted and not any(NAME in line for line in log):
        raise Unexpected(f"nothing names the plugin: {errors}")
    is_stopped = any(isinstance(error, EngineStoppedError) for error in errors)
    return Outcome.STOPPED if is_stopped else Outcome.FAILS


@contextmanager
def logged() -> Iterator[list[str]]:
    """The events that tokenmill logs, as text with all fields."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.msg} {event_fields(record)}")

    logger, handler = logging.getLogger("tokenmill"), Handler()
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


# In the server's process


def _in_the_server(where: str, place: Place) -> Outcome:
    if place.kind == "router":
        return _in_a_router(place)
    if place.kind == "media_processor":
        return _in_a_reader(place)
    if where == "parser reasons":
        try:
            build_answer_parsers(EngineConfig(**place.options), ChatFormat(source="", variables=()))
        except ConfigError as error:
            return _refused(error)
        return Outcome.HARMLESS
    with scripted_server(**place.options) as (served, model), served.client() as http:
        model.says = "It is late."
        answer = http.post("/v1/chat/completions", json=CHAT)
        if fails := answer.status_code == 500:
            if NAME not in answer.json()["error"]["message"]:
                raise Unexpected(f"nothing names the plugin: {answer.text}")
        elif (text := answer.json()["choices"][0]["message"]["content"]) != model.says:
            raise Unexpected(f"the answer was {text!r}")
        if place.kind == "route":
            text = http.get(ROUTE_PATH).text
            if (fails := '"error"' in text) and NAME not in text:
                raise Unexpected(f"nothing names the plugin: {text}")
        found = http.get("/plugins").json()
    [plugin] = [one for one in found["plugins"] if one["name"] == NAME]
    hooks = [one["failures"] for one in found["hooks"] if one["plugin"] == NAME]
    if sum(hooks) != plugin["failures"]:
        raise Unexpected(f"{plugin['failures']} failures of the plugin, {hooks} of its hooks")
    if fails and plugin["failures"]:
        return Outcome.FAILS
    return Outcome.CONTAINED if plugin["failures"] else Outcome.HARMLESS


def _in_a_router(place: Place) -> Outcome:
    router = build_router(EngineConfig(**place.options))
    for _ in range(6):
        if router.route(REQUEST, VIEWS) not in (0, 1):
            raise Unexpected("no replica was chosen")
        router.forget(0)
    failures = sum(one.failures for one in router.hook_stats() if one.plugin == NAME)
    return Outcome.CONTAINED if failures else Outcome.HARMLESS


def _in_a_reader(place: Place) -> Outcome:
    with TemporaryDirectory() as folder, logged() as log:
        try:
            reader = reader_for(Path(folder), {}, **place.options)
        except ConfigError as error:
            return _refused(error)
        [found] = read(reader, image_of(1))
        reader.close()
    if not isinstance(found, TokenmillError):
        return Outcome.HARMLESS
    if not any(NAME in line for line in log):
        raise Unexpected(f"nothing names the plugin: {found}")
    return Outcome.FAILS


# In an engine's process


async def _in_a_process(place: Place) -> Outcome:
    with logged() as log:
        async with toy_process(stall_timeout=0.5, **place.options) as engine:
            first = await _until_lost(engine)
            async for _ in engine.generate(PROMPTS[0], SamplingParams(max_tokens=2)):
                pass
            await engine.refresh()
            [plugin] = [one for one in engine.plugins() if one.name == NAME]
            [supervisor] = engine.running.replicas.supervisors
            num_restarts = supervisor.num_restarts
    lost = [line for line in log if line.startswith("engine_lost")]
    if num_restarts != 1 or len(lost) != 1 or f"{place.hook!r}" not in lost[0]:
        raise Unexpected(f"{num_restarts} restarts, {lost}, {first}")
    if TOLD not in lost[0] or not plugin.failures:
        raise Unexpected(f"nothing names the plugin: {lost}, {plugin}")
    return Outcome.LOST


async def _until_lost(engine: Any) -> Exception | None:
    """Ask until the engine is lost, and wait for another one. Returns the request's error."""
    error: Exception | None = None
    try:
        async for _ in engine.generate(PROMPTS[1], SamplingParams(max_tokens=2)):
            pass
        await engine.refresh()
    except TokenmillError as found:
        error = found
    [supervisor] = engine.running.replicas.supervisors
    back = until(lambda: supervisor.num_restarts and engine.running.replicas.serving())
    await asyncio.wait_for(back, PATIENCE)
    return error
