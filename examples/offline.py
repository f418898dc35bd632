"""Generate for a list of prompts, in a script or a notebook: python examples/offline.py"""

from tokenmill import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
]


def main() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with LLM() as llm:  # the embedded model; LLM("path/to/model") takes another one
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
        [answer] = llm.chat([{"role": "user", "content": "Who wrote Hamlet?"}], params)
        print(answer.outputs[0].text)


if __name__ == "__main__":
    main()
