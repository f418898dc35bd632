"""OpenAI's client, strict: chat and responses, of a text or of a text with a photo."""

import base64
import json
import sys
from pathlib import Path

import openai

url, model, prompt, *photos = sys.argv[1:]
parts, items = prompt, prompt
if photos:
    data = f"data:image/png;base64,{base64.b64encode(Path(photos[0]).read_bytes()).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": data}},
        {"type": "text", "text": prompt},
    ]
    content = [
        {"type": "input_image", "image_url": data, "detail": "auto"},
        {"type": "input_text", "text": prompt},
    ]
    items = [{"role": "user", "content": content}]
client = openai.OpenAI(base_url=f"{url}/v1", max_retries=0, _strict_response_validation=True)
ask = {"model": model, "messages": [{"role": "user", "content": parts}]}
options = {"max_tokens": 16, "temperature": 0}
whole = client.chat.completions.create(**ask, **options)
chunks = list(client.chat.completions.create(stream=True, **ask, **options))
response = client.responses.create(model=model, input=items, max_output_tokens=16, temperature=0)
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            "responses": response.output_text,
        }
    )
)
