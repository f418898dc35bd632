// Attention and the reading of logits for Python, each a parallel region of its own: see
// attention_ops.py and logits.py for the signatures. No exception leaves.
#include "attention.h"
#include "c_abi.h"
#include "elementwise.h"
#include "logits.h"
#include "thread_pool.h"

using namespace tokenmill;

// Null when there is no memory for it.
TM_API AttentionPlan* tm_attention_plan_new() noexcept { return new (std::nothrow) AttentionPlan; }
TM_API void tm_attention_plan_free(AttentionPlan* plan) noexcept { delete plan; }
// One part per thread. After a failure the plan must not be used.
TM_API Status tm_attention_plan(AttentionPlan* plan, const AttentionSpec* spec,
                                const AttentionBatch* batch) noexcept {
  return guarded([&] { plan_attention(*spec, *batch, num_threads(), plan); });
}

// Writes the keys and values of `tokens` tokens, then attends: one layer.
TM_API void tm_write_and_attend(const RotateAndWriteCall* write, int64_t tokens,
                                const AttentionCall* call) noexcept {
  parallel([&](int worker, int workers) {
    const Share mine = share_of(tokens * write->spec.num_kv_heads, worker, workers);
    rotate_and_write(*write, mine.begin, mine.end);
    barrier();
    attention_part(*call, worker, workers);
  });
}

TM_API void tm_read_logits(const LogitsCall* call, int64_t rows) noexcept {
  // One row is read before a second thread has woken.
  if (rows == 1) return read_logits(*call, 0, 1);
  parallel([&](int worker, int workers) {
    const Share mine = share_of(rows, worker, workers);
    read_logits(*call, mine.begin, mine.end);
  });
}
