"""langchain: an agent with two tools, whose first call is free or demanded."""

import contextlib
import json
import sys
from typing import Literal

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

url, name, prompt = sys.argv[1:]
calls = []
City = Literal["Oslo", "Rome"]


@tool
def temperature(city: City) -> int:
    """The temperature of a city."""
    calls.append("temperature")
    return 3


@tool
def clock(city: City) -> str:
    """The time in a city."""
    calls.append("clock")
    return "12:30"


tools = {"temperature": temperature, "clock": clock}
options = {"temperature": 0, "max_tokens": 40, "max_retries": 0}
chat = ChatOpenAI(model=name, base_url=f"{url}/v1", api_key="none", **options)
agent = create_agent(chat, list(tools.values()))


def run(messages: list) -> list[str]:
    """The calls of one run. A small model may call forever."""
    with contextlib.suppress(GraphRecursionError):
        agent.invoke({"messages": messages}, {"recursion_limit": 4})
    return list(calls)


auto = run([HumanMessage(prompt)])
calls.clear()
first = chat.bind_tools(list(tools.values()), tool_choice="any").invoke(prompt)
results = [
    ToolMessage(str(tools[call["name"]].invoke(call["args"])), tool_call_id=call["id"])
    for call in first.tool_calls
]
print(json.dumps({"auto": auto, "required": run([HumanMessage(prompt), first, *results])}))
