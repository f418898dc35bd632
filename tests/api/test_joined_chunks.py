"""A chunk may hold several parts of an answer, because outputs are joined for a slow client."""

from __future__ import annotations

from tokenmill.api.anthropic.answers import ToolUseBlock
from tokenmill.api.anthropic.events import ContentBlockDelta, ContentBlockStart, _Blocks
from tokenmill.api.openai.responses import ChatChunkChoice, ChatDelta, ChatToolCall, FunctionCall
from tokenmill.api.responses.answers import OutputMessage
from tokenmill.api.responses.output import Output

BEGIN = ChatDelta(
    tool_calls=[
        ChatToolCall(index=0, id="call_1", function=FunctionCall(name="weather", arguments="{"))
    ]
)
END_AND_TEXT = ChatDelta(
    content="Now I wait.", tool_calls=[ChatToolCall(index=0, function=FunctionCall(arguments="}"))]
)


def test_the_end_of_a_call_comes_before_the_text_of_the_same_chunk_in_messages() -> None:
    blocks = _Blocks()
    events = [
        event
        for delta in (BEGIN, END_AND_TEXT)
        for event in blocks.take(
            ChatChunkChoice(index=0, delta=delta, logprobs=None, finish_reason=None)
        )
    ]
    begun = [event.content_block for event in events if isinstance(event, ContentBlockStart)]
    assert [isinstance(block, ToolUseBlock) for block in begun] == [True, False]
    pieces = [event.index for event in events if isinstance(event, ContentBlockDelta)]
    assert pieces == [0, 0, 1]


def test_the_end_of_a_call_comes_before_the_text_of_the_same_chunk_in_responses() -> None:
    output = Output("resp_1")
    for delta in (BEGIN, END_AND_TEXT):
        list(output.take(delta))
    list(output.close("completed"))
    call, message = output.items()
    assert getattr(call, "arguments", None) == "{}"
    assert isinstance(message, OutputMessage)
