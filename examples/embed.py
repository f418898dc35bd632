"""An engine inside your own asyncio program: two answers are streamed, a third is aborted.

python examples/embed.py [MAX_TOKENS]
"""

import asyncio
import sys

from tokenmill import AsyncEngine, OutputKind, SamplingParams


async def stream(engine: AsyncEngine, name: str, prompt: str, max_tokens: int) -> None:
    """Print an answer piece by piece, as it comes."""
    params = SamplingParams(
        temperature=0.7, seed=1, max_tokens=max_tokens, output_kind=OutputKind.DELTA
    )
    async for output in engine.generate(prompt, params):
        print(f"{name}: {output.outputs[0].text!r}", flush=True)


async def abort_early(engine: AsyncEngine) -> None:
    """Stop reading and close the answer: this aborts the request, and frees its memory."""
    answer = await engine.submit("Once upon a time", SamplingParams(max_tokens=500))
    async for output in answer:
        if len(output.outputs[0].token_ids) >= 4:
            break
    await answer.aclose()
    print("third: aborted")


async def main() -> None:
    max_tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    async with AsyncEngine(max_num_seqs=8) as engine:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                stream(engine, "first", "The best thing about the sea is", max_tokens)
            )
            group.create_task(stream(engine, "second", "My favourite meal is", max_tokens))
            group.create_task(abort_early(engine))
        print(f"still running: {engine.load().num_running}")


if __name__ == "__main__":
    asyncio.run(main())
