"""The requests of a benchmark, and where their prompts come from.

Names, options and defaults of the datasets are those of `vllm bench serve`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import ConfigError

TRACE_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
MIN_TOKENS, MAX_SHAREGPT_PROMPT, MAX_SHAREGPT_TOKENS = 4, 1024, 2048
"""Shorter or longer conversations of ShareGPT are left out, as vLLM does."""


class Vocabulary(Protocol):
    """Makes text of an exact number of tokens, and counts tokens."""

    @property
    def token_ids(self) -> Sequence[int]:
        """Ordinary tokens, from which random prompts are drawn."""
        ...

    def text(self, token_ids: Sequence[int]) -> str: ...
    def count(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    text: str
    num_tokens: int
    """Number of tokens of `text`, as far as it is known."""
    max_tokens: int
    at: float | None = None
    """Seconds after the start at which it is sent; None: the request rate decides."""
    after: int | None = None
    """Index of the request of the same conversation before it, whose answer it waits for."""
    messages: tuple[Mapping[str, str], ...] = ()
    """Messages of the conversation before `text`, without those of the requests before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The requests to make. Fields that another dataset uses have no effect."""

    name: str = "random"
    path: Path | None = None
    num_prompts: int = 1000
    seed: int = 0
    input_len: int = 1024
    output_len: int | None = None
    """None: 128, or what the dataset says."""
    range_ratio: float = 0.0
    """Lengths are drawn between 1 - ratio and 1 + ratio times the given ones."""
    prefix_len: int = 0
    num_prefixes: int = 10
    shuffles: bool = True
    oversamples: bool = True
    """Requests are repeated if the file has too few."""
    sec_multiplier: float = 1.0
    chunk_hash_size: int = 16
    trace_fields: Mapping[str, str] = field(default_factory=dict)
    """The trace's own names of TRACE_FIELDS."""

    def prompts(self, vocabulary: Vocabulary) -> list[Prompt]:
        """Make the requests. Raises ConfigError for a file that cannot be read."""
        make = DATASETS[self.name]
        found = make(self, vocabulary, random.Random(self.seed))
        if not found:
            raise ConfigError(f"--dataset-path {self.path} has no request that can be sent")
        return found


