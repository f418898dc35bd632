"""Granite's reasoning: between two sentences instead of two marks."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .parser import GraniteReasoning

    registry.offer(kinds.REASONING_PARSER, "granite", GraniteReasoning)
