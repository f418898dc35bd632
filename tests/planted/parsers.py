"""Bugs of the parsers of tool calls and of reasoning."""

from __future__ import annotations

from .planting import Bug

TOOLS, REASONING = "plugins/tool_parsers", "plugins/reasoning_parsers"
TEXT, JSON = "core/contract/parsing/answer_text.py", "core/contract/parsing/json_calls.py"


def tools(file: str, old: str, new: str, caught_as: str = "AssertionError") -> Bug:
    path = file if "/" in file else f"{TOOLS}/{file}.py"
    test = "tests/plugins/tool_parsers/test_parsers.py"
    return Bug(file=path, old=old, new=new, test=test, caught_as=caught_as)


def think(old: str, new: str) -> Bug:
    test = "tests/plugins/reasoning_parsers/test_think.py"
    return Bug(file=f"{REASONING}/think.py", old=old, new=new, test=test)


BUGS = {
    "all calls have the same number": tools("hermes", "index += 1", "index += 0"),
    "the end of a call is content": tools("hermes", "yield from take_end(answer, CLOSE)", "pass"),
    "the marker of a broken call is lost": tools("hermes", "yield ContentDelta(opened)", "pass"),
    "the bracket after a list of calls is content": tools(
        "mistral", 'yield from take_next(answer, "]")\n            break', "break"
    ),
    "a function that does not exist is called": tools(
        "mistral", "if head[1] not in names:", "if not head[1]:"
    ),
    "a name that never ends is held back": tools(
        "mistral",
        "if answer.is_complete or len(answer.unread) > _LONGEST_NAME:",
        "if answer.is_complete:",
    ),
    "a separator without a second call is lost": tools(
        "llama3_json", "skipped = SEPARATOR", 'skipped = ""'
    ),
    "false becomes true": tools("pythonic", '"false": False', '"false": True'),
    "positional arguments are dropped": tools("pythonic", " or node.args:", ":"),
    "a second list of functions may not exist": tools(
        "pythonic", "if not calls or any(name not in names for name, _ in calls):", "if not calls:"
    ),
    "values lose the space within their lines": tools(
        "xml", 'text.removeprefix("\\n").removesuffix("\\n")', "text.strip()"
    ),
    "a value ends with the last argument": tools(
        "xml",
        "body.find(self.argument_end, opened.end())",
        "body.rfind(self.argument_end, opened.end())",
    ),
    "text after an object is ignored": tools("gemma", ' and reader.next == ""', ""),
    "numbers stay text": tools("gemma", "return json.loads(text)", "return text"),
    "a message to nobody is a call": tools("gpt_oss", " or name[0] not in names", ""),
    "a lost comma": tools("generic", "yield ContentDelta(comma)", "pass"),
    "a call that comes in pieces is content": tools(
        "generic", "len(answer.unread) < _LONGEST_HEAD and not answer.is_complete", "False"
    ),
    "a cut marker is shown": tools(
        TEXT,
        "text[: len(text) - partial_length(text, markers)].rstrip()",
        "text.rstrip()",
    ),
    "space before a marker is content": tools(
        TEXT, "answer.take(len(text[: found.start()].rstrip()))", "answer.take(found.start())"
    ),
    "an escaped quote ends a string": tools(
        TEXT, 'self._is_escaped = char == "\\\\"', "self._is_escaped = False", "JSONDecodeError"
    ),
    "brackets in strings count": tools(TEXT, "self._quote = char\n", "self._quote = None\n"),
    "arguments lose their first brace": tools(
        JSON, "answer.take(head.end())", "answer.take(head.end() + 1)", "JSONDecodeError"
    ),
    "a call whose name comes last is content": tools(
        JSON,
        "if end is not None:\n            return (yield",
        "if end == 0:\n            return (yield",
    ),
    "reasoning that the prompt opens is content": think(
        "prompt_end.rstrip().endswith(start)", "False"
    ),
    "reasoning is content": think("yield delta and ReasoningDelta(delta.text)", "yield delta"),
    "the answer begins with empty lines": think(
        "yield from skip_space(answer)\n        yield from rest_as_content(answer)",
        "yield from rest_as_content(answer)",
    ),
}
