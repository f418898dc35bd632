"""A server whose model says what a test wants, with a chat template of Qwen's kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import GrammarChecker
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor

from .serving import Served, serve_engine

ASSISTANT, END = "<|assistant|>", "<|end|>"
TEMPLATE = (
    "{% if tools %}[tools] {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}] "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>"
    "{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
PLAIN_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(template: str) -> HFTokenizer:
    """A token per byte, and the two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in (ASSISTANT, END)])
    return HFTokenizer(backend, chat_template=template)


class ScriptedExecutor(SimulatedExecutor):
    """A model that answers every chat with `says`, one byte per token."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        super().__init__(num_blocks=1024, block_size=16, vocab_size=tokenizer.vocab_size)
        self.says = ""
        self.info = replace(self.info, eos_token_ids=tuple(tokenizer.encode(END)))
        self._tokenizer = tokenizer
        self._assistant, self._end = (
            tokenizer.encode(text, add_special_tokens=False)[0] for text in (ASSISTANT, END)
        )

    def _choose(self, histories: Sequence[Sequence[int]], seed: int) -> int:
        history = histories[0]
        opening = self._tokenizer.encode("<think>\n", add_special_tokens=False)
        said = list(history)[len(history) - list(history)[::-1].index(self._assistant) :]
        if said[: len(opening)] == opening and not self.says.startswith("<think>"):
            said = said[len(opening) :]
        script = self._tokenizer.encode(self.says, add_special_tokens=False)
        return script[len(said)] if len(said) < len(script) else self._end


@contextlib.contextmanager
def scripted_server(
    template: str = TEMPLATE,
    *,
    grammars: GrammarChecker | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: str,
) -> Iterator[tuple[Served, ScriptedExecutor]]:
    """A server and a model, which follows no grammar.

    `options` are fields of EngineConfig, `settings` of ServerSettings.
    """
    tokenizer = byte_tokenizer(template)
    executor = ScriptedExecutor(tokenizer)

    def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineParts:
        plugins = PluginHost.load(config)
        return EngineParts(
            executor=executor, tokenizer=tokenizer, plugins=plugins, grammars=grammars
        )

    engine = local_engine(EngineConfig(disable_log_stats=True, **options), build)
    with serve_engine(engine, **settings or {}) as served:
        yield served, executor
