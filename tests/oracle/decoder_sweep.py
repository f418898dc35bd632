"""Judges how the engine treats one decoder class of transformers, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch

from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.backends.running.checking import model_check
from tokenmill.backends.running.checking.model_check import largest_error
from tokenmill.backends.weights.config.fields import one_line
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost

from . import toy
from .comparison import NEAR_TIE
from .reference import ReferenceCase, gap
from .settings import Setting
from .tiny_decoders import own_logits, tiny_model
from .wrong_models import load, measure

Verdict = Literal["runs", "refused", "not built", "wrong tokens", "wrong models pass", "fails"]
GOOD: tuple[Verdict, ...] = ("runs", "refused", "not built")
DTYPES = ("float32", "bfloat16")
"""Of the files, and of the computation."""
MEMORY = 4 << 30
"""Bytes of address space of a child process."""
SECONDS = 300
CPU_SECONDS = 40
"""Of building a model and its reference, which some classes compute in long loops (BLT)."""
LENGTHS = (1, 5, 17, 40)
"""Tokens of the prompts: some are longer than the windows."""
NUM_TOKENS = 6
MARGIN = 2
"""The errors of wrong models are that many times larger than the start allows, or more."""
MAX_REASON = 500
"""Characters of a true line."""
_ANY_CASE = ReferenceCase("any", (5, 7, 11), (0,) * NUM_TOKENS)
SETTING = Setting(scheduler="chunked", block_size=8, max_num_batched_tokens=24)
PRELOADED = [
    __name__,
    "transformers.models.llama.modeling_llama",
    "tokenmill.backends.models.bridge.bridge",
    "tokenmill.backends.attention.torch.backend",
    "tokenmill.backends.cpu.attention",
]
"""Modules that children get from the process that makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the engine did with a model."""

    verdict: Verdict
    reason: str = ""
    """Why the model does not run; empty if it does."""
    impl: str = ""
    """The model implementation that ran it."""
    equal_prompts: int = 0
    """Number of prompts whose tokens are those of transformers in float32."""
    error: float = 0.0
    """Of the first steps, as the start measures it."""
    planted: Mapping[str, float] = field(default_factory=dict)
    """The same of wrong models, by what is wrong."""


def judge(model_type: str) -> dict[str, Judgement]:
    """Judge a tiny model in each type of numbers, in a child process with limits."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, model_type), daemon=True)
    child.start()
    sender.close()
    found: dict[str, Judgement] = {}
    try:
        for dtype in DTYPES:
            found[dtype] = _receive(receiver, child)
    finally:
        child.kill()
        child.join()
    return found


def _receive(receiver: Connection, child: Any) -> Judgement:
    try:
        if receiver.poll(SECONDS):
            judgement: Judgement = receiver.recv()
            return judgement
        child.kill()  # so that nobody waits for it again
        return Judgement(verdict="fails", reason=f"no end after {SECONDS} seconds")
    except EOFError:
        child.join()
        return Judgement(verdict="fails", reason=f"the process ended with {child.exitcode}")


def _send(sender: Connection, model_type: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model_check.SECONDS = SECONDS
    signal.signal(signal.SIGPROF, _stop)
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            sender.send(judge_here(model_type, dtype, Path(folder)))


class TooSlow(BaseException):
    """A model's own forward passes take too long. No Exception, which its classes may catch."""


def _stop(*_: object) -> None:
    raise TooSlow(f"its own forward passes take more than {CPU_SECONDS} seconds")


def judge_here(
    model_type: str, dtype: str, folder: Path, lengths: Sequence[int] = LENGTHS
) -> Judgement:
    """Judge it in this process. The model is written to `folder`."""
    try:
        with _limited():
            kind = _write(model_type, dtype, folder)
    except (Exception, TooSlow) as error:  # any class of transformers
        return Judgement(verdict="not built", reason=_described(error))
    try:
        with _limited():
            model = kind.from_pretrained(folder, dtype=torch.float32).eval()
            cases = [_continue(model, length) for length in lengths]
    except (Exception, TooSlow) as error:  # a part of a model, which needs more than tokens
        model, cases, own_error = None, [_ANY_CASE], _described(error)
    try:
        found = _serve(model, cases, folder, dtype)
    except ConfigError as error:
        reason = str(error).replace(str(folder), "")
        is_line = "\n" not in reason and len(reason) <= MAX_REASON
        return Judgement(verdict="refused" if is_line else "fails", reason=reason)
    except Exception as error:  # what the sweep looks for
        return Judgement(verdict="fails", reason=_described(error))
    if model is None:
        return Judgement(verdict="fails", reason=f"accepted, but alone it fails: {own_error}")
    return found


def _write(model_type: str, dtype: str, folder: Path) -> Any:
    """Write a tiny model, and return its class."""
    model, config = tiny_model(model_type)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if config is not model.config:
        config.architectures, config.dtype = model.config.architectures, model.config.dtype
        config.save_pretrained(folder)
    return type(model)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise TooSlow after CPU_SECONDS, if this process is a child."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS if _is_child() else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _continue(model: Any, length: int) -> ReferenceCase:
    """A greedy continuation, each token by a forward pass over the whole sequence."""
    prompt = torch.randint(1, 192, (length,), generator=torch.Generator().manual_seed(length))
    ids = prompt.tolist()
    for _ in range(NUM_TOKENS):
        ids.append(int(own_logits(model, ids)[-1].argmax()))
    return ReferenceCase(f"{length} tokens", tuple(ids[:length]), tuple(ids[length:]))


def _serve(model: Any, cases: Sequence[ReferenceCase], folder: Path, dtype: str) -> Judgement:
    config = EngineConfig(device="cpu", dtype=dtype)
    checkpoint, impl = open_model(folder, choose_model_impl(PluginHost.load(config)), config)
    served = toy.serve(SETTING, cases, checkpoint, impl=impl, dtype=dtype)
    same = 0
    for case, output in zip(cases, served.token_ids, strict=True):
        assert len(output) == NUM_TOKENS, "a request failed"
        at = _first_difference(case.token_ids, output)
        same += at is None
        # In bfloat16, rounding chooses other tokens, and other experts.
        if dtype == "float32" and at is not None and model is not None:
            near = gap(model, [*case.prompt_token_ids, *case.token_ids[:at]])
            if near > NEAR_TIE:
                return Judgement(verdict="wrong tokens", reason=f"{case.name}, token {at}")
    found = Judgement(verdict="runs", impl=impl.name, equal_prompts=same)
    return with_wrong_models(found, folder, dtype) if impl.name == "transformers" else found


def with_wrong_models(found: Judgement, folder: Path, dtype: str) -> Judgement:
    """Add how far the start's check tells wrong models from the right one."""
    error, planted = measure(load(folder, dtype))
    passes = min(planted.values()) < MARGIN * largest_error(getattr(torch, dtype))
    rounded = {name: float(f"{value:.2g}") for name, value in planted.items()}
    verdict: Verdict = "wrong models pass" if passes else found.verdict
    return replace(found, verdict=verdict, error=float(f"{error:.2g}"), planted=rounded)


def _is_child() -> bool:
    return multiprocessing.parent_process() is not None


def _first_difference(expected: Sequence[int], output: Sequence[int]) -> int | None:
    return next((i for i, one in enumerate(expected) if list(output[i : i + 1]) != [one]), None)
