"""Anthropic's client: whole, streamed, counted."""

import json
import sys

import anthropic

url, model, prompt = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, max_retries=0, _strict_response_validation=True)
ask = {"model": model, "messages": [{"role": "user", "content": prompt}]}
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
