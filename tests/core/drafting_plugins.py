"""Speculative methods for the tests of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.core import kinds
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from tokenmill.core.contract.registry import Registry
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    model: str


class Method:
    def __init__(self, options: ModelOptions | None = None) -> None:
        self.options = options
        self.answer: Callable[[ProposalBatch], Any] = lambda batch: []

    @hookimpl
    def propose(self, batch: ProposalBatch) -> Any:
        return self.answer(batch)


class Named:
    """A plugin that offers a method that needs a model."""

    def __init__(self, name: str) -> None:
        self._name = name

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.SPECULATIVE_METHOD, self._name, Method, options=ModelOptions)


class Drafting:
    """A plugin whose method is a plain function, or a ready object."""

    def __init__(self, answer: Callable[[ProposalBatch], Any], method: Any = None) -> None:
        self.method = method or Method()
        if method is None:
            self.method.answer = answer

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.SPECULATIVE_METHOD, "drafting", lambda: self.method)


def propose(host: PluginHost, asked: ProposalBatch) -> Sequence[Draft]:
    assert host.speculator is not None
    return host.speculator.propose(asked)


def batch(*texts: Sequence[int], most: int = 4) -> ProposalBatch:
    """A request "0", "1", ... for each text."""
    return ProposalBatch(requests=[request(str(i), text, most) for i, text in enumerate(texts)])


def request(engine_id: str, token_ids: Sequence[int], most: int = 4) -> ProposalRequest:
    return ProposalRequest(
        engine_id=engine_id,
        token_ids=token_ids,
        num_prompt_tokens=1,
        sampling_params=SamplingParams(),
        max_draft_tokens=most,
    )
