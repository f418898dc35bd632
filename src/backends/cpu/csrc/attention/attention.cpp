// Runs attention: each worker's tiles, then the merging of chunks.
#include "attention/attention.h"

#include <algorithm>
#include <cmath>

#include "attention/kernels.h"
#include "threads/scratch.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// One thread's memory for one tile.
class Workspace {
 public:
  // Throws std::bad_alloc.
  void reserve(int64_t rows, int64_t head_size) {
    at_ = scratch_.floats(3 * rows * head_size + 4 * (rows + 16) + 16 * rows);
  }

  void* packed() const { return at_; }
  SoftmaxState state(int index, int64_t rows, int64_t head_size) const {
    float* out = at_ + (1 + index) * rows * head_size;
    float* small = at_ + 3 * rows * head_size + index * 2 * (rows + 16);
    return {small, small + rows, out};
  }
  float* lane_sums(int64_t rows, int64_t head_size) const {
    return at_ + 3 * rows * head_size + 4 * (rows + 16);
  }

 private:
  Scratch scratch_;
  float* at_ = nullptr;
};
thread_local Workspace workspace;

class Worker {
 public:
  explicit Worker(const AttentionCall& call)
      : call_(call),
        plan_(*call.plan),
        spec_(plan_.spec),
        layout_(cache_layout(spec_)),
        kernels_(attention_kernels()),
        element_(static_cast<int>(spec_.element)),
        element_bytes_(spec_.element == Element::kBF16 ? 2 : 4),
        group_size_(spec_.num_heads / spec_.num_kv_heads) {}

  void run_part(int64_t part) const {
    const auto begin = plan_.cuts[part], end = plan_.cuts[part + 1];
    for (int64_t index = begin.tile; index <= end.tile; index++) {
      if (index == end.tile && end.chunk == 0) break;
      const AttentionTile& tile = plan_.tiles[index];
      const int32_t first = index == begin.tile ? begin.chunk : 0;
      const int32_t last = index == end.tile ? end.chunk : tile.chunks;
      // The next tile's keys are prefetched, unless they belong to another worker's part.
      const KeyRange next = index + 1 < end.tile || (index + 1 == end.tile && end.chunk > 0)
                                ? keys_of(plan_.tiles[index + 1], 0)
                                : KeyRange{};
      run_tile(tile, first, last, next);
    }
  }

  void merge_partials(const AttentionTile& tile) const {
    const SoftmaxState total = partial_state(tile, 0);
    for (int32_t chunk = 1; chunk < tile.chunks; chunk++)
      kernels_.merge(total, partial_state(tile, chunk), rows_of(tile), spec_.head_size);
    finish(tile, total);
  }

 private:
  int rows_of(const AttentionTile& tile) const { return tile.queries * group_size_; }

  KeyRange keys_of(const AttentionTile& tile, int32_t chunk) const {
    const int64_t begin = tile.key_begin + chunk * tile.chunk_keys;
    return {plan_.batch.block_tables + tile.seq * plan_.batch.block_tables_stride,
            static_cast<const uint8_t*>(call_.kv_cache) + tile.kv_head * layout_.head_bytes, begin,
            std::min(begin + tile.chunk_keys, tile.key_end)};
  }

  SoftmaxState partial_state(const AttentionTile& tile, int32_t chunk) const {
    const int64_t rows = rows_of(tile);
    float* at = plan_.partials.data() + tile.partial + chunk * rows * (spec_.head_size + 2);
    return {at + rows * spec_.head_size, at + rows * (spec_.head_size + 1), at};
  }

  void run_tile(const AttentionTile& tile, int32_t first, int32_t last, KeyRange next) const {
    const int rows = rows_of(tile);
    workspace.reserve(rows, spec_.head_size);
    pack(tile, rows);
    const SoftmaxState total = workspace.state(0, rows, spec_.head_size);
    for (int32_t chunk = first; chunk < last; chunk++) {
      const bool is_shared = tile.partial >= 0;
      const SoftmaxState state = is_shared    ? partial_state(tile, chunk)
                                 : chunk == 0 ? total
                                              : workspace.state(1, rows, spec_.head_size);
      ChunkCall call = {};
      call.spec = &spec_;
      call.layout = layout_;
      call.q = workspace.packed();
      call.rows = rows;
      call.group_size = group_size_;
      call.first_position = tile.first_position;
      if (plan_.batch.last_keys != nullptr)
        call.last_keys = plan_.batch.last_keys + tile.first_row;
      call.keys = keys_of(tile, chunk);
      call.next_keys = chunk + 1 < last ? keys_of(tile, chunk + 1) : next;
      call.state = state;
      call.lane_sums = workspace.lane_sums(rows, spec_.head_size);
      kernels_.attend[element_](call);
      if (!is_shared && chunk > 0) kernels_.merge(total, state, rows, spec_.head_size);
    }
    if (tile.partial < 0) finish(tile, total);
  }

  void pack(const AttentionTile& tile, int rows) const {
    const int64_t at = tile.first_row * call_.q_stride +
                       int64_t{tile.kv_head} * group_size_ * spec_.head_size;
    PackCall call = {};
    call.q = static_cast<const uint8_t*>(call_.q) + at * element_bytes_;
    call.q_stride = call_.q_stride;
    call.rows = rows;
    call.group_size = group_size_;
    call.head_size = spec_.head_size;
    call.packed = workspace.packed();
    kernels_.pack[element_](call);
  }

  void finish(const AttentionTile& tile, const SoftmaxState& state) const {
    auto* out = static_cast<uint8_t*>(call_.out);
    for (int row = 0; row < rows_of(tile); row++) {
      const int64_t head = int64_t{tile.kv_head} * group_size_ + row % group_size_;
      const int64_t at =
          (tile.first_row + row / group_size_) * call_.out_stride + head * spec_.head_size;
      const float sum = state.sum[row] + sink_weight(head, state.maximum[row]);
      kernels_.finish[element_](state.out + int64_t{row} * spec_.head_size, sum, spec_.head_size,
                                out + at * element_bytes_);
    }
  }

  // The weight of a head's sink, relative to the row's maximum, like the weights of the keys.
  float sink_weight(int64_t head, float maximum) const {
    constexpr float kLog2E = 1.44269504f;
    return call_.sinks == nullptr ? 0.0f : std::exp2(call_.sinks[head] * kLog2E - maximum);
  }

  const AttentionCall& call_;
  AttentionPlan& plan_;
  const AttentionSpec& spec_;
  const CacheLayout layout_;
  const AttentionKernels& kernels_;
  const int element_;
  const int64_t element_bytes_;
  const int group_size_;
};

}  // namespace

void attention_part(const AttentionCall& call, int worker, int workers) {
  const AttentionPlan& plan = *call.plan;
  const Worker mine(call);
  const auto parts = static_cast<int64_t>(plan.cuts.size()) - 1;
  for (int64_t part = worker; part < parts; part += workers) mine.run_part(part);
  if (plan.shared_tiles.empty()) return;
  barrier();
  const auto shared = static_cast<int64_t>(plan.shared_tiles.size());
  for (int64_t i = worker; i < shared; i += workers)
    mine.merge_partials(plan.tiles[plan.shared_tiles[i]]);
}

}  // namespace tokenmill
