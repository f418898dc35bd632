// Causal attention over a paged KV cache, for a flat batch of sequences.
//
// The cache of one layer is [block][kv_head]{keys, values}; a block is contiguous. Its slots are in
// groups of 16, or of 8 if the block size is no multiple of 16.
//
// In bfloat16, the keys of a group are [head_size / 2][slot][2] and the values are
// [slot / 2][head_size][2]. Dot products of bfloat16 pairs need the two numbers of a pair side by
// side. One register holds 16 keys, so that scores need no sum across lanes, or 16 numbers of two
// values. In float, keys are [head_size][slot] and values are [slot][head_size].
#pragma once

#include <cstdint>
#include <vector>

#include "linear/linear.h"

namespace tokenmill {

// Dimensions of attention, the same for all layers. structures.py has the same layout, and
// those of AttentionBatch and AttentionCall.
struct AttentionSpec {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_size;   // a multiple of 16
  int32_t block_size;  // a multiple of 8
  Element element;     // of queries, cache and output
  int32_t sliding_window;  // keys that a query sees, its own included; 0: all keys up to its own
  float scale;             // above 0
  float logits_soft_cap;   // 0: none
};

// The sequences of one step. The last query of a sequence is its last token. A sequence may have no
// query.
struct AttentionBatch {
  int64_t num_seqs;
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs]
  const int32_t* block_tables;     // [num_seqs, block_tables_stride]
  int64_t block_tables_stride;
  // [query_start_loc[num_seqs]], or null: the position of the last key that each query sees, its own
  // or a later one of this step; it grows within a sequence. Windows begin before the query's own.
  const int32_t* last_keys;
};

// Some queries of one sequence, with all query heads of one KV head. A tile's keys are divided into
// chunks, each with its own softmax, and the chunks are merged in order. So the result is the same
// to the last bit whichever threads compute the chunks, and whatever else is in the step.
struct AttentionTile {
  int32_t seq;
  int32_t kv_head;
  int64_t first_row;       // of the flat batch
  int64_t first_position;  // of the first query in its sequence
  int64_t key_begin;       // a multiple of the group size
  int64_t key_end;
  int64_t chunk_keys;
  int64_t partial;  // offset of its chunks' results if several threads compute them; else -1
  int32_t queries;
  int32_t chunks;
};

// The division of one step's work into parts, the same for every layer.
struct AttentionPlan {
  struct Cut {
    int64_t tile;
    int32_t chunk;
  };
  AttentionSpec spec;
  AttentionBatch batch;
  std::vector<AttentionTile> tiles;
  std::vector<Cut> cuts;              // part i is [cuts[i], cuts[i + 1])
  std::vector<int64_t> shared_tiles;  // indices of tiles with a `partial`
  std::vector<float> partials;
};

// Divides the work into `parts` parts of about the same duration. Keeps pointers into the batch.
void plan_attention(const AttentionSpec& spec, const AttentionBatch& batch, int parts,
                    AttentionPlan* plan);

struct AttentionCall {
  AttentionPlan* plan;
  const void* q;
  int64_t q_stride;  // between tokens, in elements; heads of a token are contiguous
  const void* kv_cache;
  void* out;
  int64_t out_stride;
  // [num_heads], or null: a number per head that takes part in the softmax like the scaled score of a
  // key whose value is 0.
  const float* sinks;
};

// Computes one worker's part, within a parallel region. All workers must call it. `out` may be read
// after the next barrier.
void attention_part(const AttentionCall& call, int worker, int workers);

// Sizes and offsets in a cache, in bytes unless noted.
struct CacheLayout {
  int64_t group;        // slots
  int64_t token_bytes;  // keys or values of one token and head
  int64_t value_offset;  // from a head's keys to its values
  int64_t head_bytes;
  int64_t block_bytes;
};
inline CacheLayout cache_layout(const AttentionSpec& spec) {
  const int64_t token = int64_t{spec.head_size} * (spec.element == Element::kBF16 ? 2 : 4);
  const int64_t keys = token * spec.block_size;
  return {spec.block_size % 16 == 0 ? 16 : 8, token, keys, 2 * keys, 2 * keys * spec.num_kv_heads};
}

}  // namespace tokenmill
