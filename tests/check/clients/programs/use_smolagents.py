"""smolagents: a tool-calling agent with two tools. It always demands a call."""

import json
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.monitoring import LogLevel

url, name, prompt = sys.argv[1:]
calls = []


@tool
def temperature(city: str) -> int:
    """The temperature of a city.

    Args:
        city: The name of the city.
    """
    calls.append("temperature")
    return 3


@tool
def clock(city: str) -> str:
    """The time in a city.

    Args:
        city: The name of the city.
    """
    calls.append("clock")
    return "12:30"


options = {"temperature": 0, "max_tokens": 40, "client_kwargs": {"max_retries": 0}}
model = OpenAIModel(name, api_base=f"{url}/v1", api_key="none", **options)
found = {}
for streams in (False, True):
    calls.clear()
    agent = ToolCallingAgent(
        [temperature, clock],
        model,
        max_steps=2,
        stream_outputs=streams,
        verbosity_level=LogLevel.OFF,
    )
    agent.run(prompt)
    found["streamed" if streams else "whole"] = list(calls)
print("\n" + json.dumps(found))  # its own output does not end its last line
