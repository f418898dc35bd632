"""Your own FastAPI application: a route that asks the model, and the engine's whole API under /llm.

pip install fastapi
uvicorn --app-dir examples fastapi_app:app
curl 'http://127.0.0.1:8000/ask?question=What+is+the+capital+of+Japan'
curl http://127.0.0.1:8000/llm/v1/models -H 'Authorization: Bearer secret'
"""

from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tokenmill import AsyncEngine, OutputKind, SamplingParams, create_app

engine = AsyncEngine(max_num_seqs=8)
llm = create_app(engine, api_keys=["secret"])
app = FastAPI(lifespan=llm.router.lifespan_context)  # starts the engine, and closes it at the end
app.mount("/llm", llm)


@app.get("/ask")
async def ask(question: str) -> StreamingResponse:
    """Stream an answer as plain text."""
    return StreamingResponse(answer(question), media_type="text/plain")


async def answer(question: str) -> AsyncIterator[str]:
    """The pieces of an answer, as they come."""
    params = SamplingParams(temperature=0, max_tokens=48, output_kind=OutputKind.DELTA)
    async for output in engine.chat([{"role": "user", "content": question}], params):
        yield output.outputs[0].text
