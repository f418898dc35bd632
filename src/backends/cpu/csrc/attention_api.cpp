// Attention, element-wise functions and the reading of logits for Python, each a parallel region
// of its own: see attention_ops.py and logits.py for the signatures. No exception leaves.
#include "attention.h"
#include "elementwise.h"
#include "logits.h"
#include "thread_pool.h"

#define TM_API extern "C" __attribute__((visibility("default")))

using namespace tokenmill;

namespace {
template <class Call>
void in_parallel(void (*run)(const Call&, int64_t, int64_t), const Call& call, int64_t count) {
  parallel([&](int worker, int workers) {
    const Share mine = share_of(count, worker, workers);
    run(call, mine.begin, mine.end);
  });
}
}  // namespace

TM_API AttentionPlan* tm_attention_plan_new() { return new AttentionPlan; }
TM_API void tm_attention_plan_free(AttentionPlan* plan) { delete plan; }
// parts: 0 for one per thread.
TM_API void tm_attention_plan(AttentionPlan* plan, const AttentionSpec* spec,
                              const AttentionBatch* batch, int parts) {
  plan_attention(*spec, *batch, parts > 0 ? parts : num_threads(), plan);
}
TM_API void tm_attention(const AttentionCall* call) { attention(*call); }

// Writes the keys and values of `tokens` tokens, then attends: one layer.
TM_API void tm_write_and_attend(const RotateAndWriteCall* write, int64_t tokens,
                                const AttentionCall* call) {
  parallel([&](int worker, int workers) {
    const Share mine = share_of(tokens * write->spec.num_kv_heads, worker, workers);
    rotate_and_write(*write, mine.begin, mine.end);
    barrier();
    attention_part(*call, worker, workers);
  });
}

TM_API void tm_rms_norm(const RmsNormCall* call, int64_t rows) {
  in_parallel(rms_norm, *call, rows);
}
TM_API void tm_activate(const ActivateCall* call, int64_t rows) {
  in_parallel(activate, *call, rows);
}
TM_API void tm_embed(const EmbedCall* call, int64_t rows) { in_parallel(embed, *call, rows); }
TM_API void tm_rotate_and_write(const RotateAndWriteCall* call, int64_t tokens) {
  in_parallel(rotate_and_write, *call, tokens * call->spec.num_kv_heads);
}
TM_API void tm_read_logits(const LogitsCall* call, int64_t rows) {
  // One row is read before a second thread has woken.
  if (rows == 1) return read_logits(*call, 0, 1);
  in_parallel(read_logits, *call, rows);
}
