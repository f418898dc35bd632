"""OpenAI's client with a running server. Start one with `make serve` or `tokenmill serve`, then

python examples/serve_client.py [BASE_URL]

It needs OpenAI's package: pip install openai
"""

import sys

from openai import OpenAI


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    with OpenAI(base_url=base_url, api_key="none") as client:  # or the server's --api-key
        model = client.models.list().data[0].id

        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of Japan?"}],
            temperature=0,
            max_tokens=16,
        )
        print(f"{model}: {answer.choices[0].message.content}")
        print(f"usage: {answer.usage}")

        # Fields that OpenAI does not have, such as vLLM's top_k, go into extra_body.
        stream = client.completions.create(
            model=model,
            prompt="The sea is",
            max_tokens=16,
            stream=True,
            extra_body={"top_k": 20},
        )
        for chunk in stream:
            print(chunk.choices[0].text if chunk.choices else "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
