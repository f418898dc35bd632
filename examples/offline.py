"""Answers for a list of prompts, in a script or a notebook.

python examples/offline.py [MAX_TOKENS]
"""

import sys

from tokenmill import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Water boils at", "def fibonacci(n):"]


def main() -> None:
    max_tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)

    with LLM() as llm:  # the default model; LLM("path/to/model") takes another one
        # Pass all prompts at once: the engine computes them together.
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")

        # A conversation goes through the model's chat template.
        [answer] = llm.chat([{"role": "user", "content": "Who wrote Hamlet?"}], params)
        print(f"chat -> {answer.outputs[0].text!r}")


if __name__ == "__main__":
    main()
