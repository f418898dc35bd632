"""pydantic-ai: an agent with a function tool, whose answer has a schema."""

import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, ToolDefinition, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, name, prompt = sys.argv[1:]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
calls = []


class Weather(BaseModel):
    city: Literal["Oslo", "Rome"]
    is_cold: bool


async def once(context: RunContext[None], tool: ToolDefinition) -> ToolDefinition | None:
    """Offers the tool until it was called: a small model would call it again and again."""
    return None if calls else tool


agent = Agent(model, output_type=Weather, model_settings={"temperature": 0, "max_tokens": 100})


@agent.tool_plain(prepare=once)
def temperature(city: Literal["Oslo", "Rome"]) -> int:
    """The temperature of a city."""
    calls.append(city)
    return 3


plain = Agent(model, model_settings={"temperature": 0, "max_tokens": 16}).run_sync(prompt)
limits = UsageLimits(request_limit=4)
output = agent.run_sync("How cold is it in Oslo? Use the tool first.", usage_limits=limits).output
print(json.dumps({"plain": plain.output, "keys": sorted(output.model_dump()), "calls": len(calls)}))