def _random(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """Random tokens, after a prefix that all prompts share."""
    prefix = rng.choices(vocabulary.token_ids, k=of.prefix_len)
    output_len = 128 if of.output_len is None else of.output_len
    prompts = []
    for _ in range(of.num_prompts):
        own = rng.choices(vocabulary.token_ids, k=_vary(of.input_len, of.range_ratio, rng))
        prompts.append(
            Prompt(
                text=vocabulary.text([*prefix, *own]),
                num_tokens=len(prefix) + len(own),
                max_tokens=_vary(output_len, of.range_ratio, rng),
            )
        )
    return prompts


def _prefix_repetition(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """Prompts of a prefix and `input_len` tokens: the same number for each of `num_prefixes`."""
    per_prefix = of.num_prompts // of.num_prefixes
    if not per_prefix:
        raise ConfigError(
            f"--prefix-repetition-num-prefixes is {of.num_prefixes}, but there are only "
            f"{of.num_prompts} prompts (--num-prompts)"
        )
    output_len = 128 if of.output_len is None else of.output_len
    prompts = []
    for _ in range(of.num_prefixes):
        prefix = rng.choices(vocabulary.token_ids, k=of.prefix_len)
        for _ in range(per_prefix):
            ids = [*prefix, *rng.choices(vocabulary.token_ids, k=of.input_len)]
            text = vocabulary.text(ids)
            prompts.append(Prompt(text=text, num_tokens=len(ids), max_tokens=output_len))
    if of.shuffles:
        rng.shuffle(prompts)
    return prompts


def _sharegpt(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """The first message of each conversation; the second one says how long the answer is."""
    records = _read_json(of.path)
    turns = [record.get("conversations", ()) for record in records if isinstance(record, dict)]
    pairs = [(one[0]["value"], one[1]["value"]) for one in turns if len(one) >= 2]
    if of.shuffles:
        rng.shuffle(pairs)
    prompts: list[Prompt] = []
    for asked, answered in pairs:
        if len(prompts) == of.num_prompts:
            break
        prompt_len = vocabulary.count(asked)
        answer_len = vocabulary.count(answered) if of.output_len is None else of.output_len
        is_fine = min(prompt_len, answer_len) >= MIN_TOKENS and prompt_len <= MAX_SHAREGPT_PROMPT
        if is_fine and prompt_len + answer_len <= MAX_SHAREGPT_TOKENS:
            prompts.append(Prompt(text=asked, num_tokens=prompt_len, max_tokens=answer_len))
    return _oversample(of, prompts, rng)


def _custom(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """JSON lines with `prompt`, and `output_tokens` if --custom-output-len is -1."""
    records = list(_read_lines(of.path))
    if of.shuffles:
        rng.shuffle(records)
    prompts = []
    for record in records[: of.num_prompts]:
        if not isinstance(record.get("prompt"), str):
            raise ConfigError(f"--dataset-path {of.path}: each line needs a text `prompt`")
        wanted = 256 if of.output_len is None else of.output_len
        text, length = record["prompt"], record.get("output_tokens") if wanted == -1 else wanted
        if not isinstance(length, int) or length < 1:
            raise ConfigError(f"--dataset-path {of.path}: each line needs a number `output_tokens`")
        prompts.append(Prompt(text=text, num_tokens=vocabulary.count(text), max_tokens=length))
    return _oversample(of, prompts, rng)


def _timed_trace(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids`, as Mooncake's.

    Equal hash ids are equal chunks of `chunk_hash_size` tokens, so prompts share prefixes as in the
    trace.
    """
    chunks: dict[object, list[int]] = {}
    prompts: list[Prompt] = []
    first: float | None = None
    for record in itertools.islice(_read_lines(of.path), of.num_prompts):
        time, length_name, output_name, hashes = (
            of.trace_fields.get(name, name) for name in TRACE_FIELDS
        )
        try:
            at = float(record[time]) * of.sec_multiplier
            length, output_len = int(record[length_name]), int(record[output_name])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"--dataset-path {of.path}: {error!r} in {record!r}") from error
        first = at if first is None else first
        ids: list[int] = []
        for one in record.get(hashes, ()):
            if one not in chunks:
                chunks[one] = rng.choices(vocabulary.token_ids, k=of.chunk_hash_size)
            ids += chunks[one]
        ids = ids[:length] + rng.choices(vocabulary.token_ids, k=max(0, length - len(ids)))
        prompts.append(
            Prompt(
                text=vocabulary.text(ids),
                num_tokens=length,
                max_tokens=max(1, output_len),
                at=max(0.0, at - first),
            )
        )
    return prompts


def _multi_turn(of: Dataset, vocabulary: Vocabulary, rng: random.Random) -> list[Prompt]:
    """Conversations, in the form of vLLM's benchmark_serving_multi_turn.py: each message of a user
    is a request, which follows the answer to the one before it. The file's answers say how long
    answers are."""
    conversations = [_messages_of(record, of.path) for record in _read_json(of.path)]
    if of.shuffles:
        rng.shuffle(conversations)
    prompts: list[Prompt] = []
    sources = itertools.cycle(conversations) if of.oversamples else conversations
    for messages in sources if any(map(_asks, conversations)) else ():
        after: int | None = None
        begin: list[Mapping[str, str]] = []
        for message, following in itertools.zip_longest(messages, messages[1:]):
            text = message["content"]
            if message["role"] == "system":
                begin.append(message)
            if message["role"] != "user" or len(prompts) == of.num_prompts:
                continue
            is_answered = following is not None and following["role"] == "assistant"
            known = vocabulary.count(following["content"]) if is_answered else 128
            prompts.append(
                Prompt(
                    text=text,
                    num_tokens=vocabulary.count(text),
                    max_tokens=max(1, known if of.output_len is None else of.output_len),
                    after=after,
                    messages=tuple(begin),
                )
            )
            after, begin = len(prompts) - 1, []
        if len(prompts) == of.num_prompts:
            break
    return prompts


def _messages_of(record: Any, path: Path | None) -> Sequence[Mapping[str, str]]:
    """The messages of {"messages": [{"role": ..., "content": ...}]}. Raises ConfigError."""
    found = record.get("messages") if isinstance(record, dict) else None
    if isinstance(found, list) and all(map(_is_message, found)):
        return found
    raise ConfigError(
        f"--dataset-path {path}: each conversation needs `messages` with a text `role` and "
        "`content`"
    )


def _is_message(found: Any) -> bool:
    names = ("role", "content")
    return isinstance(found, dict) and all(isinstance(found.get(name), str) for name in names)


def _asks(messages: Sequence[Mapping[str, str]]) -> bool:
    return any(message["role"] == "user" for message in messages)


DATASETS = {
    "multi_turn": _multi_turn,
    "random": _random,
    "sharegpt": _sharegpt,
    "custom": _custom,
    "prefix_repetition": _prefix_repetition,
    "timed_trace": _timed_trace,
}


def _vary(length: int, ratio: float, rng: random.Random) -> int:
    low, high = int(length * (1 - ratio)), int(length * (1 + ratio))
    return max(1, rng.randint(low, high))


def _oversample(of: Dataset, prompts: list[Prompt], rng: random.Random) -> list[Prompt]:
    missing = of.num_prompts - len(prompts)
    if missing > 0 and prompts and of.oversamples:
        prompts += rng.choices(prompts, k=missing)
    return prompts


def _open(path: Path | None) -> str:
    if path is None:
        raise ConfigError("--dataset-path must name the file of this dataset")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --dataset-path {path}: {error}") from error


def _read_json(path: Path | None) -> list[Any]:
    try:
        found = json.loads(_open(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"--dataset-path {path} is not JSON: {error}") from error
    if not isinstance(found, list):
        raise ConfigError(f"--dataset-path {path} must hold a JSON list")
    return found


def _read_lines(path: Path | None) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(_open(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"--dataset-path {path}, line {number}: {error}") from error
        if not isinstance(record, dict):
            raise ConfigError(f"--dataset-path {path}, line {number}: not a JSON object")
        yield record
