"""pydantic-ai: an agent with a function tool, whose answer has a schema."""

import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, name, prompt = sys.argv[1:]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
calls = []


class Weather(BaseModel):
    city: str
    is_cold: bool


agent = Agent(model, output_type=Weather, model_settings={"temperature": 0, "max_tokens": 200})


@agent.tool_plain
def temperature(city: str) -> int:
    """The temperature of a city."""
    calls.append(city)
    return 3


plain = Agent(model, model_settings={"temperature": 0, "max_tokens": 16}).run_sync(prompt)
output = agent.run_sync("How cold is it in Oslo? Use the tool first.").output
print(json.dumps({"plain": plain.output, "keys": sorted(output.model_dump()), "calls": len(calls)}))
