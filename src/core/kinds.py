"""The kinds of providers that a plugin can offer: one row each.

The registry, the flags, the tables of plugins.toml, the fallbacks, the conformance kit,
`tokenmill plugins list` and the tables of the documentation follow from the rows. A new kind needs
its row here, the contract of its providers, its suite in testing/conformance, and a caller.
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from .members import (
    CALL_ID_LENGTH,
    DECODES_ALL,
    DESCRIBES_TOOLS,
    IS_DETERMINISTIC,
    MEDIA_SAMPLE,
    NEEDS_HIDDEN_STATES,
    PARSES,
    PREPARE,
    PROPOSES,
    WRITE_SAMPLE,
    Member,
)
from .settings.declaration import setting
from .wording.suggest import near_and_known

if TYPE_CHECKING:  # only for type checkers: contracts are in the layer above
    from .contract.parsing.answer_parsers import ReasoningParser, ToolCallParser
    from .contract.policy import SchedulingPolicy
    from .contract.providers.deciders import Admission, PreemptionMode, Scheduler, SpeculativeMethod
    from .contract.providers.draft_length import DraftLengthPolicy
    from .contract.providers.http_routes import Routes
    from .contract.providers.media_processing import MediaProcessor
    from .contract.providers.routing import Router
    from .contract.providers.transforming import Transform

P = TypeVar("P")
Tier = Literal["stable", "provisional"]
"""The promise for a contract. stable: it changes only by additions with defaults. provisional: it
may change in any minor version."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind(Generic[P]):
    """A kind of providers. P is what their factories return."""

    name: str
    does: str
    """The purpose of its providers, in the tables of the documentation."""
    suite: str
    """Module and class of its suite, below testing/conformance."""
    runs: Literal["engine", "device", "worker", "api"]
    """Process and thread of its providers: the engine thread or the device thread of the engine's
    process, the device thread of a worker, or the event loop of the API's process."""
    tier: Tier = "provisional"
    """The promise for the contract of its providers. All contracts in `tokenmill.compute` are
    provisional."""
    needs: tuple[str, ...] = ()
    """Attributes that every provider must have."""
    may_have: tuple[Member[Any], ...] = ()
    """Attributes that a provider may have."""
    choose: Literal["one", "all", "request", "model"] = "one"
    """The providers that are used: the one that a flag or plugins.toml chooses; all of the enabled
    plugins; those whose arguments a request names; the one that a model's files name."""
    flag: Field[str | None] | None = None
    """The setting that chooses a provider. For "all", it enables the plugins of these names."""
    hook: str | None = None
    """The hook through which the engine calls its providers; None: they are called directly."""
    switch: str | None = None
    """A setting that is on or off, and so chooses the provider that declares this value."""
    has_auto: bool = False
    """Whether "auto" means the first provider that has no `reasons_against` the model."""

    def __str__(self) -> str:
        return self.name

    def lacks(self, provider: object) -> list[str]:
        """The needed attributes that an object does not have."""
        return [name for name in self.needs if not hasattr(provider, name)]

    @property
    def is_slot(self) -> bool:
        """Whether exactly one provider is chosen."""
        return self.choose == "one"

    @property
    def is_watcher(self) -> bool:
        """Whether an engine builds every provider. Its factory gets a PluginContext, and may return
        None to take no part."""
        return self.choose == "all" and self.runs == "engine"

    @property
    def is_direct(self) -> bool:
        """Whether the engine calls methods of the chosen policy without a hook."""
        return self.is_slot and self.runs == "engine" and self.hook is None

    @property
    def computes(self) -> bool:
        """Whether its providers take part in computing a step."""
        return self.runs in ("device", "worker")


