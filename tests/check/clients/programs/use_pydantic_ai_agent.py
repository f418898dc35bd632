"""pydantic-ai: an agent with two tools, and one whose first step must call a tool."""

import contextlib
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, name, prompt = sys.argv[1:]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
calls = []
City = Literal["Oslo", "Rome"]


class Weather(BaseModel):
    city: City


def temperature(city: City) -> int:
    """The temperature of a city."""
    calls.append("temperature")
    return 3


def clock(city: City) -> str:
    """The time in a city."""
    calls.append("clock")
    return "12:30"


def run(output: type) -> list[str]:
    """The calls of one run. Another output than text demands calls. A small model may call forever,
    or give an output that is not valid."""
    calls.clear()
    settings = {"temperature": 0, "max_tokens": 40}
    agent = Agent(model, tools=[temperature, clock], output_type=output, model_settings=settings)
    with contextlib.suppress(UsageLimitExceeded, UnexpectedModelBehavior):
        agent.run_sync(prompt, usage_limits=UsageLimits(request_limit=3))
    return list(calls)


print(json.dumps({"auto": run(str), "required": run(Weather)}))
