"""instructor: an answer with a schema, by `response_format` and by the call of a function."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

url, model, prompt = sys.argv[1:]


class Sea(BaseModel):
    # A schema allows other fields unless it forbids them, and a small model never stops adding
    # some: the answer would end at max_tokens, in the middle of a text.
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    depth: int = Field(ge=0, le=11000)


def ask(mode: instructor.Mode) -> list[str]:
    client = instructor.from_openai(OpenAI(base_url=f"{url}/v1"), mode=mode)
    sea = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        response_model=Sea,
        max_retries=1,
        temperature=0,
        max_tokens=200,
    )
    return sorted(sea.model_dump())


print(json.dumps({"schema": ask(instructor.Mode.JSON_SCHEMA), "tools": ask(instructor.Mode.TOOLS)}))