SCHEDULER: Kind[Scheduler] = Kind(
    name="scheduler",
    does="tokens of each request in a step",
    suite="policies.scheduler:SchedulerConformance",
    runs="engine",
    tier="stable",
    needs=("schedule",),
    may_have=(DECODES_ALL,),
    hook="schedule",
    switch="enable_chunked_prefill",
    flag=setting(
        None,
        "policy that decides how many tokens each request computes in a step: chunked, "
        "prefill-first, or a plugin's name",
        group="scheduling",
    ),
)
SCHEDULING_POLICY: Kind[SchedulingPolicy] = Kind(
    name="scheduling_policy",
    does="order of the waiting requests",
    suite="policies.scheduling_policy:SchedulingPolicyConformance",
    runs="engine",
    tier="stable",
    needs=("key", "uses_priority"),
    flag=setting(
        None,
        "order of the waiting requests: fcfs, priority, or a plugin's name",
        group="scheduling",
    ),
)
PREEMPTION_MODE: Kind[PreemptionMode] = Kind(
    name="preemption_mode",
    does="which request gives up its KV blocks, and how",
    suite="policies.preemption:PreemptionConformance",
    runs="engine",
    tier="stable",
    needs=("preempt", "modes"),
    hook="preempt",
    flag=setting(
        None,
        "what happens when no KV block is free: recompute, swap, lowest-priority, or a plugin's "
        "name",
        group="scheduling",
    ),
)
DISTRIBUTED_EXECUTOR_BACKEND: Kind[Any] = Kind(
    name="distributed_executor_backend",
    does="where steps are computed",
    suite="executor.suite:ExecutorConformance",
    runs="device",
    needs=("reasons_against", "__call__"),
    has_auto=True,
    flag=setting(
        None,
        "where steps are computed: auto (inprocess, or multiprocess if several workers are "
        "needed), inprocess or uni (the engine's process), multiprocess or mp (worker processes), "
        "ray (workers of a Ray cluster), or a plugin's name",
        group="parallel",
    ),
)
"""A factory returns an ExecutorProvider of backends/execution/base.py."""
ATTENTION_BACKEND: Kind[Any] = Kind(
    name="attention_backend",
    does="computation of attention",
    suite="attention.suite:AttentionConformance",
    runs="worker",
    needs=("reasons_against", "__call__"),
    has_auto=True,
    flag=setting(
        None,
        "code that computes attention: auto, cpu, torch, flash-attn, xformers, cuda-paged, triton, "
        "or a plugin's name; two names with a comma: the first computes prompts, the second "
        "decodes",
        group="backends",
    ),
)
"""A factory returns the class of a backend (backends/attention/base.py), or an object that has its
`reasons_against` and makes a backend when called with an AttentionSpec."""
LINEAR_BACKEND: Kind[Any] = Kind(
    name="linear_backend",
    does="matrix products, with plain or packed weights",
    suite="linear.suite:LinearConformance",
    runs="worker",
    needs=("reasons_against", "keeps", "__call__"),
    has_auto=True,
    flag=setting(
        None,
        "code that computes matrix products: auto, cpu, torch, or a plugin's name",
        group="backends",
    ),
)
"""A factory returns the class of a backend: see backends/linear/base.py."""
MODEL_IMPL: Kind[Any] = Kind(
    name="model_impl",
    does="models of other architectures",
    suite="computing.model:ModelImplConformance",
    runs="worker",
    needs=("reasons_against", "__call__"),
    may_have=(WRITE_SAMPLE,),
    has_auto=True,
    flag=setting(
        None,
        "code that runs the model: auto, native, transformers (most decoders that transformers "
        "knows), or a plugin's name",
        group="backends",
    ),
)
"""A factory returns a class, ModelImpl of backends/models/base.py, which decides from config.json
whether it can run a model."""
GRAMMAR_BACKEND: Kind[Any] = Kind(
    name="grammar_backend",
    does="masks for answers that follow a grammar",
    suite="computing.grammar:GrammarConformance",
    runs="worker",
    needs=("reasons_against", "__call__"),
    has_auto=True,
    flag=setting(
        None,
        "code that makes answers follow a grammar, such as a JSON schema: auto, llguidance, or a "
        "plugin's name",
        group="answers",
    ),
)
"""A factory is a function of a module, and returns the class of a backend: see
backends/grammar/base.py. Arriving grammars are tried in a process of their own."""
SPECULATIVE_METHOD: Kind[SpeculativeMethod] = Kind(
    name="speculative_method",
    does="drafts of the next tokens",
    suite="policies.speculator:SpeculatorConformance",
    runs="worker",
    tier="stable",
    needs=("propose",),
    may_have=(PREPARE, NEEDS_HIDDEN_STATES, PROPOSES, IS_DETERMINISTIC),
    hook="propose",
    flag=setting(
        None,
        "method that drafts the next tokens, which the model then verifies in one step: none, "
        "ngram, draft-model, or a plugin's name",
        "--spec-method",
        group="speculation",
    ),
)
"""`--speculative-model` and the keys of `--speculative-config` fill the options of a method."""
DRAFT_LENGTH: Kind[DraftLengthPolicy] = Kind(
    name="draft_length",
    does="draft lengths",
    suite="policies.draft_length:DraftLengthConformance",
    runs="engine",
    tier="stable",
    needs=("choose", "observe", "forget"),
    may_have=(IS_DETERMINISTIC,),
    switch="speculative_adaptive",
    flag=setting(
        None,
        "policy that chooses the number of draft tokens of each request: adaptive (the number that "
        "makes answers fastest), fixed (always num_speculative_tokens), or a plugin's name",
        group="speculation",
    ),
)
TOOL_CALL_PARSER: Kind[ToolCallParser] = Kind(
    name="tool_call_parser",
    does="tool calls in answers",
    suite="parsers.tool_calls:ToolCallParserConformance",
    runs="api",
    tier="stable",
    needs=("reasons_against", "parse", "needs_special_tokens", "call_syntax"),
    may_have=(DESCRIBES_TOOLS, CALL_ID_LENGTH, PARSES),
    has_auto=True,
    flag=setting(
        None,
        "parser that finds tool calls in the answers of chats: auto (by the chat template), "
        "hermes, qwen3-xml, glm, llama3-json, mistral, gemma, pythonic, gpt-oss, generic (fits "
        "every model), none (requests with tools are refused), or a plugin's name",
        group="answers",
    ),
)
REASONING_PARSER: Kind[ReasoningParser] = Kind(
    name="reasoning_parser",
    does="reasoning in answers",
    suite="parsers.reasoning:ReasoningParserConformance",
    runs="api",
    tier="stable",
    needs=("reasons_against", "parse", "needs_special_tokens", "marks"),
    may_have=(PARSES,),
    has_auto=True,
    flag=setting(
        None,
        "parser that separates reasoning from content in the answers of chats: auto (by the chat "
        "template), think, mistral-think, gemma-think, gpt-oss, none, or a plugin's name",
        group="answers",
    ),
)
MEDIA_PROCESSOR: Kind[type[MediaProcessor]] = Kind(
    name="media_processor",
    does="items of the encoder from images",
    suite="computing.media:MediaProcessorConformance",
    runs="api",
    needs=("reasons_against", "__call__"),
    may_have=(MEDIA_SAMPLE,),
    has_auto=True,
    flag=setting(
        None,
        "code that prepares images for the model: auto (by the model's files), idefics3 (Idefics3 "
        "and SmolVLM), gemma3, mistral3, qwen2-vl (Qwen2.5-VL), or a plugin's name",
        group="backends",
    ),
)
"""A factory is a function of a module, and returns a class, MediaProcessor of
contract/providers/media_processing.py. Images are processed in a process of their own."""
ROUTER: Kind[Router] = Kind(
    name="router",
    does="the replica of each request",
    suite="policies.router:RouterConformance",
    runs="api",
    tier="stable",
    needs=("route", "forget"),
    may_have=(IS_DETERMINISTIC,),
    flag=setting(
        None,
        "policy that chooses the replica of each request, with --data-parallel-size: prefix-aware, "
        "least-loaded, round-robin, session, or a plugin's name",
        group="parallel",
    ),
)
TRANSFORM: Kind[Transform] = Kind(
    name="transform",
    does="changes of requests and answers: redaction, moderation, rewriting",
    suite="transforms:TransformConformance",
    runs="api",
    needs=("begin",),
    choose="all",
)
ROUTE: Kind[Routes] = Kind(
    name="route",
    does="further paths of the HTTP API",
    suite="http_routes.suite:RouteConformance",
    runs="api",
    needs=("routes", "error"),
    choose="all",
    flag=setting(
        None,
        "further paths of the HTTP API: ollama (Ollama's API), or a plugin's name; several with "
        "commas; default: only the server's own paths",
        group="answers",
    ),
)
OBSERVER: Kind[object | None] = Kind(
    name="observer",
    does="events, metrics, background tasks",
    suite="policies.observer:ObserverConformance",
    runs="engine",
    tier="stable",
    choose="all",
)
ADMISSION: Kind[Admission | None] = Kind(
    name="admission",
    does="admission of requests",
    suite="policies.admission:AdmissionConformance",
    runs="engine",
    tier="stable",
    needs=("admit",),
    hook="admit",
    choose="all",
)
WEIGHT_FORMAT: Kind[Any] = Kind(
    name="weight_format",
    does="quantized weights of directories",
    suite="computing.weight_format:WeightFormatConformance",
    runs="worker",
    needs=("__call__",),
    may_have=(WRITE_SAMPLE,),
    choose="model",
)
"""The name of a provider is a `quant_method` of `quantization_config` in config.json. A factory
returns the reader of these settings: ReadMethod of backends/weights/quantization/methods.py."""
LOGITS_PROCESSOR: Kind[Any] = Kind(
    name="logits_processor",
    does="changes of logits, by arguments of the request",
    suite="computing.logits:LogitsProcessorConformance",
    runs="worker",
    needs=(
        "arguments",
        "example",
        "allows_drafts",
        "always",
        "check",
        "reasons_against",
        "__call__",
    ),
    choose="request",
)
"""A factory returns the class of a processor (backends/sampling/processing/base.py). The engine
uses the class, and a worker an instance."""

KINDS: dict[str, Kind[Any]] = {
    row.name: row for row in tuple(globals().values()) if isinstance(row, Kind)
}
"""Every kind by its name, in the order of the rows."""
SLOTS = tuple(name for name, kind in KINDS.items() if kind.is_slot)
"""Names of the kinds with exactly one chosen provider."""
HOOKED = {kind.hook: kind for kind in KINDS.values() if kind.hook is not None}
"""The kinds whose providers are called through a hook, by the hook."""

if not TYPE_CHECKING:  # a type checker finds the misspelling itself

    def __getattr__(name: str) -> Any:
        """Raise AttributeError that lists the kinds, for a misspelling like `SCHEDULAR`."""
        known = near_and_known(name, map(str.upper, KINDS))
        raise AttributeError(f"there is no kind {name!r}{known}")
