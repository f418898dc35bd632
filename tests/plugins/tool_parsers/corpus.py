"""Answers of each family of models, as their chat templates write them: (text, content, calls)."""

from __future__ import annotations

from typing import Any

Calls = list[tuple[str, dict[str, Any]]]
OSLO: Calls = [("weather", {"city": "Oslo"})]
BOTH: Calls = [*OSLO, ("time.now", {"zone": "CET", "days": [1, 2]})]
ODD: Calls = [("weather", {"city": 'a "b" \\ }] </tool_call> [/x] ;'})]
"""Text in an argument that looks like the end of the call."""
QUOTE: Calls = [("weather", {"city": '" }'})]
"""An odd number of quotes."""
_JSON = '{"name": "weather", "arguments": {"city": "Oslo"}}'
_TIME = '{"name": "time.now", "arguments": {"zone": "CET", "days": [1, 2]}}'
_ODD = r'{"name": "weather", "arguments": {"city": "a \"b\" \\ }] </tool_call> [/x] ;"}}'

CORPUS: dict[str, list[tuple[str, str, Calls]]] = {
    "generic": [
        (_JSON, "", OSLO),
        (f"{_JSON}\n{_TIME}", "", BOTH),
        (f"I look it up.\n\n{_JSON}", "I look it up.", OSLO),
        (f"{_JSON}\n\nDone.", "Done.", OSLO),
        (f"[{_JSON}, {_TIME}]", "", BOTH),
        (f"```json\n[\n  {_JSON},\n  {_TIME}\n]\n```", "", BOTH),
        (f"```json\n{_JSON}\n```\nand\n```\n{_TIME}\n```", "and", BOTH),
        (f"<tool_call>\n{_JSON}\n</tool_call>", "", OSLO),
        ('{ "name" : "weather",\n "parameters": {"city": "Oslo"} }', "", OSLO),
        ('{"arguments": {"city": "Oslo"}, "name": "weather"}', "", OSLO),
        (f"{_ODD} in f() {{ x }}", "in f() { x }", ODD),
        (f"{_JSON}, and so on", ", and so on", OSLO),
        ('{"name": "Ada", "age": [1]} or {maybe}', '{"name": "Ada", "age": [1]} or {maybe}', []),
    ],
    "hermes": [
        (f"<tool_call>\n{_JSON}\n</tool_call>", "", OSLO),
        (f"<tool_call>\n{_JSON}\n</tool_call>\n<tool_call>\n{_TIME}\n</tool_call>", "", BOTH),
        (f"Let me see.\n\n<tool_call>{_JSON}</tool_call>", "Let me see.", OSLO),
        (f"<tool_call>{_JSON}", "", OSLO),
        (f"<tool_call>{_ODD}</tool_call>", "", ODD),
        (r'<tool_call>{"name": "weather", "arguments": {"city": "\" }"}}</tool_call>', "", QUOTE),
        ('<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>', "", OSLO),
        ('<tool_call>{"name": "find-it", "arguments": {}}</tool_call>', "", [("find-it", {})]),
        (f"<tool_call>{_JSON}</tool_call>\nDone.", "Done.", OSLO),
        ("Plain text, with 1 < 2 and <tool", "Plain text, with 1 < 2 and <tool", []),
    ],
    "llama3-json": [
        ('{"name": "weather", "parameters": {"city": "Oslo"}}', "", OSLO),
        ('<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}', "", OSLO),
        (
            '{"name": "weather", "parameters": {"city": "Oslo"}}; '
            '{"name": "time.now", "parameters": {"zone": "CET", "days": [1, 2]}}',
            "",
            BOTH,
        ),
        ('{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}', "", OSLO),
        ('{"name": "weather", "parameters": {"city": "Oslo"}}; wait.', "; wait.", OSLO),
        (_ODD, "", ODD),
        ('{"city": "Oslo"}', '{"city": "Oslo"}', []),
        ("It is sunny; {maybe}.", "It is sunny; {maybe}.", []),
    ],
    "mistral": [
        (f"[TOOL_CALLS][{_JSON}]", "", OSLO),
        (f"[TOOL_CALLS] [{_JSON}, {_TIME}]", "", BOTH),
        (
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]',
            "",
            OSLO,
        ),
        ('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "", OSLO),
        ('[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}', "", OSLO),
        (
            '[TOOL_CALLS]weather{"city": "Oslo"}'
            '[TOOL_CALLS]time.now{"zone": "CET", "days": [1, 2]}',
            "",
            BOTH,
        ),
        (f"One moment. [TOOL_CALLS][{_ODD}]", "One moment.", ODD),
        ("a [list] of [TOOL", "a [list] of [TOOL", []),
    ],
    "gemma": [
        ('<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>', "", OSLO),
        (
            '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>'
            '<|tool_call>call:time.now{zone:<|"|>CET<|"|>,days:[1,2]}<tool_call|>',
            "",
            BOTH,
        ),
        (
            "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
            "",
            OSLO,
        ),
        (
            '<|tool_call>call:find-it{a:{b:true,c:[{d:null},-1.5]},e:word}<tool_call|>',
            "",
            [("find-it", {"a": {"b": True, "c": [{"d": None}, -1.5]}, "e": "word"})],
        ),
        (
            '<|tool_call>call:weather{city:<|"|>a, b: {c}<|"|>}<tool_call|>',
            "",
            [("weather", {"city": "a, b: {c}"})],
        ),
        ("<|tool_call>call:find-it{}<tool_call|>", "", [("find-it", {})]),
        ("1 <| 2 <|tool", "1 <| 2 <|tool", []),
    ],
    "pythonic": [
        ('[weather(city="Oslo")]', "", OSLO),
        ('[weather(city="Oslo"), time.now(zone=\'CET\', days=[1, 2])]', "", BOTH),
        ('<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>', "", OSLO),
        ('Sure.\n<|tool_call_start|>[weather(city="Oslo")]<|tool_call_end|>Wait.',
         "Sure.Wait.", OSLO),
        ('<|python_start|>[weather(city="Oslo")]<|python_end|>', "", OSLO),
        (
            "[weather(city={'a': [True, None, -1.5, true]})]",
            "",
            [("weather", {"city": {"a": [True, None, -1.5, True]}})],
        ),
        ('[weather(city="](")]', "", [("weather", {"city": "]("})]),
        ("[weather(city=false, days=null)]", "", [("weather", {"city": False, "days": None})]),
        ("[1, 2] and [notes](x)", "[1, 2] and [notes](x)", []),
        ("[weather(", "[weather(", []),
    ],
    "qwen3-xml": [
        (
            "<tool_call><function=weather><parameter=city>\n\n  Oslo \n\n</parameter></function>"
            "</tool_call>",
            "",
            [("weather", {"city": "\n  Oslo \n"})],
        ),
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
            "</tool_call>",
            "",
            OSLO,
        ),
        (
            "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=time.now>\n<parameter=zone>\nCET\n"
            "</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
            "I look.",
            BOTH,
        ),
        ("<tool_call>\n<function=find-it>\n</function>\n</tool_call>", "", [("find-it", {})]),
        ("a <function or <tool_call", "a <function or <tool_call", []),
    ],
    "glm": [
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
            "</tool_call>",
            "",
            OSLO,
        ),
        (
            "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"
            "<tool_call>time.now<arg_key>zone</arg_key><arg_value>CET</arg_value>"
            "<arg_key>days</arg_key><arg_value>[1, 2]</arg_value></tool_call>",
            "",
            BOTH,
        ),
        ("<tool_call>find-it</tool_call>", "", [("find-it", {})]),
    ],
    "gpt-oss": [
        (
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": "Oslo"}<|call|>',
            "",
            OSLO,
        ),
        ("<|channel|>commentary to=functions.find-it<|message|>{}", "", [("find-it", {})]),
        ("no <|channel|>comm", "no <|channel|>comm", []),
    ],
}  # fmt: skip
MALFORMED: dict[str, list[str]] = {
    "generic": [
        '{"name": "weather"}',
        '{"name": "weather", "argu',
        '```json\n[{"name": "unknown", "arguments": {}}]\n```',
        '{"arguments": 3, "name": "weather"}',
        "if (x) { return [{ y: 1 }]; } // ```\n{}",
        '{"arguments":' * 300,
        "[{" * 3000,
    ],
    "hermes": [
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>{"name": "weather"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "argu',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "<tool_call>{}</tool_call> and <tool_call>",
        "<tool_call><tool_call></tool_call>",
    ],
    "llama3-json": [
        '{"name": "weather", "parameters": 3}',
        '{"name": "unknown", "parameters": {}}',
        '<|python_tag|>print("hello")',
        '{"name": "weather", "para',
        "{{{",
        "{" * 5000,
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS][1, 2]",
        "[TOOL_CALLS]unknown[ARGS]{}",
        "[TOOL_CALLS]weather and so on",
        "[TOOL_CALLS]" + 300 * "a",
    ],
    "gemma": [
        "<|tool_call>weather{}<tool_call|>",
        "<|tool_call>call:weather{city:<tool_call|>",
        '<|tool_call>call:weather{city:<|"|>Oslo}<tool_call|>',
        "<|tool_call>call:unknown{}<tool_call|>",
        "<|tool_call>call:weather{a:1}} more<tool_call|>",
        "<|tool_call>call:weather{" + "a:{" * 200 + "}" * 201 + "<tool_call|>",
    ],
    "qwen3-xml": [
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>weather</tool_call>",
        "<tool_call><function=weather",
    ],
    "glm": ["<tool_call>unknown</tool_call>", "<tool_call>weather and more</tool_call>"],
    "gpt-oss": [
        "<|channel|>commentary to=functions.unknown<|message|>{}",
        "<|channel|>commentary to=functions.weather",
    ],
    "pythonic": [
        '[weather("Oslo")]',
        "[weather(city=open('x'))]",
        "[weather(**{'a': 1})]",
        '[unknown(city="Oslo")]',
        "[weather(city=b'x')]",
        '[weather(city="Oslo"), 3]',
        '[weather(city="Oslo"), unknown(city="Oslo")]',
        "<|tool_call_start|>nothing<|tool_call_end|>",
        "[weather(a=" + "[" * 3000 + "]" * 3000 + ")]",
    ],
}
