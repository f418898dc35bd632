"""Paged attention in Triton: kernels that write the cache, attend, and merge splits.

One kernel serves decodes, prompts and chunks. A program computes one tile of rows: the queries of
consecutive tokens of one sequence, for all query heads that share one KV head, so that K and V are
read once for all of them. It walks through the keys with the online softmax of FlashAttention-2
(Dao, 2023), in powers of two. If programs are few and contexts long, the keys of a tile are split
among several programs, and a second kernel merges their results (Flash-Decoding).

Keys and values are read through the block table, key by key, so blocks may have any size. Slots
that hold no visible token are not read.

Import this module only after `TritonAttention.reasons_against`: it needs the package triton.
"""
# Triton's decorator and its kernels' parameters have no types; Triton reads only `constexpr`.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens"])
def write_kv_kernel(
    k,  # [t, k, d]
    v,  # [t, k, d]
    keys,  # [n, s, k, d]
    values,  # [n, s, k, d], strides as keys
    slots,  # int64 [t]; negative: not written
    num_tokens,
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    cache_stride_n,
    cache_stride_s,
    cache_stride_h,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD_SIZE: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
):
    """Write K and V of each token to its slot. Grid: (tiles of tokens, KV heads)."""
    token = tl.program_id(0).to(tl.int64) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    head = tl.program_id(1)
    column = tl.arange(0, PADDED_HEAD_SIZE)
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1)
    is_written = (slot >= 0)[:, None] & (column < HEAD_SIZE)[None, :]
    in_cache = slot // BLOCK_SIZE * cache_stride_n + slot % BLOCK_SIZE * cache_stride_s
    target = (in_cache + head * cache_stride_h)[:, None] + column[None, :]
    from_k = (token * k_stride_t + head * k_stride_h)[:, None] + column[None, :]
    from_v = (token * v_stride_t + head * v_stride_h)[:, None] + column[None, :]
    tl.store(keys + target, tl.load(k + from_k, mask=is_written), mask=is_written)
    tl.store(values + target, tl.load(v + from_v, mask=is_written), mask=is_written)


