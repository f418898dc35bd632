"""The output of `tokenmill serve` when it is ready: the model, its memory, and commands to try."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass

from ...core.contract.client import EngineClient
from ...core.kv_memory import blocks_held
from .progress import duration

_CHAT = '"messages": [{"role": "user", "content": "What is the capital of Japan?"}]'
_COMPLETION = '"prompt": "The capital of France is"'
_LIMITS = '"temperature": 0.2, "max_tokens": 64'


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Facts about a server that has begun to listen."""

    address: str
    """An URL, or "unix:" and the path of a socket."""
    model: str
    seconds: float
    """From the beginning of the command."""
    dtype: str
    kv_cache_dtype: str
    quantization: str | None
    max_model_len: int
    num_kv_tokens: int
    """Tokens for which the KV caches of all engines have room."""
    num_full_requests: float
    """Requests with `max_model_len` tokens for which they have room."""
    device: str
    attention_backend: str
    linear_backend: str
    has_chat_template: bool
    needs_key: bool

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the event `listening`."""
        found = asdict(self)
        del found["has_chat_template"], found["needs_key"]
        return found


def describe(engine: EngineClient, address: str, seconds: float, *, needs_key: bool) -> Ready:
    """The facts about a started engine that is served at an address."""
    info, config = engine.info, engine.config
    per_request = blocks_held(
        engine.max_model_len,
        block_size=info.block_size,
        windows=info.kv_windows,
        step_tokens=config.token_budget(info.device, info.largest_span_tokens),
    )
    num_blocks = info.num_blocks * config.data_parallel_size
    return Ready(
        address=address,
        model=engine.model_name,
        seconds=round(seconds, 1),
        dtype=info.dtype,
        kv_cache_dtype=info.kv_cache_dtype or info.dtype,
        quantization=config.quantize_on_load,
        max_model_len=engine.max_model_len,
        num_kv_tokens=num_blocks // len(info.kv_windows) * info.block_size,
        num_full_requests=round(num_blocks / per_request, 1),
        device=info.device,
        attention_backend=info.attention_backend,
        linear_backend=info.linear_backend,
        has_chat_template=engine.tokenizer.chat_format is not None,
        needs_key=needs_key,
    )


def ready_block(ready: Ready) -> str:
    """The facts and two commands that work with this model, for a terminal."""
    rows = {
        "Model": ready.model,
        "Precision": _precision(ready),
        "Context": f"{ready.max_model_len:,} tokens",
        "KV cache": f"{ready.num_kv_tokens:,} tokens, {_requests(ready)} of full context",
        "Device": f"{ready.device} (attention {ready.attention_backend}, "
        f"linear {ready.linear_backend})",
        "Address": ready.address,
    }
    facts = "\n".join(f"  {name:<10} {value}" for name, value in rows.items())
    commands = "\n\n".join((request_command(ready), second_command(ready)))
    return f"\nReady after {duration(ready.seconds)}\n{facts}\n\nTry:\n\n{commands}\n"


def request_command(ready: Ready) -> str:
    """A command that sends a request that this model can answer."""
    path = "/v1/chat/completions" if ready.has_chat_template else "/v1/completions"
    model = json.dumps(ready.model).replace("'", "'\\''")  # for the shell
    fields = f'"model": {model}', _CHAT if ready.has_chat_template else _COMPLETION, _LIMITS
    body = ",\n    ".join(fields)
    words = _curl(ready, path), "-H 'Content-Type: application/json'", f"-d '{{{body}}}'"
    return " \\\n    ".join(words)


def second_command(ready: Ready) -> str:
    """Another command: a chat, if the model and the address allow it."""
    if not ready.has_chat_template or not ready.address.startswith("http://"):
        return _curl(ready, "/v1/models")
    key = " --api-key YOUR_KEY" if ready.needs_key else ""
    return f"  tokenmill chat --url {ready.address}{key}"


def _curl(ready: Ready, path: str) -> str:
    words = ["  curl"]
    url = ready.address
    if url.startswith("unix:"):
        words.append(f"--unix-socket {shlex.quote(url.removeprefix('unix:'))}")
        url = "http://localhost"
    elif url.startswith("https:"):
        words.append("--insecure")  # the certificate may have another name than this address
    words.append(f"{url}{path}")
    if ready.needs_key:
        words.append("\\\n    -H 'Authorization: Bearer YOUR_KEY'")
    return " ".join(words)


def _precision(ready: Ready) -> str:
    weights = f", weights in {ready.quantization}" if ready.quantization else ""
    cache = f", KV cache in {ready.kv_cache_dtype}" if ready.kv_cache_dtype != ready.dtype else ""
    return f"{ready.dtype}{weights}{cache}"


def _requests(ready: Ready) -> str:
    number = ready.num_full_requests
    text = f"{number:,.1f}" if number < 10 else f"{number:,.0f}"
    return f"{text} request{'' if text == '1.0' else 's'}"
