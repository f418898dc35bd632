"""Where answers differ from the types of the Open Responses specification, from a file of them.

The types are made from the specification of 2026-04-24. They differ from OpenAI's in two places,
where the server follows OpenAI: the names of the events of reasoning, and the schema of an answer,
for which they allow only null.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from openresponses_types import types
from pydantic import ValidationError


def faults_of(answer: Any) -> list[str]:
    response = answer.get("response", answer)
    if "text" in response and "object" in response and "schema" in response["text"]["format"]:
        response["text"]["format"]["schema"] = None
    name = "ResponseResource"
    if "type" in answer:
        answer["type"] = answer["type"].replace("reasoning_text.", "reasoning.")
        name = "".join(map(str.title, re.split("[._]", answer["type"]))) + "StreamingEvent"
    try:
        getattr(types, name).model_validate_json(json.dumps(answer))
    except ValidationError as error:
        return [f"{name}.{'.'.join(map(str, o['loc']))}: {o['msg']}" for o in error.errors()]
    return []


answers = json.loads(Path(sys.argv[1]).read_text())
print(json.dumps([faults_of(answer) for answer in answers]))
