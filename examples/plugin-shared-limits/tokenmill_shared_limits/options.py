"""The options, and the limits of a key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta, Struct

from .amounts import Amount

Limit = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]


class KeyLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one API key, for all servers together; 0: no limit."""

    requests_per_minute: Limit = 0.0
    tokens_per_minute: Limit = 0.0
    max_concurrent_requests: Annotated[int, Meta(ge=0)] = 0

    @property
    def has_any(self) -> bool:
        return any(self.per_minute) or self.max_concurrent_requests > 0

    @property
    def per_minute(self) -> tuple[float, float, float]:
        """Concurrent calls are not refilled: they come back."""
        return self.requests_per_minute, self.tokens_per_minute, 0.0

    def capacity(self, burst: float) -> tuple[float, float, float]:
        requests, tokens, _ = self.per_minute
        return requests * burst / 60, tokens * burst / 60, float(self.max_concurrent_requests)

    def price(self, *, requests: int, tokens: int, slots: int) -> Amount:
        """The price of a request, without what has no limit."""
        return Amount(
            requests=requests if self.requests_per_minute else 0,
            tokens=tokens if self.tokens_per_minute else 0,
            slots=slots if self.max_concurrent_requests else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimitsOptions:
    """Options of the table [admission.shared-limits]."""

    requests_per_minute: Limit = field(
        default=0.0,
        metadata={
            "help": "requests per minute of one API key; 0: no limit. This limit and the next two "
            "are for keys that are not in --api-key-file"
        },
    )
    tokens_per_minute: Limit = field(
        default=0.0,
        metadata={"help": "tokens per minute of one API key, prompts and answers; 0: no limit"},
    )
    max_concurrent_requests: Annotated[int, Meta(ge=0)] = field(
        default=0,
        metadata={"help": "requests of one API key that run or wait at one time; 0: no limit"},
    )
    burst: Seconds = field(
        default=60.0,
        metadata={
            "help": "seconds; a key may save the unused allowance of this time and spend it at once"
        },
    )
    keys: Mapping[str, KeyLimits] = field(
        default_factory=dict,
        metadata={"help": "limits of single keys, by their names in --api-key-file"},
    )
    on_store_lost: Literal["open", "closed"] = field(
        default="open",
        metadata={
            "help": "while the store does not answer: open admits requests without limits, closed "
            "refuses them with 503"
        },
    )
    url: str = field(
        default="",
        repr=False,  # it may have a password
        metadata={
            "help": "the store: valkey://[user:password@]host[:port][/number]; else the "
            "environment variable TOKENMILL_SHARED_LIMITS_URL, else valkey://127.0.0.1:6379",
            "named_only": True,
        },
    )
    prefix: str = field(
        default="tokenmill", metadata={"help": "beginning of all names in the store"}
    )
    store_timeout: Seconds = field(
        default=0.5, metadata={"help": "seconds to wait for an answer of the store"}
    )
    lease_seconds: Seconds = field(
        default=10.0,
        metadata={"help": "seconds after which other servers get what a lost server held"},
    )

    def limits_of_others(self) -> KeyLimits:
        """The limits of keys that are not in `keys`."""
        return KeyLimits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent_requests=self.max_concurrent_requests,
        )
