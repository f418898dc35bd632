// Runs a decoder. Between two barriers the workers write disjoint parts of a buffer. The buffer is
// read only after the next barrier.
#include "decoder/decoder.h"

#include <algorithm>
#include <optional>

#include "decoder/phase_clock.h"
#include "decoder/rank_exchange.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// One worker's part of a step.
class Part {
 public:
  Part(const DecoderModel& model, const DecoderStep& step, const ExpertsMemory& memory, int worker,
       int workers)
      : model_(model),
        step_(step),
        experts_(model.experts, memory, step.num_tokens, model.hidden_size, worker, workers),
        element_(model.spec.element),
        element_bytes_(size_of(element_)),
        worker_(worker),
        workers_(workers),
        clock_(worker == 0 ? step.nanoseconds : nullptr, worker == 0 ? step.marks : nullptr) {
    if (model.ranks != nullptr) exchange_.emplace(model, step, clock_, worker, workers);
  }

  // regions.py has the same list of regions: the embedding, if there is one; per layer q, k and v up
  // to the cache, attention, its output, and the feed-forward network; and the logits, if there are
  // sampled rows.
  void run() {
    if (model_.embedding.exists()) {
      embed_tokens();
      finish(Phase::kEmbed);
      clock_.mark();
    }
    for (int64_t i = 0; i < model_.num_layers; i++) {
      attend(model_.layers[i], step_.kv_caches[i]);
      clock_.mark();
      feed_forward(model_.layers[i]);
      clock_.mark();
    }
    if (step_.num_sampled > 0) {
      compute_logits();
      clock_.mark();
    }
  }

 private:
  void embed_tokens() {
    EmbedCall call = {};
    call.element = element_;
    call.embedding = model_.embedding;
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

    auto* q = static_cast<uint8_t*>(step_.qkv);
    uint8_t* k = q + q_size * element_bytes_;
    if (layer.whole_q_norm != nullptr && exchange_) {
      exchange_->norm_heads(layer, q, q_size, kv_size);
    } else if (layer.whole_q_norm != nullptr) {
      norm_rows(q, stride, layer.whole_q_norm, q, stride, q_size, step_.num_tokens, false);
      norm_rows(k, stride, layer.whole_k_norm, k, stride, kv_size, step_.num_tokens, false);
      finish(Phase::kNorm);
    }
    RotateAndWriteCall write = {};
    write.spec = spec;
    write.q = q;
    write.k = k;
    write.v = k + kv_size * element_bytes_;
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
    clock_.mark();

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
    clock_.mark();
    add_product(layer.attention_output, layer.attention_output_bias, step_.attended, q_size,
                layer.attention_output_norm, Phase::kAttentionOutput);
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
    if (exchange_) {
      exchange_->sum(out, !is_normed, Phase::kDown, [&](int64_t first, int64_t rows, float* part) {
        experts_.combine(first, rows, part, Element::kF32, false);
      });
    } else {
      experts_.combine(0, step_.num_tokens, out, element_, !is_normed);
    }
    finish(Phase::kDown);
    if (is_normed)
      norm(step_.normed, layer.feed_forward_output_norm, step_.hidden, step_.num_tokens, true);
  }

  void compute_logits() {
    const auto* hidden = static_cast<const uint8_t*>(step_.hidden);
    auto* sampled = static_cast<uint8_t*>(step_.sampled);
    const int64_t row_bytes = model_.hidden_size * element_bytes_;
    const Share mine = share_of(step_.num_sampled, worker_, workers_);
    for (int64_t i = mine.begin; i < mine.end; i++) {
      const uint8_t* from = hidden + step_.sampled_rows[i] * row_bytes;
      std::copy(from, from + row_bytes, sampled + i * row_bytes);
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
    if (exchange_) {
      call.out = exchange_->own_logits();
      call.out_stride = exchange_->num_logits();
    }
    linear_part(call, worker_, workers_);
    if (exchange_) {
      finish(Phase::kLogits);
      exchange_->gather_logits();
    }
    clock_.lap(Phase::kLogits);
  }

  void finish(Phase phase) { clock_.finish(phase); }

  void norm(void* x, const float* weight, void* out, int64_t rows, bool add = false) {
    const int64_t size = model_.hidden_size;
    norm_rows(x, size, weight, out, size, size, rows, add);
    finish(Phase::kNorm);
  }

  void norm_rows(const void* x, int64_t x_stride, const float* weight, void* out,
                 int64_t out_stride, int64_t size, int64_t rows, bool add) {
    RmsNormCall call = {};
    call.element = element_;
    call.x = x;
    call.x_stride = x_stride;
    call.weight = weight;
    call.out = out;
    call.out_stride = out_stride;
    call.size = size;
    call.eps = model_.eps;
    call.float32_norm = model_.float32_norms != 0;
    call.add_to_out = add;
    const Share mine = share_of(rows, worker_, workers_);
    rms_norm(call, mine.begin, mine.end);
  }

  // Adds a product, or its norm if there is one, to the hidden states.
  void add_product(const PackedLinear* weights, const float* bias, const void* x, int64_t x_stride,
                   const float* output_norm, Phase phase) {
    const bool is_normed = output_norm != nullptr;
    void* out = is_normed ? step_.normed : step_.hidden;
    if (exchange_) {
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
    exchange_->sum(out, add, phase, [&](int64_t first, int64_t rows, float* part) {
      LinearCall call = {};
      call.weights = weights;
      call.x = static_cast<const uint8_t*>(x) + first * x_stride * element_bytes_;
      call.x_stride = x_stride;
      call.rows = rows;
      call.bias = bias;
      call.out = part;
      call.out_stride = model_.hidden_size;
      call.out_type = Element::kF32;
      linear_part(call, worker_, workers_);
    });
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
    call.out_type = element_;
    call.add_to_out = add;
    linear_part(call, worker_, workers_);
  }

  const DecoderModel& model_;
  const DecoderStep& step_;
  ExpertsPart experts_;
  const Element element_;
  const int64_t element_bytes_;
  const int worker_;
  const int workers_;
  PhaseClock clock_;
  std::optional<RankExchange> exchange_;  // none: this process has the whole model
};

}  // namespace

void run_decoder(const DecoderModel& model, const DecoderStep& step) {
  ExpertsMemory memory = {};
  if (model.experts.num_experts > 0)
    memory = take_experts_memory(model.experts, model.spec.element, step.num_tokens,
                                 model.hidden_size);
  parallel([&](int worker, int workers) { Part(model, step, memory, worker, workers).run(); });
}

}  // namespace tokenmill
