#include "decoder/draft_head.h"

#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// One worker's part. Between two barriers the workers write disjoint parts of a buffer. The buffer
// is read only after the next barrier.
class Part {
 public:
  Part(const DraftHeadModel& model, const DraftHeadStep& step, int worker, int workers)
      : model_(model), step_(step), worker_(worker), workers_(workers) {}

  void run() {
    const int64_t size = model_.hidden_size;
    read_inputs();
    barrier();
    multiply(model_.fc, step_.both, 2 * size, step_.state, size, Element::kBF16, false);
    multiply(model_.gate_up, step_.both, 2 * size, step_.inner, model_.intermediate_size,
             Element::kBF16, false);
    barrier();
    multiply(model_.down, step_.inner, model_.intermediate_size, step_.state, size, Element::kBF16,
             true);
    barrier();
    norm(step_.state, size, model_.norm, step_.normed, size);
    barrier();
    multiply(model_.head, step_.normed, size, step_.logits, model_.head->n, Element::kF32, false);
  }

 private:
  void read_inputs() {
    const int64_t size = model_.hidden_size;
    auto* embedded = static_cast<uint16_t*>(step_.both) + size;
    EmbedCall call = {Element::kBF16, model_.embedding, step_.token_ids, embedded,
                      2 * size,       size,             1.0f};
    const Share mine = share_of(step_.num_rows, worker_, workers_);
    embed(call, mine.begin, mine.end);
    norm(embedded, 2 * size, model_.ones, embedded, 2 * size);
    norm(step_.state, size, model_.ones, step_.both, 2 * size);
  }

  // Normalizes this worker's rows.
  void norm(const void* x, int64_t x_stride, const float* weight, void* out, int64_t out_stride) {
    RmsNormCall call = {};
    call.element = Element::kBF16;
    call.x = x;
    call.x_stride = x_stride;
    call.weight = weight;
    call.out = out;
    call.out_stride = out_stride;
    call.size = model_.hidden_size;
    call.eps = model_.eps;
    const Share mine = share_of(step_.num_rows, worker_, workers_);
    rms_norm(call, mine.begin, mine.end);
  }

  void multiply(const PackedLinear* weights, const void* x, int64_t x_stride, void* out,
                int64_t out_stride, Element out_type, bool add) {
    LinearCall call = {};
    call.weights = weights;
    call.x = x;
    call.x_stride = x_stride;
    call.rows = step_.num_rows;
    call.out = out;
    call.out_stride = out_stride;
    call.out_type = out_type;
    call.add_to_out = add;
    linear_part(call, worker_, workers_);
  }

  const DraftHeadModel& model_;
  const DraftHeadStep& step_;
  const int worker_;
  const int workers_;
};

}  // namespace

void run_draft_head(const DraftHeadModel& model, const DraftHeadStep& step) {
  parallel([&](int worker, int workers) { Part(model, step, worker, workers).run(); });
}

}  // namespace tokenmill
