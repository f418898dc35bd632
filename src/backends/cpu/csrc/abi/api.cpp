// The functions that Python calls by ctypes. library.py, attention_ops.py and other files of that
// folder declare their signatures. No function throws. Each function that computes is one parallel
// region. After a failure, its output is undefined.
#include <cstdint>

#include "abi/c_abi.h"
#include "abi/structures.h"
#include "attention/attention.h"
#include "decoder/decoder.h"
#include "decoder/draft_head.h"
#include "elementwise/elementwise.h"
#include "linear/packed/packing.h"
#include "linear/packed/rows.h"
#include "ranks/ranks.h"
#include "sampling/logits.h"
#include "sampling/sampling.h"
#include "threads/thread_pool.h"

using namespace tokenmill;

namespace {

// Divides `count` items among the workers. A single item runs on the calling thread: it is done
// before a second thread would wake up.
template <class Function>
void share_out(int64_t count, Function&& run) {
  if (count == 1) return run(0, 1);
  parallel([&](int worker, int workers) {
    const Share mine = share_of(count, worker, workers);
    run(mine.begin, mine.end);
  });
}

}  // namespace

// Must be the same in library.py, and change with every signature. Structures are checked with
// tm_structures.
TM_API int tm_abi_version() noexcept { return 11; }
// The layouts of all shared structures. The last entry's structure is null.
TM_API const FieldLayout* tm_structures() noexcept { return structures(); }
// The instruction set that this library is compiled for.
TM_API const char* tm_instruction_set() noexcept { return TM_INSTRUCTION_SET; }

TM_API Status tm_set_threads(int threads, const int* cpus) noexcept {
  return guarded([&] { set_threads(threads, cpus); });
}
TM_API int tm_num_threads() noexcept { return num_threads(); }

TM_API int64_t tm_packed_bytes(const PackedLinear* weights) noexcept {
  return packed_bytes(*weights);
}
TM_API Status tm_pack(const PackedLinear* weights, const WeightRows* source,
                      uint8_t* data) noexcept {
  return guarded([&] { pack(*weights, *source, data); });
}
TM_API Status tm_unpack(const PackedLinear* weights, float* out) noexcept {
  return guarded([&] { unpack(*weights, out); });
}
// Writes rows of weights, one after the other, as read_row does.
TM_API Status tm_look_up(const PackedLinear* weights, const int64_t* rows, int64_t count, void* out,
                         Element out_type) noexcept {
  return guarded([&] {
    const int64_t row_bytes = weights->k * (out_type == Element::kF32 ? 4 : 2);
    share_out(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++)
        read_row(*weights, rows[i], static_cast<uint8_t*>(out) + i * row_bytes, out_type);
    });
  });
}
TM_API Status tm_linear(const LinearCall* call) noexcept {
  return guarded([&] { linear(*call); });
}

// A new, empty plan; null if there is too little memory.
TM_API AttentionPlan* tm_attention_plan_new() noexcept { return new (std::nothrow) AttentionPlan; }
TM_API void tm_attention_plan_free(AttentionPlan* plan) noexcept { delete plan; }
// Plans a step with one part per thread. After a failure the plan must not be used.
TM_API Status tm_attention_plan(AttentionPlan* plan, const AttentionSpec* spec,
                                const AttentionBatch* batch) noexcept {
  return guarded([&] { plan_attention(*spec, *batch, num_threads(), plan); });
}
// Writes the keys and values of `tokens` tokens, then computes attention, for one layer.
TM_API Status tm_write_and_attend(const RotateAndWriteCall* write, int64_t tokens,
                                  const AttentionCall* call) noexcept {
  return guarded([&] {
    parallel([&](int worker, int workers) {
      const Share mine = share_of(tokens * write->spec.num_kv_heads, worker, workers);
      rotate_and_write(*write, mine.begin, mine.end);
      barrier();
      attention_part(*call, worker, workers);
    });
  });
}

TM_API Status tm_run_decoder(const DecoderModel* model, const DecoderStep* step) noexcept {
  return guarded([&] { run_decoder(*model, *step); });
}
// The size that ranks.memory must have.
TM_API int64_t tm_shared_bytes(const Ranks* ranks) noexcept { return shared_bytes(*ranks); }
TM_API Status tm_sum_over_ranks(const Ranks* ranks, float* data, int64_t count) noexcept {
  return guarded([&] { sum_over_ranks(*ranks, data, count); });
}
TM_API Status tm_run_draft_head(const DraftHeadModel* model, const DraftHeadStep* step) noexcept {
  return guarded([&] { run_draft_head(*model, *step); });
}

TM_API Status tm_read_logits(const LogitsCall* call, int64_t rows) noexcept {
  return guarded([&] {
    share_out(rows, [&](int64_t begin, int64_t end) { read_logits(*call, begin, end); });
  });
}
TM_API Status tm_mask_logits(const MaskCall* call, int64_t masks) noexcept {
  return guarded([&] {
    share_out(masks, [&](int64_t begin, int64_t end) { mask_logits(*call, begin, end); });
  });
}
TM_API Status tm_draw(const DrawCall* call) noexcept {
  return guarded([&] {
    share_out(call->count, [&](int64_t begin, int64_t end) { draw_rows(*call, begin, end); });
  });
}
TM_API Status tm_try_drafts(const TrialCall* call) noexcept {
  return guarded([&] {
    share_out(call->num_sequences,
              [&](int64_t begin, int64_t end) { try_drafts(*call, begin, end); });
  });
}
