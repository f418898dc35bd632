"""Unchanged clients get from the running server what a plain request gets."""

from __future__ import annotations

import functools
from pathlib import Path

from .conftest import Target
from .environments import node_with, python_with, run_node, run_python

PACKAGES = (
    "anthropic>=2,<3",
    "langchain>=1.4,<2",
    "langchain-openai>=1.7,<2",
    "llm>=0.36",
    "ollama>=0.6,<1",
    "openai>=3,<4",
    "openai-agents>=0.24,<1",
    "pydantic-ai-slim[openai]>=2.68,<3",
    "smolagents[openai]>=1.26,<2",
)
"""One environment satisfies them all."""
INSTRUCTOR = "instructor>=1.17,<2"
"""What it needs excludes the openai package that pydantic-ai needs."""
NODE_PACKAGES = ("openai@7", "ai@7", "@ai-sdk/openai-compatible@3")


@functools.cache
def python() -> Path:
    return python_with(*PACKAGES)


@functools.cache
def node() -> Path:
    return node_with(*NODE_PACKAGES)


def test_openai(target: Target) -> None:
    found = run_python(python(), "use_openai.py", *target.arguments)
    assert set(found.values()) == {target.text}


def test_anthropic(target: Target) -> None:
    found = run_python(python(), "use_anthropic.py", *target.arguments)
    assert found == {"whole": target.text, "streamed": target.text, "is_counted": True}


def test_langchain(target: Target) -> None:
    found = run_python(python(), "use_langchain.py", *target.arguments)
    assert found.pop("usage") == 16
    assert found == dict.fromkeys(("whole", "streamed", "responses"), target.text)


def test_llm(target: Target) -> None:
    found = run_python(python(), "use_llm.py", *target.arguments)
    assert found == {"whole": target.text, "streamed": target.text}


def test_ollama(target: Target) -> None:
    found = run_python(python(), "use_ollama.py", *target.arguments)
    texts = ("whole", "streamed", "prompt", "asynchronous")
    assert {name: found.pop(name) for name in texts} == dict.fromkeys(texts, target.text)
    assert found.pop("schema") == ["depth", "name"]
    assert found.pop("refused") == [404, "str"]
    assert found == {"listed": target.model, "shown": ["completion", "tools"], "tokens": 16}


def test_pydantic_ai_with_a_tool(target: Target) -> None:
    found = run_python(python(), "use_pydantic_ai.py", *target.arguments)
    assert found.pop("calls") >= 1
    assert found == {"plain": target.text, "keys": ["city", "is_cold"]}


def test_instructor(target: Target) -> None:
    found = run_python(python_with(INSTRUCTOR), "use_instructor.py", *target.arguments)
    assert found == {"schema": ["depth", "name"], "tools": ["depth", "name"]}


def test_openai_for_javascript(target: Target) -> None:
    found = run_node(node(), "use_openai.mjs", *target.arguments)
    assert found.pop("refused") == [True, "model_not_found"]
    assert found.pop("last") == "response.incomplete"
    assert set(found.values()) == {target.text}


def test_the_vercel_ai_sdk(target: Target) -> None:
    found = run_node(node(), "use_ai_sdk.mjs", *target.arguments)
    assert found == {"whole": target.text, "streamed": target.text, "usage": [16, 16]}


def test_tools_of_the_vercel_ai_sdk(target: Target) -> None:
    found = run_node(node(), "use_ai_sdk_tools.mjs", *target.arguments)
    for calls in (found["whole"], found["streamed"]):
        assert calls
        assert all(name == "weather" and city in ("Oslo", "Rome") for name, city in calls)
    assert found["reason"] == "tool-calls" and found["hasDeltas"]


TASK = "Use the tools: how warm is it in Oslo, and what time is it there?"
"""The default model has no notation for tools, and seldom calls one of its own accord. So the loops
of agents must end without an error, and demanded calls must be executed."""


def check_calls(found: dict[str, list[str]], *demanded: str) -> None:
    """All calls are of the two tools, and the runs that demand calls have some."""
    assert set(demanded) <= found.keys()
    for name, calls in found.items():
        assert set(calls) <= {"temperature", "clock"}, name
        assert calls or name not in demanded, name


def test_a_loop_of_openai_agents(target: Target) -> None:
    found = run_python(python(), "use_openai_agents.py", target.url, target.model, TASK)
    check_calls(found, "chat required", "responses required")


def test_a_loop_of_langchain(target: Target) -> None:
    found = run_python(python(), "use_langchain_agent.py", target.url, target.model, TASK)
    check_calls(found, "required")


def test_a_loop_of_smolagents(target: Target) -> None:
    found = run_python(python(), "use_smolagents.py", target.url, target.model, TASK)
    check_calls(found, "whole", "streamed")


def test_a_loop_of_pydantic_ai(target: Target) -> None:
    found = run_python(python(), "use_pydantic_ai_agent.py", target.url, target.model, TASK)
    check_calls(found, "required")


def test_a_loop_of_the_vercel_ai_sdk(target: Target) -> None:
    found = run_node(node(), "use_ai_sdk_agent.mjs", target.url, target.model, TASK)
    check_calls(found, "required", "required streamed")
