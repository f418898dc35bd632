// Runs a decoder. Between two barriers the workers write disjoint parts of a buffer. The buffer is
// read only after the next barrier.
#include "decoder/decoder.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// Rows of a product whose partial sums are exchanged at once: their weights are read once.
constexpr int64_t kRowsOfSlot = 256;

// Adds the time between two laps to a phase. Does nothing without counters.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t* nanoseconds) : nanoseconds_(nanoseconds) {
    if (nanoseconds_ != nullptr) last_ = Clock::now();
  }
  void lap(Phase phase) {
    if (nanoseconds_ == nullptr) return;
    const Clock::time_point now = Clock::now();
    nanoseconds_[static_cast<int>(phase)] += std::chrono::nanoseconds(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t* nanoseconds_;
  Clock::time_point last_;
};

// One worker's part of a step.
class Part {
 public:
  Part(const DecoderModel& model, const DecoderStep& step, const ExpertsMemory& memory, int worker,
       int workers)
      : model_(model),
        step_(step),
        experts_(model.experts, memory, step.num_tokens, model.hidden_size, worker, workers),
        worker_(worker),
        workers_(workers),
        stopwatch_(worker == 0 ? step.nanoseconds : nullptr) {
    if (model.ranks != nullptr) meetings_.emplace(*model.ranks, worker);
  }

  void run() {
    if (model_.embedding != nullptr) {
      embed_tokens();
      finish(Phase::kEmbed);
    }
    for (int64_t i = 0; i < model_.num_layers; i++) {
      attend(model_.layers[i], step_.kv_caches[i]);
      feed_forward(model_.layers[i]);
    }
    if (step_.num_sampled > 0) compute_logits();
  }

 private:
  void embed_tokens() {
    EmbedCall call = {};
    call.table = model_.embedding;
    call.token_ids = step_.token_ids;
    call.out = step_.hidden;
    call.out_stride = call.size = model_.hidden_size;
    call.scale = model_.embedding_scale;
    const Share mine = share_of(step_.num_tokens, worker_, workers_);
    embed(call, mine.begin, mine.end);
  }

  void attend(const DecoderLayer& layer, void* kv_cache) {
    const AttentionSpec& spec = model_.spec;
    const int64_t q_size = int64_t{spec.num_heads} * spec.head_size;
    const int64_t kv_size = int64_t{spec.num_kv_heads} * spec.head_size;
    const int64_t stride = q_size + 2 * kv_size;
    norm(step_.hidden, layer.input_norm, step_.normed, step_.num_tokens);
    multiply(layer.qkv, layer.qkv_bias, step_.normed, model_.hidden_size, step_.qkv, stride, false);
    finish(Phase::kQkv);

    auto* q = static_cast<uint16_t*>(step_.qkv);
    if (layer.whole_q_norm != nullptr && meetings_) {
      norm_heads_of_ranks(layer, q, q_size, kv_size);
    } else if (layer.whole_q_norm != nullptr) {
      norm_rows(q, stride, layer.whole_q_norm, q, stride, q_size, step_.num_tokens, false);
      norm_rows(q + q_size, stride, layer.whole_k_norm, q + q_size, stride, kv_size,
                step_.num_tokens, false);
      finish(Phase::kNorm);
    }
    RotateAndWriteCall write = {};
    write.spec = spec;
    write.q = q;
    write.k = q + q_size;
    write.v = q + q_size + kv_size;
    write.q_stride = write.k_stride = write.v_stride = stride;
    write.q_norm = layer.q_norm;
    write.k_norm = layer.k_norm;
    write.eps = model_.eps;
    write.float32_norms = model_.float32_norms;
    write.rotary_size = model_.rotary_size;
    write.cos = layer.cos;
    write.sin = layer.sin;
    write.positions = step_.positions;
    write.slots = step_.slots[layer.plan];
    write.kv_cache = kv_cache;
    const Share mine = share_of(step_.num_tokens * spec.num_kv_heads, worker_, workers_);
    rotate_and_write(write, mine.begin, mine.end);
    finish(Phase::kRotateAndWrite);

    AttentionCall call = {};
    call.plan = step_.plans[layer.plan];
    call.q = q;
    call.q_stride = stride;
    call.kv_cache = kv_cache;
    call.out = step_.attended;
    call.out_stride = q_size;
    call.sinks = layer.sinks;
    attention_part(call, worker_, workers_);
    finish(Phase::kAttention);
    add_product(layer.attention_output, layer.attention_output_bias, step_.attended, q_size,
                layer.attention_output_norm, Phase::kAttentionOutput);
  }

  // Norms over the heads of all ranks, which add up the squares of their heads.
  void norm_heads_of_ranks(const DecoderLayer& layer, uint16_t* q, int64_t q_size, int64_t k_size) {
    const int64_t stride = q_size + 2 * k_size, at_once = meetings_->slot_floats() / 2;
    for (int64_t first = 0; first < step_.num_tokens; first += at_once) {
      const Share mine =
          share_of(std::min(step_.num_tokens - first, at_once), worker_, workers_);
      for (int64_t i = mine.begin; i < mine.end; i++) {
        uint16_t* row = q + (first + i) * stride;
        meetings_->own_slot()[2 * i] = sum_of_squares(row, q_size);
        meetings_->own_slot()[2 * i + 1] = sum_of_squares(row + q_size, k_size);
      }
      finish(Phase::kNorm);
      meetings_->meet();
      stopwatch_.lap(Phase::kWait);
      for (int64_t i = mine.begin; i < mine.end; i++) {
        uint16_t* row = q + (first + i) * stride;
        norm_part(row, layer.whole_q_norm, q_size, 2 * i, model_.whole_q_size);
        norm_part(row + q_size, layer.whole_k_norm, k_size, 2 * i + 1, model_.whole_k_size);
      }
      meetings_->end_round();
    }
    finish(Phase::kNorm);
  }

  // The norm of a part of a vector, in place. Number `place` of each slot is the sum of its squares.
  void norm_part(uint16_t* x, const float* weight, int64_t size, int64_t place, int64_t whole_size) {
    float sum = 0;
    for (int rank = 0; rank < meetings_->size(); rank++) sum += meetings_->slot_of(rank)[place];
    const float mean = sum / static_cast<float>(whole_size);
    RmsNormCall call = norm_call(x, size, weight, x, size, size);
    call.mean_square = &mean;
    rms_norm(call, 0, 1);
  }

  void feed_forward(const DecoderLayer& layer) {
    norm(step_.hidden, layer.post_attention_norm, step_.normed, step_.num_tokens);
    if (layer.experts != nullptr) return use_experts(layer);
    multiply(layer.gate_up, layer.gate_up_bias, step_.normed, model_.hidden_size, step_.inner,
             model_.intermediate_size, false);
    finish(Phase::kGateUp);
    add_product(layer.down, layer.down_bias, step_.inner, model_.intermediate_size,
                layer.feed_forward_output_norm, Phase::kDown);
  }

  void use_experts(const DecoderLayer& layer) {
    experts_.route(layer.router, layer.router_bias, step_.normed);
    finish(Phase::kGateUp);
    experts_.choose();
    finish(Phase::kGateUp);
    if (worker_ == 0 && step_.expert_tokens != nullptr) experts_.count(step_.expert_tokens);
    experts_.gather(layer.experts, step_.normed);
    finish(Phase::kGateUp);
    experts_.gate_up(layer.experts);
    finish(Phase::kGateUp);
    if (model_.experts.gate_limit > 0) {
      experts_.apply_gate();
      finish(Phase::kGateUp);
    }
    experts_.down(layer.experts);
    finish(Phase::kDown);
    const bool is_normed = layer.feed_forward_output_norm != nullptr;
    void* out = is_normed ? step_.normed : step_.hidden;
    if (meetings_) {
      sum_parts(out, !is_normed, Phase::kDown, [&](int64_t first, int64_t rows) {
        experts_.combine(first, rows, meetings_->own_slot(), Element::kF32, false);
      });
    } else {
      experts_.combine(0, step_.num_tokens, out, Element::kBF16, !is_normed);
    }
    finish(Phase::kDown);
    if (is_normed)
      norm(step_.normed, layer.feed_forward_output_norm, step_.hidden, step_.num_tokens, true);
  }

  void compute_logits() {
    const auto* hidden = static_cast<const uint16_t*>(step_.hidden);
    auto* sampled = static_cast<uint16_t*>(step_.sampled);
    const Share mine = share_of(step_.num_sampled, worker_, workers_);
    for (int64_t i = mine.begin; i < mine.end; i++) {
      const uint16_t* from = hidden + step_.sampled_rows[i] * model_.hidden_size;
      std::copy(from, from + model_.hidden_size, sampled + i * model_.hidden_size);
    }
    finish(Phase::kLogits);
    norm(sampled, model_.norm, sampled, step_.num_sampled);
    LinearCall call = {};
    call.weights = model_.head;
    call.x = sampled;
    call.x_stride = model_.hidden_size;
    call.rows = step_.num_sampled;
    call.out = step_.logits;
    call.out_stride = model_.head->n;
    call.out_type = Element::kF32;
    if (meetings_) {
      call.out = step_.logits + model_.first_logits[model_.ranks->rank];
      call.out_stride = model_.first_logits[meetings_->size()];
    }
    linear_part(call, worker_, workers_);
    if (meetings_) {
      finish(Phase::kLogits);
      gather_logits();
    }
    stopwatch_.lap(Phase::kLogits);
  }

  // Copies the logits of all ranks to each of them, as many rows at once as a slot has room for.
  void gather_logits() {
    const int64_t* first = model_.first_logits;
    int64_t widest = 0;
    for (int rank = 0; rank < meetings_->size(); rank++)
      widest = std::max(widest, first[rank + 1] - first[rank]);
    const int64_t at_once = meetings_->slot_floats() / widest, all = first[meetings_->size()];
    for (int64_t row = 0; row < step_.num_sampled; row += at_once) {
      const int64_t rows = std::min(step_.num_sampled - row, at_once);
      copy_logits(model_.ranks->rank, row, rows, all, true);
      finish(Phase::kLogits);
      meetings_->meet();
      stopwatch_.lap(Phase::kWait);
      for (int rank = 0; rank < meetings_->size(); rank++)
        if (rank != model_.ranks->rank) copy_logits(rank, row, rows, all, false);
      meetings_->end_round();
    }
  }

  // Copies this worker's columns of a rank's logits to the rank's slot, or from it.
  void copy_logits(int rank, int64_t row, int64_t rows, int64_t stride, bool to_slot) {
    const int64_t first = model_.first_logits[rank], count = model_.first_logits[rank + 1] - first;
    const Share mine = share_of(count, worker_, workers_);
    for (int64_t i = 0; i < rows; i++) {
      float* logits = step_.logits + (row + i) * stride + first + mine.begin;
      float* slot = meetings_->slot_of(rank) + i * count + mine.begin;
      std::copy_n(to_slot ? logits : slot, mine.end - mine.begin, to_slot ? slot : logits);
    }
  }

  // Ends a phase with a barrier, so that the next phase may read what all workers wrote.
  void finish(Phase phase) {
    stopwatch_.lap(phase);
    barrier();
    stopwatch_.lap(Phase::kWait);
  }

  void norm(void* x, const float* weight, void* out, int64_t rows, bool add = false) {
    const int64_t size = model_.hidden_size;
    norm_rows(x, size, weight, out, size, size, rows, add);
    finish(Phase::kNorm);
  }

  void norm_rows(const void* x, int64_t x_stride, const float* weight, void* out,
                 int64_t out_stride, int64_t size, int64_t rows, bool add) {
    RmsNormCall call = norm_call(x, x_stride, weight, out, out_stride, size);
    call.add_to_out = add;
    const Share mine = share_of(rows, worker_, workers_);
    rms_norm(call, mine.begin, mine.end);
  }

  RmsNormCall norm_call(const void* x, int64_t x_stride, const float* weight, void* out,
                        int64_t out_stride, int64_t size) const {
    RmsNormCall call = {};
    call.x = x;
    call.x_stride = x_stride;
    call.weight = weight;
    call.out = out;
    call.out_stride = out_stride;
    call.size = size;
    call.eps = model_.eps;
    call.float32_norm = model_.float32_norms != 0;
    return call;
  }

  // Adds a product, or its norm if there is one, to the hidden states.
  void add_product(const PackedLinear* weights, const float* bias, const void* x, int64_t x_stride,
                   const float* output_norm, Phase phase) {
    const bool is_normed = output_norm != nullptr;
    void* out = is_normed ? step_.normed : step_.hidden;
    if (meetings_) {
      multiply_over_ranks(weights, bias, x, x_stride, out, !is_normed, phase);
    } else {
      multiply(weights, bias, x, x_stride, out, model_.hidden_size, !is_normed);
    }
    finish(phase);
    if (is_normed) norm(step_.normed, output_norm, step_.hidden, step_.num_tokens, true);
  }

  // As `multiply`, with all ranks' partial sums.
  void multiply_over_ranks(const PackedLinear* weights, const float* bias, const void* x,
                           int64_t x_stride, void* out, bool add, Phase phase) {
    sum_parts(out, add, phase, [&](int64_t first, int64_t rows) {
      LinearCall call = {};
      call.weights = weights;
      call.x = static_cast<const uint16_t*>(x) + first * x_stride;
      call.x_stride = x_stride;
      call.rows = rows;
      call.bias = bias;
      call.out = meetings_->own_slot();
      call.out_stride = model_.hidden_size;
      call.out_type = Element::kF32;
      linear_part(call, worker_, workers_);
    });
  }

  // out (+)= the sums of all ranks' parts, which `compute(first row, rows)` writes to the own slot. A
  // slot has room for some rows, as many as a product computes at once.
  template <class Compute>
  void sum_parts(void* out, bool add, Phase phase, Compute compute) {
    const int64_t size = model_.hidden_size;
    const int64_t at_once = std::min(meetings_->slot_floats() / size, kRowsOfSlot);
    for (int64_t first = 0; first < step_.num_tokens; first += at_once) {
      const int64_t rows = std::min(step_.num_tokens - first, at_once);
      compute(first, rows);
      finish(phase);
      meetings_->meet();
      stopwatch_.lap(Phase::kWait);
      const Share mine = share_of(rows * size, worker_, workers_);
      add_slots(*meetings_, mine.begin, mine.end, static_cast<uint16_t*>(out) + first * size,
                Element::kBF16, add);
      meetings_->end_round();
    }
  }

  // Multiplies x by weights. With `add` the result is added to the residual in `out`.
  void multiply(const PackedLinear* weights, const float* bias, const void* x, int64_t x_stride,
                void* out, int64_t out_stride, bool add) {
    LinearCall call = {};
    call.weights = weights;
    call.x = x;
    call.x_stride = x_stride;
    call.rows = step_.num_tokens;
    call.bias = bias;
    call.out = out;
    call.out_stride = out_stride;
    call.out_type = Element::kBF16;
    call.add_to_out = add;
    linear_part(call, worker_, workers_);
  }

  const DecoderModel& model_;
  const DecoderStep& step_;
  ExpertsPart experts_;
  std::optional<Meetings> meetings_;  // none: this process has the whole model
  const int worker_;
  const int workers_;
  Stopwatch stopwatch_;
};

}  // namespace

void run_decoder(const DecoderModel& model, const DecoderStep& step) {
  ExpertsMemory memory = {};
  if (model.experts.num_experts > 0)
    memory = take_experts_memory(model.experts, step.num_tokens, model.hidden_size);
  parallel([&](int worker, int workers) { Part(model, step, memory, worker, workers).run(); });
}

}  // namespace tokenmill
