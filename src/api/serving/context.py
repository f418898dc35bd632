"""State that all routes share: the engine, the server's settings, and the head of each answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from ...core.contract.client import STALL_SECONDS, EngineClient
from ...core.requests.sampling_params import MAX_N
from ..http.body_budget import BodyBudget
from ..http.errors import APIError
from ..http.keys.usage import KeyUsage
from ..parsing.chosen_parsers import AnswerParsers
from .fingerprint import system_fingerprint
from .image_names import ImageNames

TEXT_BODY_BYTES = 4 << 20
IMAGE_BODY_BYTES = 20 << 20
"""Several photos in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of the HTTP API, see `create_app`."""

    api_keys: Sequence[str] = ()
    """Each request needs one of these keys. Empty, and without a key file: none is needed."""
    api_key_secret: bytes | None = None
    """Makes API key ids the same after a restart. None: a new secret is drawn at every start."""
    api_key_file: Path | None = None
    """TOML file of named keys, which may have limits."""
    admin_key: str | None = None
    """The key of the admin routes. None: they do not exist."""
    metadata_headers: Sequence[str] = ()
    """Headers whose values are copied into a request's metadata."""
    max_body_bytes: int | None = None
    """Maximum size of a request body. None: 20 MiB if the model reads images, else 4 MiB."""
    allowed_origins: Sequence[str] = ()
    """Origins (CORS) from which browsers may call."""
    is_local: bool = False
    """Listens on a loopback address. Without API keys, the Host header must then name this machine
    or one of `allowed_hosts`."""
    allowed_hosts: Sequence[str] = ()
    """Further names that the Host header may have, see `is_local`."""
    sse_keep_alive_interval: float = 0.0
    """Seconds without a chunk before a comment is sent; 0: never."""
    model_aliases: Sequence[str] = ()
    """Further names of the model that requests may have."""
    root_path: str = ""
    """Prefix under which a proxy shows the server; requests may have it or not."""
    ui: bool = True
    """Serve the pages /live and /docs."""
    per_request_metrics: bool = False
    """Answers with one choice have vLLM's `metrics` object."""
    log_requests: bool = False
    """Log an event for each request. Successful GET requests are logged at debug level."""
    strict_fields: bool = False
    """Refuse unknown fields, and bodies without `model`. False: a header names ignored fields."""
    stall_timeout: float = STALL_SECONDS
    """Seconds, see Load.is_stalled. Then /ready answers 503."""

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return bool(self.api_keys or self.api_key_file)


@dataclass(slots=True)
class Traces:
    """The traces that are being taken. Times are of the monotonic clock."""

    profile_began: float | None = None
    """When /start_profile started a profile; None: there is none."""
    until: float = 0.0
    """When the last trace with a known length ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppContext:
    """The engine and settings that the app's state holds for all routes."""

    engine: EngineClient
    settings: ServerSettings
    parsers: AnswerParsers
    """The parsers of the model's answers to chats."""
    bodies: BodyBudget = field(init=False)
    key_usage: KeyUsage = field(default_factory=KeyUsage)
    image_names: ImageNames = field(default_factory=ImageNames)
    started_at: int = field(default_factory=lambda: int(time.time()))
    traces: Traces = field(default_factory=Traces)
    fingerprint: str = field(init=False)
    """The `system_fingerprint` of answers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bodies", BodyBudget(self.max_body_bytes))
        object.__setattr__(self, "fingerprint", system_fingerprint(self.engine))

    @property
    def max_body_bytes(self) -> int:
        """Maximum size of a request body."""
        given = self.settings.max_body_bytes
        if given is not None:
            return given
        return IMAGE_BODY_BYTES if self.engine.images.reads_images else TEXT_BODY_BYTES

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model. Answers and metrics have the first one."""
        return tuple(dict.fromkeys((self.engine.model_name, *self.settings.model_aliases)))

    def check_model(self, name: str | None, *, is_needed: bool = False) -> None:
        """Raise APIError (404) for a model that this server does not have.

        None is accepted, except under --strict-fields if a name `is_needed`.
        """
        if name is None and is_needed and self.settings.strict_fields:
            raise APIError(400, "model is missing (--strict-fields)", param="model")
        if name is not None and name not in self.model_names:
            served = ", ".join(map(repr, self.model_names))
            raise APIError(
                404,
                f"the model {name!r} does not exist here; this server serves {served}",
                param="model",
                code="model_not_found",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """The fields that all chunks of one answer repeat."""

    id: str
    created: int
    model: str


def context_of(request: Request) -> AppContext:
    """The context of the app that serves this request.

    Raises APIError (503) if the app was made for an engine that is not started yet.
    """
    context: AppContext | None = getattr(request.app.state, "context", None)
    if context is None:
        raise APIError(
            503,
            "the engine is not started: the lifespan of its app has not run; the app that mounts "
            "it must have lifespan=app.router.lifespan_context",
        )
    return context


def make_head(request_id: str, model: str) -> AnswerHead:
    """The head of an answer that is created now."""
    return AnswerHead(id=request_id, created=int(time.time()), model=model)


def check_fan_out(num_prompts: int, n: int) -> None:
    """Raise APIError (400) if one call asks for more completions than the server allows."""
    if num_prompts * n > MAX_N:
        raise APIError(
            400,
            f"{num_prompts} prompts times n={n} are more than {MAX_N} completions in one request",
            param="n",
        )
