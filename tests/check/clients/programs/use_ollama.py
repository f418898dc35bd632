"""Ollama's client: chats, prompts, a schema, a list, a description and an error."""

import asyncio
import json
import sys

import ollama

url, model, prompt = sys.argv[1:]
client = ollama.Client(url)
messages = [{"role": "user", "content": prompt}]
ask = {"model": model, "options": {"temperature": 0, "num_predict": 16}}
whole = client.chat(messages=messages, keep_alive="5m", **ask)
streamed = list(client.chat(messages=messages, stream=True, **ask))
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "depth": {"type": "integer"}},
    "required": ["name", "depth"],
    "additionalProperties": False,
}
shaped = client.chat(
    model=f"{model}:latest", messages=messages, format=schema, options={"temperature": 0}
)


def weather(city: str) -> str:
    """The weather in a city."""
    return city


called = client.chat(model=model, messages=messages, tools=[weather], options={"num_predict": 8})
assert called.done


async def ask_asynchronously() -> str:
    answer = await ollama.AsyncClient(url).chat(messages=messages, **ask)
    return answer.message.content


try:
    client.chat(model="other", messages=messages)
except ollama.ResponseError as error:
    refused = [error.status_code, type(error.error).__name__]
print(
    json.dumps(
        {
            "whole": whole.message.content,
            "streamed": "".join(part.message.content for part in streamed),
            "tokens": streamed[-1].eval_count,
            "prompt": client.generate(prompt=prompt, **ask).response,
            "asynchronous": asyncio.run(ask_asynchronously()),
            "schema": sorted(json.loads(shaped.message.content)),
            "listed": client.list().models[0].model,
            "shown": client.show(model).capabilities,
            "refused": refused,
        }
    )
)