@triton.jit(do_not_specialize=["table_stride"])
def attend_kernel(
    q,  # [t, h, d]
    keys,  # [n, s, k, d]
    values,  # [n, s, k, d], strides as keys
    out,  # [t, h, d]; not used when split
    partial_out,  # float32 [t, h, splits, d]; used when split
    partial_lse,  # float32 [t, h, splits]: log2 of the sum of exp2(score); used when split
    tiles,  # int32 [tiles, 4]: sequence, first row, queries, position of the first; or decodes
    seq_lens,  # int32 [b]; used by decodes
    block_tables,  # int32 [b, m]
    score_scale,  # turns q @ k into log2 units; with a cap, into fractions of the cap
    q_stride_t,
    q_stride_h,
    out_stride_t,
    out_stride_h,
    cache_stride_n,
    cache_stride_s,
    cache_stride_h,
    table_stride,
    IS_DECODE: tl.constexpr,  # tile i is the one query of sequence i
    IS_SPLIT: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # query heads per KV head
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFT_CAP: tl.constexpr,  # in log2 units; 0: none
):
    """Attend with one tile of queries. Grid: (tiles, KV heads, splits)."""
    index = tl.program_id(0)
    kv_head = tl.program_id(1)
    if IS_DECODE:
        sequence = index
        first_row = index
        num_queries = 1
        position = tl.load(seq_lens + index) - 1
    else:
        sequence = tl.load(tiles + 4 * index)
        first_row = tl.load(tiles + 4 * index + 1)
        num_queries = tl.load(tiles + 4 * index + 2)
        position = tl.load(tiles + 4 * index + 3)
    # Row r is query r // GROUP_SIZE of the tile and head r % GROUP_SIZE of the KV head's group.
    row = tl.arange(0, TILE_ROWS)
    column = tl.arange(0, PADDED_HEAD_SIZE)
    query = row // GROUP_SIZE
    head = kv_head * GROUP_SIZE + row % GROUP_SIZE
    token = (first_row + query).to(tl.int64)
    is_used = (query < num_queries)[:, None] & (column < HEAD_SIZE)[None, :]
    from_q = (token * q_stride_t + head * q_stride_h)[:, None] + column[None, :]
    q_rd = tl.load(q + from_q, mask=is_used, other=0.0)

    end_key = position + num_queries
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(position + 1 - WINDOW, 0)
    begin = first_key // TILE_KEYS * TILE_KEYS
    end = tl.cdiv(end_key, TILE_KEYS) * TILE_KEYS
    if IS_SPLIT:
        share = tl.cdiv(tl.cdiv(end - begin, TILE_KEYS), tl.num_programs(2)) * TILE_KEYS
        begin += tl.program_id(2) * share
        end = tl.minimum(begin + share, end)
    # Without a window all queries see all keys before the first query's own: no mask is needed.
    masked_from = begin
    if WINDOW == 0:
        masked_from = tl.maximum(begin, tl.minimum((position + 1) // TILE_KEYS * TILE_KEYS, end))
    peak_r = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    sum_r = tl.zeros([TILE_ROWS], tl.float32)
    acc_rd = tl.zeros([TILE_ROWS, PADDED_HEAD_SIZE], tl.float32)
    table = block_tables + sequence * table_stride
    keys += kv_head * cache_stride_h
    values += kv_head * cache_stride_h
    peak_r, sum_r, acc_rd = _attend_keys(
        peak_r,
        sum_r,
        acc_rd,
        q_rd,
        keys,
        values,
        table,
        begin,
        masked_from,
        first_key,
        end_key,
        position + query,
        score_scale,
        cache_stride_n,
        cache_stride_s,
        False,
        HEAD_SIZE,
        PADDED_HEAD_SIZE,
        BLOCK_SIZE,
        TILE_KEYS,
        WINDOW,
        SOFT_CAP,
    )
    peak_r, sum_r, acc_rd = _attend_keys(
        peak_r,
        sum_r,
        acc_rd,
        q_rd,
        keys,
        values,
        table,
        masked_from,
        end,
        first_key,
        end_key,
        position + query,
        score_scale,
        cache_stride_n,
        cache_stride_s,
        True,
        HEAD_SIZE,
        PADDED_HEAD_SIZE,
        BLOCK_SIZE,
        TILE_KEYS,
        WINDOW,
        SOFT_CAP,
    )
    # A row without a visible key (an empty split, a padding sequence) has sum 0 and output 0.
    total_r = tl.where(sum_r == 0, 1.0, sum_r)
    attended_rd = acc_rd / total_r[:, None]
    if IS_SPLIT:
        part = (token * NUM_HEADS + head) * tl.num_programs(2) + tl.program_id(2)
        lse_r = tl.where(sum_r == 0, float("-inf"), peak_r + tl.log2(total_r))
        tl.store(partial_lse + part, lse_r, mask=query < num_queries)
        to_part = part[:, None] * HEAD_SIZE + column[None, :]
        tl.store(partial_out + to_part, attended_rd, mask=is_used)
    else:
        to_out = (token * out_stride_t + head * out_stride_h)[:, None] + column[None, :]
        tl.store(out + to_out, attended_rd.to(out.dtype.element_ty), mask=is_used)


@triton.jit
def _attend_keys(
    peak_r,
    sum_r,
    acc_rd,
    q_rd,
    keys,
    values,
    table,
    begin,
    end,
    first_key,
    end_key,
    position_r,
    score_scale,
    cache_stride_n,
    cache_stride_s,
    IS_MASKED: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    """Add keys [begin, end) to the running maximum, sum and weighted values of every row."""
    column = tl.arange(0, PADDED_HEAD_SIZE)
    for start in tl.range(begin, end, TILE_KEYS):
        key = start + tl.arange(0, TILE_KEYS)
        # Outside these bounds no query sees a key: there may be no block, or NaN in its slots.
        is_read = tl.full([TILE_KEYS], True, tl.int1)
        if IS_MASKED:
            is_read = (key >= first_key) & (key < end_key)
        block = tl.load(table + key // BLOCK_SIZE, mask=is_read, other=0).to(tl.int64)
        in_cache = block * cache_stride_n + key % BLOCK_SIZE * cache_stride_s
        cell = in_cache[:, None] + column[None, :]
        is_cell = is_read[:, None] & (column < HEAD_SIZE)[None, :]
        k_ld = tl.load(keys + cell, mask=is_cell, other=0.0)
        score_rl = tl.dot(q_rd, tl.trans(k_ld), input_precision="ieee") * score_scale
        if SOFT_CAP > 0:
            # cap * tanh(score / cap), by exp2: 2 * log2(e) = 2.885...
            score_rl = SOFT_CAP * (2.0 / (1.0 + tl.exp2(score_rl * -2.8853900817779268)) - 1.0)
        if IS_MASKED:
            is_seen = (key[None, :] <= position_r[:, None]) & is_read[None, :]
            if WINDOW > 0:
                is_seen = is_seen & (key[None, :] > position_r[:, None] - WINDOW)
            score_rl = tl.where(is_seen, score_rl, float("-inf"))
        new_peak_r = tl.maximum(peak_r, tl.max(score_rl, 1))
        # A row that has seen no key yet has no maximum to subtract.
        base_r = tl.where(new_peak_r == float("-inf"), 0.0, new_peak_r)
        weight_rl = tl.exp2(score_rl - base_r[:, None])
        fade_r = tl.exp2(peak_r - base_r)
        v_ld = tl.load(values + cell, mask=is_cell, other=0.0)
        sum_r = sum_r * fade_r + tl.sum(weight_rl, 1)
        acc_rd = tl.dot(
            weight_rl.to(v_ld.dtype), v_ld, acc_rd * fade_r[:, None], input_precision="ieee"
        )
        peak_r = new_peak_r
    return peak_r, sum_r, acc_rd


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits_kernel(
    partial_out,  # float32 [t, h, splits, d]
    partial_lse,  # float32 [t, h, splits]
    out,  # [t, h, d]
    num_splits,
    out_stride_t,
    out_stride_h,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_HEAD_SIZE: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
):
    """Average the splits' results, weighted by their sums. Grid: (tokens, query heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, MAX_SPLITS)
    column = tl.arange(0, PADDED_HEAD_SIZE)
    is_column = column < HEAD_SIZE
    part = (token * NUM_HEADS + head) * num_splits + split
    lse_s = tl.load(partial_lse + part, mask=split < num_splits, other=float("-inf"))
    peak = tl.max(lse_s, 0)
    weight_s = tl.exp2(lse_s - tl.where(peak == float("-inf"), 0.0, peak))
    from_part = part[:, None] * HEAD_SIZE + column[None, :]
    is_part = (weight_s > 0)[:, None] & is_column[None, :]
    out_sd = tl.load(partial_out + from_part, mask=is_part, other=0.0)
    total = tl.sum(weight_s, 0)
    merged_d = tl.sum(out_sd * weight_s[:, None], 0) / tl.where(total == 0, 1.0, total)
    to_out = token * out_stride_t + head * out_stride_h + column
    tl.store(out + to_out, merged_d.to(out.dtype.element_ty), mask=is_column)
