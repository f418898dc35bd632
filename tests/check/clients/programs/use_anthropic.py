"""Anthropic's client: whole, streamed, counted."""

import base64
import json
import sys
from pathlib import Path

import anthropic

url, model, prompt, *photos = sys.argv[1:]
content = prompt
if photos:
    data = base64.b64encode(Path(photos[0]).read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": prompt}]
client = anthropic.Anthropic(base_url=url, max_retries=0, _strict_response_validation=True)
ask = {"model": model, "messages": [{"role": "user", "content": content}]}
options = {"max_tokens": 16, "extra_body": {"temperature": 0}}
whole = client.messages.create(**ask, **options)
with client.messages.stream(**ask, **options) as stream:
    streamed = "".join(stream.text_stream)
counted = client.messages.count_tokens(**ask).input_tokens
usage = whole.usage
print(
    json.dumps(
        {
            "whole": whole.content[0].text,
            "streamed": streamed,
            "is_counted": counted == usage.input_tokens + usage.cache_read_input_tokens,
        }
    )
)
