"""The workloads for kernels: one layer of a step, with the attention heads of known models."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.backends.attention.base import AttentionBatch, AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention heads of one model, or of one GPU's share of a model."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_size: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step: decodes of one context, then sequences with several queries each."""

    name: str
    heads: Heads
    num_decodes: int = 0
    decode_len: int = 0
    num_chunks: int = 0
    chunk_queries: int = 0
    chunk_len: int = 0

    @property
    def query_lens(self) -> list[int]:
        return [1] * self.num_decodes + [self.chunk_queries] * self.num_chunks

    @property
    def seq_lens(self) -> list[int]:
        return [self.decode_len] * self.num_decodes + [self.chunk_len] * self.num_chunks

    @property
    def is_decode(self) -> bool:
        """Whether the step has decodes only, which are bound by memory bandwidth."""
        return self.num_chunks == 0

    @property
    def cache_tokens(self) -> int:
        return sum(self.seq_lens)

    def cache_bytes(self, itemsize: int) -> int:
        """Size of the keys and values of all tokens."""
        return 2 * self.cache_tokens * self.heads.num_kv_heads * self.heads.head_size * itemsize

    def moved_bytes(self, itemsize: int) -> int:
        """Minimum bytes read and written: context, the step's keys and values, queries, output."""
        heads, num_rows = self.heads, sum(self.query_lens)
        rows = 2 * num_rows * (heads.num_heads + heads.num_kv_heads) * heads.head_size * itemsize
        return self.cache_bytes(itemsize) + rows

    def operations(self) -> int:
        """Floating-point operations of both products (query and key, weight and value), without
        masked pairs."""
        pairs = sum(
            q * n - q * (q - 1) // 2 for q, n in zip(self.query_lens, self.seq_lens, strict=True)
        )
        return 4 * pairs * self.heads.num_heads * self.heads.head_size

    def spec(self, block_size: int, dtype: torch.dtype, device: torch.device) -> AttentionSpec:
        heads = self.heads
        return AttentionSpec(
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_size,
            block_size=block_size,
            dtype=dtype,
            device=device,
            scale=heads.head_size**-0.5,
        )

    def num_blocks(self, block_size: int) -> int:
        """Number of blocks that the sequences need."""
        return sum(-(-n // block_size) for n in self.seq_lens)

    def batch(self, block_size: int, device: torch.device) -> AttentionBatch:
        """The layout of the step, with blocks in random order."""
        query_lens, seq_lens = self.query_lens, self.seq_lens
        counts = [-(-n // block_size) for n in seq_lens]
        blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
        tables = list(torch.split(blocks, counts))
        slots = []
        for table, queries, length in zip(tables, query_lens, seq_lens, strict=True):
            positions = torch.arange(length - queries, length)
            slots.append(table[positions // block_size] * block_size + positions % block_size)
        return AttentionBatch(
            query_start_loc=torch.tensor([0, *query_lens]).cumsum(0).int().to(device),
            seq_lens=torch.tensor(seq_lens).int().to(device),
            block_tables_bm=torch.nn.utils.rnn.pad_sequence(tables, True).int().to(device),
            slot_mapping_t=torch.cat(slots).to(device),
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
            num_decodes=self.num_decodes,
        )


EIGHT_B = Heads(name="8B", num_heads=32, num_kv_heads=8)
SEVENTY_B = Heads(name="70B", num_heads=64, num_kv_heads=8)
RANK = Heads(name="70B on 8 GPUs", num_heads=8, num_kv_heads=1)
TINY = Heads(name="tiny", num_heads=4, num_kv_heads=2, head_size=64)

BATCHES = (1, 32, 256)
CONTEXTS = {"1k": 1 << 10, "8k": 1 << 13, "32k": 1 << 15}
PROMPTS = {"512": 512, "2k": 2048, "8k": 8192}
CHUNKS = {"512 after 7.5k": (512, 8192), "2k after 30k": (2048, 32768)}


def decodes(heads: Heads) -> list[Workload]:
    return [
        Workload(name=f"{batch} x {name}", heads=heads, num_decodes=batch, decode_len=length)
        for batch in BATCHES
        for name, length in CONTEXTS.items()
    ]


def prompts(heads: Heads) -> list[Workload]:
    """Steps with whole prompts, chunks of long prompts, and a chunk among decodes."""
    steps = {f"prompt {name}": (1, n, n) for name, n in PROMPTS.items()}
    steps["4 prompts 2k"] = (4, 2048, 2048)
    steps |= {f"chunk {name}": (1, q, n) for name, (q, n) in CHUNKS.items()}
    alone = [
        Workload(name=name, heads=heads, num_chunks=count, chunk_queries=q, chunk_len=n)
        for name, (count, q, n) in steps.items()
    ]
    mixed = Workload(
        name="32 x 8k and chunk 512 after 7.5k",
        heads=heads,
        num_decodes=32,
        decode_len=8192,
        num_chunks=1,
        chunk_queries=512,
        chunk_len=8192,
    )
    return [*alone, mixed]


FULL = [
    *decodes(EIGHT_B),
    *prompts(EIGHT_B),
    *decodes(SEVENTY_B),
    *prompts(SEVENTY_B),
    *decodes(RANK),
]
"""The most important workloads come first, in case time runs out."""
MINIATURE = [
    Workload(name="2 x 40", heads=TINY, num_decodes=2, decode_len=40),
    Workload(name="prompt 30", heads=TINY, num_chunks=1, chunk_queries=30, chunk_len=30),
    Workload(name="chunk 8 after 32", heads=TINY, num_chunks=1, chunk_queries=8, chunk_len=40),
]
"""Workloads for a rehearsal on a CPU."""
