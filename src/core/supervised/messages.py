"""Messages between a client's process and the engine's process, in msgpack.

Requests carry a number that the client chooses.
"""

from __future__ import annotations

import msgspec

from ..config import EngineConfig
from ..contract.activity import Activity, LiveRequest
from ..contract.client import Load
from ..contract.explanation import Explanation
from ..contract.plugin_info import HookStats, PluginInfo
from ..contract.registry import ONLY_REPLICA, Replica
from ..contract.trace import Trace
from ..interfaces import ModelInfo
from ..outputs import RequestOutput
from ..plan import TokenLogprobs
from ..processes.channels.messages import Message, NotStarted, Refused, Stage
from ..processes.place import WHOLE_MACHINE, Place
from ..shell.checking import CheckedRequest

# From the client


class StartEngine(Message, frozen=True):
    """The first message: build this engine."""

    config: EngineConfig
    log_level: int
    replica: Replica = ONLY_REPLICA
    place: Place = WHOLE_MACHINE


class Pixels(Message, frozen=True):
    """The pixels of one item, sent before its request. Each item has its own message, because one
    message with all images of a request would block the event loops for too long."""

    number: int
    digest: bytes
    data: bytes


class Submit(Message, frozen=True):
    """Queue a request, whose items are without pixels. Answered by Accepted or Refused."""

    number: int
    request: CheckedRequest


class End(Message, frozen=True):
    """End a request early. If its stream still has a reader, its last output follows."""

    number: int
    is_read: bool


class Question(Message, frozen=True):
    """A message whose answer has the same number."""

    number: int


class Ask(Question, frozen=True):
    """Send a Report."""


class ResetCache(Question, frozen=True):
    """Forget the blocks of the prefix cache that no request holds."""


class Explain(Question, frozen=True):
    """Send the explanations of a request; without an id those of the `count` slowest ones."""

    request_id: str | None
    count: int


class Observe(Question, frozen=True):
    """Send what the engine does, with its steps after `after_step`."""

    after_step: int


class TraceBack(Question, frozen=True):
    """Send the steps and requests since a time of the monotonic clock, which is that of the whole
    machine."""

    since: float


class MeasureRegions(Message, frozen=True):
    """Measure the regions of steps until a time of the monotonic clock."""

    until: float


class Stop(Message, frozen=True):
    """Close the engine and end the process."""


# From the engine


class Ready(Message, frozen=True):
    """The engine is started."""

    info: ModelInfo
    max_model_len: int


class Died(Message, frozen=True):
    """The engine can no longer compute, for example because a worker was killed. The process
    ends."""

    reason: str


class Answer(Message, frozen=True):
    """The answer to Submit, or to a Question."""

    number: int


class Accepted(Answer, frozen=True):
    request_id: str
    ignored_keywords: tuple[str, ...] = ()


class Scored(Message, frozen=True):
    """Log-probabilities of the next tokens of a prompt. All of them precede its first output. They
    come in parts, because the client's event loop would decode 8,000 of them for 40 ms."""

    number: int
    logprobs: tuple[TokenLogprobs | None, ...]


class Output(Message, frozen=True):
    """The next result of a request: an output without its prompt, or the error that ended it."""

    number: int
    output: RequestOutput | None
    error: Refused | None = None


class Outputs(Message, frozen=True):
    """The results of all requests since the last message, usually of one step; may be empty."""

    load: Load
    outputs: tuple[Output, ...] = ()


class Report(Answer, frozen=True):
    """Facts about the engine that a client asks for from time to time."""

    load: Load
    plugins: tuple[PluginInfo, ...] = ()
    hook_stats: tuple[HookStats, ...] = ()
    metrics: bytes = b""
    requests: tuple[LiveRequest, ...] = ()


class CacheReset(Answer, frozen=True):
    """The answer to ResetCache."""

    is_empty: bool


class Explained(Answer, frozen=True):
    """The answer to Explain."""

    found: tuple[Explanation, ...]


class Observed(Answer, frozen=True):
    """The answer to Observe."""

    found: Activity


class Traced(Message, frozen=True):
    """A piece of the answer to TraceBack."""

    number: int
    found: Trace


class TracedAll(Answer, frozen=True):
    """All pieces have been sent."""


ToEngine = (
    StartEngine
    | Pixels
    | Submit
    | End
    | Ask
    | ResetCache
    | Explain
    | Observe
    | TraceBack
    | MeasureRegions
    | Stop
)
FromEngine = (
    Stage
    | Ready
    | NotStarted
    | Died
    | Accepted
    | Refused
    | Scored
    | Outputs
    | Report
    | CacheReset
    | Explained
    | Observed
    | Traced
    | TracedAll
)

decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
