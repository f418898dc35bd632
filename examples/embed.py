"""An engine inside your own asyncio program: python examples/embed.py

Two answers stream at once, a third is broken off half-way, which frees its memory within a step.
"""

import asyncio

from tokenmill import AsyncEngine, OutputKind, SamplingParams


async def stream(engine: AsyncEngine, name: str, prompt: str) -> None:
    """Print an answer piece by piece, as it comes."""
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=32, output_kind=OutputKind.DELTA)
    async for output in engine.generate(prompt, params):
        print(f"{name}: {output.outputs[0].text!r}")


async def break_off(engine: AsyncEngine) -> None:
    """Abort a request by closing its stream."""
    stream = await engine.submit("Once upon a time", SamplingParams(max_tokens=500))
    async for output in stream:
        if len(output.outputs[0].token_ids) >= 8:
            break
    await stream.aclose()
    print(f"broken off; requests that run: {engine.load().num_running}")


async def main() -> None:
    async with AsyncEngine(max_num_seqs=8) as engine:
        await asyncio.gather(
            stream(engine, "first", "The best thing about the sea is"),
            stream(engine, "second", "My favourite recipe begins with"),
            break_off(engine),
        )


if __name__ == "__main__":
    asyncio.run(main())
