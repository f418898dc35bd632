"""The route POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.parsing.answers import ContentDelta, collect
from ...core.outputs import CompletionOutput, RequestOutput
from ..chat.grammar_fields import naming_field
from ..chat.logprobs import TokenNames
from ..chat.reading import END_REASONS
from ..http.ignored_fields import name_ignored
from ..parsing.transforms import AnswerChain, TransformedAnswers
from ..serving.answers import Outputs, TokenCounts, whole_answer
from ..serving.context import AnswerHead, AppContext, check_fan_out, context_of, make_head
from ..serving.reading.request_reading import compute, read_body
from ..serving.request_options import request_options
from ..serving.streams import submit_all
from .chunks import event_stream, make_usage
from .logprobs import Scored, completion_logprobs, prompt_logprobs, scored_prompt
from .prompts import Prompt, read_prompts, tokenized, transformed_prompts
from .reading.bodies import CompletionBody
from .reading.requests import check_combinations, completion_params, grammar_fields
from .request_metrics import answer_metrics
from .responses import CompletionChoice, CompletionResponse, PromptLogprobs


async def create_completion(request: Request) -> Response:
    """The completions of one or several prompts, as one document or as server-sent events."""
    context = context_of(request)
    body = await read_body(request, CompletionBody)
    check_combinations(body)
    context.check_model(body.model, is_needed=True)
    prompts = await compute(request, read_prompts, body.prompt, "prompt")
    check_fan_out(len(prompts), body.n or 1)
    engine = context.engine
    options = request_options(request, body, "cmpl", context.settings.metadata_headers)
    params = await compute(request, completion_params, body, engine)
    changed, transformed = await transformed_prompts(prompts, engine, context.parsers, options)
    adds_special = body.add_special_tokens is not False
    fields = grammar_fields(body)
    with naming_field(fields.param):
        requests = await submit_all(
            request,
            await tokenized(changed, engine, add_special_tokens=adds_special),
            params,
            options,
            is_streamed=bool(body.stream),
        )
    ignored = [f"{fields.param}.{keyword}" for keyword in requests.ignored_keywords]
    name_ignored(request.scope, ignored)
    head = make_head(requests.request_id, engine.model_name)
    answer = _Answer(body, head, context, changed, transformed)
    if body.stream:
        return event_stream(request, requests, answer, body)
    return await whole_answer(request, requests, answer.whole)


class _Answer:
    """Builds choices and chunks from the engine's outputs, and counts text offsets; see
    chunks.Answer."""

    def __init__(
        self,
        body: CompletionBody,
        head: AnswerHead,
        context: AppContext,
        prompts: Sequence[Prompt],
        transformed: TransformedAnswers | None,
    ) -> None:
        self._body = body
        self._head = head
        self._context = context
        self._tokenizer = context.engine.tokenizer
        self._names = TokenNames(self._tokenizer, bool(body.return_tokens_as_token_ids))
        self._prompts = prompts
        self._n = body.n or 1
        self._transformed = transformed
        self._chains: dict[int, AnswerChain] = {}
        self._offsets: dict[int, int] = {}
        self._echoed: dict[int, list[Scored]] = {}
        """The scored tokens of each prompt that is echoed with log-probabilities."""

    def whole(self, outputs: Outputs, counts: TokenCounts) -> CompletionResponse:
        choices = [
            self._choice(prompt, output, found)
            for prompt, output in enumerate(outputs)
            for found in output.outputs
        ]
        return self._end(self._chunk(choices), counts)

    def opening(self) -> tuple[CompletionResponse, ...]:
        return ()

    def chunks(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> list[CompletionResponse]:
        choice = self._choice(prompt, output, found)
        has_news = choice.text or choice.finish_reason or choice.logprobs or choice.token_ids
        return [self._chunk([choice])] if has_news else []

    def closing(self, counts: TokenCounts) -> CompletionResponse:
        return self._end(self._chunk([]), counts)

    def _end(self, answer: CompletionResponse, counts: TokenCounts) -> CompletionResponse:
        num_choices = len(self._prompts) * self._n
        answer.usage = make_usage(counts)
        answer.metrics = answer_metrics(self._context, counts, num_choices)
        answer.system_fingerprint = self._context.fingerprint
        return answer

    def _chunk(self, choices: list[CompletionChoice]) -> CompletionResponse:
        head = self._head
        return CompletionResponse(
            id=head.id, created=head.created, model=head.model, choices=choices
        )

    def _choice(
        self, prompt: int, output: RequestOutput, found: CompletionOutput
    ) -> CompletionChoice:
        index = prompt * self._n + found.index
        is_first = index not in self._offsets
        # The offset is counted by tokens, not by sent text: the text of some tokens is held back,
        # because it may be part of a stop string or end within a character.
        offset = self._offsets.get(index, 0)
        logprobs = None
        scored = self._echoed_tokens(prompt, output) if is_first else []
        scored = [*scored, *((one.token_id, one) for one in found.logprobs or ())]
        if scored:
            num_top = None if self._body.logprob_token_ids else self._body.logprobs
            logprobs, offset = completion_logprobs(scored, self._names, offset, num_top)
        self._offsets[index] = offset
        with_ids = bool(self._body.return_token_ids)
        return CompletionChoice(
            index=index,
            text=(self._echo(prompt, output) if is_first else "") + self._text(index, found),
            logprobs=logprobs,
            finish_reason=END_REASONS.get(found.finish_reason),
            stop_reason=UNSET if found.stop_reason is None else found.stop_reason,
            token_ids=list(found.token_ids) if with_ids else UNSET,
            prompt_token_ids=list(output.prompt_token_ids) if with_ids and is_first else UNSET,
            prompt_logprobs=self._prompt_logprobs(output),
        )

    def _text(self, index: int, found: CompletionOutput) -> str:
        """The new text of a choice, as the transforms change it."""
        if self._transformed is None:
            return found.text
        chain = self._chains.get(index)
        if chain is None:
            chain = self._chains[index] = self._transformed.answer()
        deltas = chain.feed([ContentDelta(found.text)] if found.text else [])
        return collect(deltas + chain.finish() if found.finished else deltas).content or ""

    def _echoed_tokens(self, prompt: int, output: RequestOutput) -> list[Scored]:
        """The prompt's tokens with their log-probabilities. Only the first output has them."""
        if not self._body.echo or self._body.logprobs is None:
            return []
        if output.prompt_logprobs is not None and prompt not in self._echoed:
            ids = output.prompt_token_ids
            self._echoed[prompt] = scored_prompt(ids, output.prompt_logprobs)
        return self._echoed[prompt]

    def _prompt_logprobs(self, output: RequestOutput) -> PromptLogprobs | UnsetType:
        num_top = self._body.prompt_logprobs
        if num_top is None or output.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(output.prompt_logprobs, self._tokenizer, num_top)

    def _echo(self, prompt: int, output: RequestOutput) -> str:
        if not self._body.echo:
            return ""
        found = self._prompts[prompt]
        is_whole = self._body.truncate_prompt_tokens is None
        if is_whole and isinstance(found, str):
            return found
        return self._tokenizer.decode(output.prompt_token_ids)
