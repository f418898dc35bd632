"""Places in plugins that compute: around the built-in ones, with a tiny model."""

from __future__ import annotations

from collections.abc import Mapping

from .places import NAME, Place


def _around(kind: str, hook: str, base: str, method: str, **options: object) -> Place:
    """A class of tokenmill's with one method that calls `act` first."""
    module, _, name = base.partition(":")
    code = f"from tokenmill.backends.{module} import {name} as Right\n"
    code += f"class Provider(Right):\n    {method}\n"
    code += "def make(): return Provider\n@hookimpl\ndef register(registry):\n"
    code += f'    registry.offer(kinds.{kind.upper()}, "{NAME}", make)\n'
    return Place(kind=kind, hook=hook, code=code, options={kind: NAME} | options)


REASONS = "@classmethod\n    def reasons_against(cls, spec): return act(spec)"
ATTENTION = "attention.torch.backend:TorchAttention"
LINEAR = "linear.torch:TorchLinear"
MODEL = "models.native:NativeModels"
GRAMMAR = "grammar.llguidance.backend:LLGuidance"
EXECUTOR = f"""
class Provider:
    def __init__(self, spec):
        self.right = spec.load(lambda *stage: None)
    @classmethod
    def reasons_against(cls, spec): return []
    @property
    def info(self): return self.right.info
    def launch(self, plan): return self.right.launch(plan)
    def health(self): return self.right.health()
    def close(self): self.right.close()

{{method}}

def make(): return Provider
@hookimpl
def register(registry): registry.offer(kinds.DISTRIBUTED_EXECUTOR_BACKEND, "{NAME}", make)
"""
PENDING = """
class Pending:
    def __init__(self, right): self.right = right
    def result(self):
        self.right.result()
        return act(self)
Provider.launch = lambda self, plan: Pending(self.right.launch(plan))
"""
PROCESSOR = f"""
class Provider:
    arguments, example, allows_drafts = ("{NAME}",), {{{{"{NAME}": 1}}}}, True
    always = False
    @classmethod
    def reasons_against(cls, spec): return []
    @classmethod
    def check(cls, arguments): pass
    def __init__(self, spec): pass
    def begin(self, arguments): return 1
    def apply(self, logits_gv, rows): pass

{{method}}

def make(): return Provider
@hookimpl
def register(registry): registry.offer(kinds.LOGITS_PROCESSOR, "{NAME}", make)
"""


def _executor(hook: str, method: str) -> Place:
    return Place(
        kind="distributed_executor_backend",
        hook=hook,
        code=EXECUTOR.format(method=method),
        options={"distributed_executor_backend": NAME},
    )


def _processor(hook: str, method: str) -> Place:
    return Place(kind="logits_processor", hook=hook, code=PROCESSOR.format(method=method))


COMPUTING: Mapping[str, Place] = {
    "attention reasons": _around("attention_backend", "reasons_against", ATTENTION, REASONS),
    "attention": _around(
        "attention_backend",
        "forward",
        ATTENTION,
        "def forward(self, *given, **named):\n        act(*given)\n"
        "        return super().forward(*given, **named)",
    ),
    "attention result": _around(
        "attention_backend",
        "forward",
        ATTENTION,
        "def forward(self, *given, **named): return act(*given)",
    ),
    "linear reasons": _around("linear_backend", "reasons_against", LINEAR, REASONS),
    "linear": _around(
        "linear_backend", "linear", LINEAR, "def linear(self, *given): return act(*given)"
    ),
    "model reasons": _around("model_impl", "reasons_against", MODEL, REASONS),
    "model": _around("model_impl", "load", MODEL, "def load(self, *given): return act(*given)"),
    "weight format": Place(
        kind="weight_format",
        hook="read",
        code="def make(): return act\n@hookimpl\n"
        f'def register(registry): registry.offer(kinds.WEIGHT_FORMAT, "{NAME}", make)\n',
    ),
    "grammar reasons": _around("grammar_backend", "reasons_against", GRAMMAR, REASONS),
    "compile": _around(
        "grammar_backend", "compile", GRAMMAR, "def compile(self, grammar): return act(grammar)"
    ),
    "fill": _around(
        "grammar_backend", "fill", GRAMMAR, "def fill(self, rows, masks): return act(rows)"
    ),
    "executor": Place(
        kind="distributed_executor_backend",
        hook="__call__",
        code=EXECUTOR.format(method="Provider.__new__ = lambda cls, spec: act(spec)"),
        options={"distributed_executor_backend": NAME},
    ),
    "launch": _executor("launch", "Provider.launch = lambda self, plan: act(plan)"),
    "result": _executor("result", PENDING),
    "health": _executor("health", "Provider.health = lambda self: act(self)"),
    "close": _executor("close", "Provider.close = lambda self: act(self)"),
    "check": _processor("check", "Provider.check = classmethod(lambda cls, given: act(given))"),
    "begin": _processor("begin", "Provider.begin = lambda self, given: act(given)"),
    "apply": _processor("apply", "Provider.apply = lambda self, logits, rows: act(rows)"),
    "propose": Place(
        kind="speculative_method",
        hook="propose",
        code="class Provider:\n    @hookimpl\n    def propose(self, batch): return act(batch)\n"
        f"@hookimpl\ndef register(registry):\n"
        f'    registry.offer(kinds.SPECULATIVE_METHOD, "{NAME}", Provider)\n',
        options={"speculative_method": NAME, "num_speculative_tokens": 2},
    ),
    "prepare": Place(
        kind="speculative_method",
        hook="prepare",
        code="class Provider:\n    @hookimpl\n    def propose(self, batch): return []\n"
        "    def prepare(self, support): return act(support)\n"
        f"@hookimpl\ndef register(registry):\n"
        f'    registry.offer(kinds.SPECULATIVE_METHOD, "{NAME}", Provider)\n',
        options={"speculative_method": NAME, "num_speculative_tokens": 2},
    ),
}
