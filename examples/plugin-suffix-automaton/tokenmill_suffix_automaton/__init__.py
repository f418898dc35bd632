"""Suffix automaton: drafts what followed the longest ending of the text that occurred before."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .speculator import SuffixOptions, SuffixSpeculator

    registry.offer(
        kinds.SPECULATIVE_METHOD, "suffix-automaton", SuffixSpeculator, options=SuffixOptions
    )
