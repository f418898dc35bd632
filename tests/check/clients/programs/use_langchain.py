"""langchain-openai: whole, streamed, and through the Responses API."""

import json
import sys

from langchain_openai import ChatOpenAI

url, model, prompt = sys.argv[1:]
options = {"model": model, "base_url": f"{url}/v1", "temperature": 0, "max_tokens": 16}
chat = ChatOpenAI(**options, stream_usage=True)
whole = chat.invoke(prompt)
chunks = list(chat.stream(prompt))
response = ChatOpenAI(**options, use_responses_api=True).invoke(prompt)
print(
    json.dumps(
        {
            "whole": whole.content,
            "streamed": "".join(chunk.content for chunk in chunks),
            "responses": response.text,
            "usage": whole.usage_metadata["output_tokens"],
        }
    )
)
