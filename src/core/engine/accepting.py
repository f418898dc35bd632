"""Applies the tokens of a step to a request: appends them, checks for the end, publishes blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..outputs import FinishReason
from ..plan import Grant
from .blocks.pool import BlockPool
from .request import Request


class AcceptedRun(NamedTuple):
    """The tokens of one step that a request keeps, and why the last one ends it, if it does."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None


def accept(
    request: Request, grant: Grant, token_ids: Sequence[int], max_model_len: int
) -> AcceptedRun:
    """Append the sampled tokens up to the token that ends the request; drop the tokens after it.
    A request with max_tokens 0 ends with its prompt.

    The KV of accepted drafts is in the cache. The KV of the last token is not computed yet.
    """
    request.num_computed_tokens += grant.num_tokens - grant.num_draft_tokens
    for i, token_id in enumerate(token_ids):
        request.token_ids.append(token_id)
        request.num_computed_tokens += i > 0
        reason, stop_reason = check_end(request, token_id, max_model_len)
        if reason is not None:
            return AcceptedRun(tuple(token_ids[: i + 1]), reason, stop_reason)
    if not request.max_tokens and request.num_computed_tokens >= request.num_prompt_tokens:
        return AcceptedRun((), FinishReason.LENGTH)
    return AcceptedRun(tuple(token_ids))


def check_end(
    request: Request, token_id: int, max_model_len: int
) -> tuple[FinishReason | None, int | None]:
    """Why the token just appended ends the request, if it does, and the stop token if it is one."""
    params = request.sampling_params
    # A grammar ends an answer early only if nothing else may come.
    is_constrained = params.grammar is not None
    if request.num_generated_tokens >= params.min_tokens or is_constrained:
        if token_id in request.eos_token_ids and (is_constrained or not params.ignore_eos):
            return FinishReason.STOP, None
        if token_id in params.stop_token_ids:
            return FinishReason.STOP, token_id
    if request.num_generated_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        return FinishReason.LENGTH, None
    return None, None


def publish(pool: BlockPool, request: Request) -> None:
    """Add the request's full, computed blocks to the prefix cache."""
    size = pool.block_size
    num_full = request.num_computed_tokens // size
    if not request.publishes or num_full <= request.num_published_blocks:
        return
    hashes = request.hashes_for(num_full, size)
    for group, table in enumerate(request.tables):
        for i in range(max(request.num_published_blocks, table.num_passed), num_full):
            pool.publish(
                table.block_ids[i - table.num_passed],
                hashes[i],
                request.token_ids[i * size : (i + 1) * size],
                group,
                parent_hash=hashes[i - 1] if i else None,
                cache_salt=request.options.cache_salt,
                media=request.media,
                start=i * size,
            )
    request.num_published_blocks = num_full


def give_back(pool: BlockPool, request: Request) -> None:
    """Shorten the block tables to what known tokens and proposed drafts need.

    The executor does the same with its copies of the block tables.
    """
    num_blocks = pool.num_blocks_for(request.num_tokens + request.num_proposed_tokens)
    for table in request.tables:
        num_kept = num_blocks - table.num_passed
        pool.drop(reversed(table.block_ids[num_kept:]))
        del table.block_ids[num_kept:]


def drop_passed(pool: BlockPool, request: Request) -> None:
    """Drop the blocks that the windows have passed.

    Open plans may include the request. They compute later tokens, which do not see these blocks,
    and only a plan made after now can hand the blocks out again. So nothing is overwritten too
    early.
    """
    if not pool.has_windows:
        return
    passed = pool.num_passed_blocks(request.num_computed_tokens)
    for table, num_passed in zip(request.tables, passed, strict=True):
        num_new = num_passed - table.num_passed
        if num_new:
            pool.drop(reversed(table.block_ids[:num_new]))
            del table.block_ids[:num_new]
            table.num_passed = num_passed
