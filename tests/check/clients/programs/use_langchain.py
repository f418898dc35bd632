"""langchain-openai: whole, streamed, and through the Responses API."""

import base64
import json
import sys
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

url, model, prompt, *photos = sys.argv[1:]
chat_input = prompt
if photos:
    data = base64.b64encode(Path(photos[0]).read_bytes()).decode()
    image = {"type": "image", "base64": data, "mime_type": "image/png"}
    chat_input = [HumanMessage([image, {"type": "text", "text": prompt}])]
options = {"model": model, "base_url": f"{url}/v1", "temperature": 0, "max_tokens": 16}
chat = ChatOpenAI(**options, stream_usage=True)
whole = chat.invoke(chat_input)
chunks = list(chat.stream(chat_input))
response = ChatOpenAI(**options, use_responses_api=True).invoke(chat_input)
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
