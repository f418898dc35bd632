"""OpenAI's client, strict: chat, responses and embeddings."""

import json
import sys

import openai

url, model, prompt = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", max_retries=0, _strict_response_validation=True)
ask = {"model": model, "messages": [{"role": "user", "content": prompt}]}
options = {"max_tokens": 16, "temperature": 0}
whole = client.chat.completions.create(**ask, **options)
chunks = list(client.chat.completions.create(stream=True, **ask, **options))
response = client.responses.create(model=model, input=prompt, max_output_tokens=16, temperature=0)
print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            "responses": response.output_text,
        }
    )
)
