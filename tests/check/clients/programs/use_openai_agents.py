"""openai-agents: an agent with two function tools, through chat completions and Responses."""

import contextlib
import json
import sys
from typing import Literal

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, name, prompt = sys.argv[1:]
set_tracing_disabled(True)
calls = []
City = Literal["Oslo", "Rome"]


@function_tool
def temperature(city: City) -> int:
    """The temperature of a city."""
    calls.append("temperature")
    return 3


@function_tool
def clock(city: City) -> str:
    """The time in a city."""
    calls.append("clock")
    return "12:30"


def run(kind: type, choice: str) -> list[str]:
    """The calls of one run. A small model may call forever, or a function that is not there."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    calls.clear()
    agent = Agent(
        name="helper",
        instructions="Use the tools.",
        model=kind(name, client),
        model_settings=ModelSettings(temperature=0, max_tokens=40, tool_choice=choice),
        tools=[temperature, clock],
    )
    with contextlib.suppress(MaxTurnsExceeded, ModelBehaviorError):
        Runner.run_sync(agent, prompt, max_turns=3)
    return list(calls)


kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
found = {f"{k} {choice}": run(kinds[k], choice) for k in kinds for choice in ("auto", "required")}
print(json.dumps(found))
