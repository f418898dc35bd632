// Divides a step's attention into tiles and parts.
#include <algorithm>

#include "attention/attention.h"

namespace tokenmill {
namespace {

// Queries times heads of a tile: enough to reuse keys in L1 many times. With 64 keys and values,
// the queries and sums of head size 64 just fit into 32 KB.
constexpr int64_t kTileRows = 48;
// Keys of a chunk. Chunks are short enough for two threads to share a short sequence. Merging wide
// tiles costs more, so prefill chunks are longer.
constexpr int64_t kDecodeChunk = 128;
constexpr int64_t kPrefillChunk = 1024;
// Queries of a decode with its drafts, which are at most 16. It is divided like a decode alone, so
// that a token's sums are added in the same order with and without drafts.
constexpr int64_t kDecodeQueries = 17;
// Number of rows whose computation takes as long as reading a key and its value.
constexpr int64_t kRowsPerRead = 12;
// A part may be too long by the fraction 1 / kTolerance if that avoids sharing a tile, which costs
// a barrier and a merge.
constexpr int64_t kTolerance = 32;

int64_t row_cost(const AttentionTile& tile, int64_t rows_per_query) {
  return std::max<int64_t>(kRowsPerRead, tile.queries * rows_per_query);
}

void add_tiles(const AttentionSpec& spec, const AttentionBatch& batch, int32_t seq,
               std::vector<AttentionTile>* tiles) {
  const int64_t first_row = batch.query_start_loc[seq];
  const int64_t queries = batch.query_start_loc[seq + 1] - first_row;
  const int64_t before = batch.seq_lens[seq] - queries;
  const int64_t per_tile = std::max<int64_t>(1, kTileRows / (spec.num_heads / spec.num_kv_heads));
  const int64_t group = cache_layout(spec).group;
  for (int32_t kv_head = 0; kv_head < spec.num_kv_heads; kv_head++) {
    for (int64_t query = 0; query < queries; query += per_tile) {
      AttentionTile tile = {};
      tile.seq = seq;
      tile.kv_head = kv_head;
      tile.first_row = first_row + query;
      tile.first_position = before + query;
      tile.queries = static_cast<int32_t>(std::min(per_tile, queries - query));
      tile.key_end = batch.last_keys == nullptr
                         ? tile.first_position + tile.queries
                         : batch.last_keys[tile.first_row + tile.queries - 1] + 1;
      if (spec.sliding_window > 0) {
        const int64_t first_seen = tile.first_position + 1 - spec.sliding_window;
        tile.key_begin = std::max<int64_t>(0, first_seen) / group * group;
      }
      tile.chunk_keys = queries <= kDecodeQueries ? kDecodeChunk : kPrefillChunk;
      const int64_t keys = tile.key_end - tile.key_begin;
      tile.chunks = static_cast<int32_t>((keys + tile.chunk_keys - 1) / tile.chunk_keys);
      tile.partial = -1;
      tiles->push_back(tile);
    }
  }
}

// The chunk of a tile at which a part ends. Ideally the part gets `missing` of the tile's `cost`.
// It ends at the begin or end of the tile if one of them is within `tolerance`, else between two
// chunks.
int32_t choose_chunk(const AttentionTile& tile, int64_t cost, int64_t missing, int64_t tolerance) {
  const int64_t left = cost - missing;
  if (std::min(missing, left) <= tolerance || tile.chunks == 1)
    return missing <= left ? 0 : tile.chunks;
  return static_cast<int32_t>((missing * tile.chunks + cost / 2) / cost);
}

// Divides the sequence of all tiles into parts of equal cost.
void cut(AttentionPlan* plan, int parts) {
  const int64_t rows_per_query = plan->spec.num_heads / plan->spec.num_kv_heads;
  const auto cost_of = [&](const AttentionTile& tile) {
    return (tile.key_end - tile.key_begin) * row_cost(tile, rows_per_query);
  };
  const auto tiles = static_cast<int64_t>(plan->tiles.size());
  int64_t total = 0;
  for (const AttentionTile& tile : plan->tiles) total += cost_of(tile);
  const int64_t tolerance = total / parts / kTolerance;
  plan->cuts.assign(1, {0, 0});
  int64_t index = 0, before = 0;
  for (int part = 1; part < parts; part++) {
    const int64_t target = total * part / parts;
    while (index < tiles && before + cost_of(plan->tiles[index]) <= target)
      before += cost_of(plan->tiles[index++]);
    AttentionPlan::Cut at = {index, 0};
    if (index < tiles) {
      const AttentionTile& tile = plan->tiles[index];
      at.chunk = choose_chunk(tile, cost_of(tile), target - before, tolerance);
      if (at.chunk == tile.chunks) at = {index + 1, 0};
    }
    // Several parts may end in one long tile.
    const AttentionPlan::Cut& last = plan->cuts.back();
    const bool is_after = at.tile > last.tile || (at.tile == last.tile && at.chunk >= last.chunk);
    plan->cuts.push_back(is_after ? at : last);
  }
  plan->cuts.push_back({tiles, 0});
}

// Reserves memory for the results of all chunks of tiles that several parts share.
void make_room_for_partials(AttentionPlan* plan) {
  const int64_t rows_per_query = plan->spec.num_heads / plan->spec.num_kv_heads;
  int64_t floats = 0;
  plan->shared_tiles.clear();
  for (const auto& at : plan->cuts) {
    if (at.chunk == 0 || plan->tiles[at.tile].partial >= 0) continue;
    AttentionTile& tile = plan->tiles[at.tile];
    tile.partial = floats;
    floats += tile.chunks * tile.queries * rows_per_query * (plan->spec.head_size + 2);
    plan->shared_tiles.push_back(at.tile);
  }
  if (static_cast<int64_t>(plan->partials.size()) < floats) plan->partials.resize(floats);
}

}  // namespace

void plan_attention(const AttentionSpec& spec, const AttentionBatch& batch, int parts,
                    AttentionPlan* plan) {
  plan->spec = spec;
  plan->batch = batch;
  plan->tiles.clear();
  for (int32_t seq = 0; seq < batch.num_seqs; seq++) add_tiles(spec, batch, seq, &plan->tiles);
  cut(plan, parts);
  make_room_for_partials(plan);
}

}  // namespace tokenmill
