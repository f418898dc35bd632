"""Suffix automaton: drafts what followed the longest ending of the text that occurred before."""

from tokenmill.plugin import Registry, hookimpl

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .speculator import SuffixOptions, SuffixSpeculator

    registry.speculative_method("suffix-automaton", SuffixSpeculator, options=SuffixOptions)
