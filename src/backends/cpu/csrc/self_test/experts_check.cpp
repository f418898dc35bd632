#include <algorithm>

#include "self_test/product.h"

namespace tokenmill {
namespace {

constexpr int64_t kTokens = 23, kVocabulary = 30, kHidden = 32, kInner = 48, kExperts = 6;
constexpr int64_t kActive = 2, kHeadSize = 16;
constexpr float kEps = 0.1f;
// Logits of experts that are nearer than this could be ordered in either way.
constexpr double kMargin = 0.02;

struct Setting {
  bool normalizes_shares, is_interleaved;
  float limit;  // 0: the products compute the activation
  Element element;
  bool over_ranks;  // the last two experts are another rank's, and few rows are exchanged at once
  int own_experts() const { return over_ranks ? kExperts - 2 : kExperts; }
};

// A decoder of one layer. Its attention adds nothing, since its output has weights of 0: the inputs
// of the experts, and so their choice, are known.
class Reference {
 public:
  Reference(const Library& library, Report& report, const Setting& setting, Random& random)
      : setting_(setting),
        norm(random_floats(random, kHidden, 1.0f, 0.3f)),
        router_bias(random_floats(random, kExperts, 0.0f, 0.3f)),
        router(library, report, random, setting.element, kExperts, kHidden, false,
               Activation::kSilu),
        qkv(library, report, random, setting.element, 3 * kHeadSize, kHidden, false,
            Activation::kSilu),
        attention_output(library, report, random, setting.element, kHidden, kHeadSize, false,
                         Activation::kSilu, 0.0f) {
    const bool has_limit = setting.limit > 0;
    for (int i = 0; i < kExperts; i++) {
      gate_ups.emplace_back(library, report, random, setting.element, 2 * kInner, kHidden,
                            !has_limit, Activation::kSilu);
      downs.emplace_back(library, report, random, setting.element, kHidden, kInner, false,
                         Activation::kSilu);
      biases.push_back(random_floats(random, 2 * kInner, 0.0f, 0.3f));
    }
  }

  // The hidden state of a token after the layer. Counts the tokens of each expert.
  Row run(const Row& x, Report& report, int64_t* counts) const {
    const Row inputs = normed(x);
    Row logits = router.of(inputs), out(kHidden);
    for (int i = 0; i < kExperts; i++) logits[i] += router_bias[i];
    Row sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    const double last = sorted[kActive - 1];
    report.expect(last - sorted[kActive] > kMargin, "the choice of experts is not clear");
    double sum = 0.0;
    for (const double logit : logits)
      if (logit >= last || !setting_.normalizes_shares) sum += std::exp(logit);
    for (int i = 0; i < kExperts; i++) {
      if (logits[i] < last) continue;
      counts[i]++;
      if (i >= setting_.own_experts()) continue;
      const Row part = downs[i].of(inner(gate_ups[i].of(inputs), biases[i]));
      for (int64_t j = 0; j < kHidden; j++) out[j] += rounded(part[j]) * std::exp(logits[i]) / sum;
    }
    for (int64_t j = 0; j < kHidden; j++) out[j] = rounded(x[j] + out[j]);
    return out;
  }

  const Setting setting_;
  const std::vector<float> norm, router_bias;
  const Product router, qkv, attention_output;
  std::vector<Product> gate_ups, downs;
  std::vector<std::vector<float>> biases;  // of gate and up

 private:
  double rounded(double x) const { return tokenmill::rounded(x, setting_.element); }

  Row normed(const Row& x) const {
    double squares = 0.0;
    for (const double one : x) squares += one * one;
    const double factor = 1.0 / std::sqrt(squares / kHidden + kEps);
    Row out;
    for (int64_t i = 0; i < kHidden; i++) out.push_back(rounded(rounded(x[i] * factor) * norm[i]));
    return out;
  }

  Row inner(const Row& both, const std::vector<float>& bias) const {
    Row out;
    for (int64_t i = 0; i < kInner; i++) {
      const int64_t at = setting_.is_interleaved ? 2 * i : i;
      const int64_t up_at = setting_.is_interleaved ? at + 1 : kInner + i;
      double gate = both[at] + bias[at], up = both[up_at] + bias[up_at];
      const double limit = setting_.limit;
      if (limit == 0) {
        out.push_back(rounded(gate / (1.0 + std::exp(-gate)) * up));
        continue;
      }
      gate = std::min(rounded(gate), limit);
      up = std::min(std::max(rounded(up), -limit), limit);
      out.push_back(rounded((up + 1.0) * gate / (1.0 + std::exp(-1.702 * gate))));
    }
    return out;
  }
};

void describe(const Reference& reference, const Expert* experts, DecoderLayer& layer,
              DecoderModel& model) {
  layer.input_norm = layer.post_attention_norm = reference.norm.data();
  layer.qkv = reference.qkv.packed();
  layer.attention_output = reference.attention_output.packed();
  layer.experts = experts;
  layer.router = reference.router.packed();
  layer.router_bias = reference.router_bias.data();
  model.spec.num_heads = model.spec.num_kv_heads = 1;
  model.spec.head_size = model.spec.block_size = kHeadSize;
  model.spec.element = reference.setting_.element;
  model.spec.scale = 0.2f;
  model.experts = {kExperts, kActive, kInner, reference.setting_.normalizes_shares,
                   reference.setting_.limit, 1.702f, reference.setting_.is_interleaved};
  model.num_layers = 1;
  model.layers = &layer;
  model.hidden_size = kHidden;
  model.eps = kEps;
  model.embedding_scale = 1.0f;
}

void run(const Library& library, Report& report, DecoderModel& model, const int64_t* token_ids,
         Numbers& hidden, int64_t* counts) {
  constexpr int64_t kBlocks = (kTokens + kHeadSize - 1) / kHeadSize;
  const Element element = model.spec.element;
  Numbers cache(element, kBlocks * kHeadSize * 2 * kHeadSize);
  Numbers normed(element, kTokens * kHidden), qkv(element, kTokens * 3 * kHeadSize);
  Numbers attended(element, kTokens * kHeadSize);
  int64_t places[kTokens];
  for (int64_t token = 0; token < kTokens; token++) places[token] = token;
  const int32_t starts[2] = {0, kTokens}, blocks[kBlocks] = {0, 1};
  const AttentionBatch batch = {1, starts, &starts[1], blocks, kBlocks, nullptr};
  AttentionPlan* plan = library.attention_plan_new();
  report.expect_done(library.attention_plan(plan, &model.spec, &batch), "tm_attention_plan");
  void* const caches[] = {cache.at(0)};
  DecoderStep step = {};
  step.num_tokens = kTokens;
  step.token_ids = token_ids;
  const int64_t* const slots[] = {places};
  step.positions = places;
  step.slots = slots;
  step.plans = &plan;
  step.kv_caches = caches;
  step.hidden = hidden.at(0);
  step.normed = normed.at(0);
  step.qkv = qkv.at(0);
  step.attended = attended.at(0);
  step.expert_tokens = counts;
  report.expect_done(library.run_decoder(&model, &step), "tm_run_decoder");
  library.attention_plan_free(plan);
}

void check(const Library& library, Report& report, const Setting& setting) {
  Random random(5);
  const Reference reference(library, report, setting, random);
  Expert experts[kExperts] = {};
  for (int i = 0; i < setting.own_experts(); i++)
    experts[i] = {reference.gate_ups[i].packed(), reference.biases[i].data(),
                  reference.downs[i].packed(), nullptr};
  DecoderLayer layer = {};
  DecoderModel model = {};
  describe(reference, experts, layer, model);
  const Element element = setting.element;
  Numbers table(element, kVocabulary * kHidden), hidden(element, kTokens * kHidden);
  table.fill(random);
  model.embedding.table = table.at(0);
  int64_t token_ids[kTokens];
  for (int64_t token = 0; token < kTokens; token++) token_ids[token] = token * 7 % kVocabulary;
  Ranks ranks = {0, 1, nullptr, 5 * kHidden};
  std::vector<uint8_t> memory(library.shared_bytes(&ranks) + 128);
  ranks.memory = memory.data() + (128 - reinterpret_cast<uintptr_t>(memory.data()) % 128) % 128;
  if (setting.over_ranks) model.ranks = &ranks;
  int64_t counts[kExperts] = {}, right_counts[kExperts] = {};
  run(library, report, model, token_ids, hidden, counts);
  const double bound = element == Element::kBF16 ? 0.03 : 1e-5;
  for (int64_t token = 0; token < kTokens; token++) {
    Row x;
    for (int64_t i = 0; i < kHidden; i++) x.push_back(table.get(token_ids[token] * kHidden + i));
    const Row wanted = reference.run(x, report, right_counts);
    for (int64_t i = 0; i < kHidden; i++)
      report.expect_near(hidden.get(token * kHidden + i), wanted[i], bound, "hidden", token, i);
  }
  for (int i = 0; i < kExperts; i++)
    report.expect(counts[i] == right_counts[i], "expert ", i, " has ", counts[i], " tokens, not ",
                  right_counts[i]);
}

}  // namespace

// Checks a layer with experts: which ones compute a token, their gates, and their shares.
void check_experts(const Library& library, Report& report) {
  for (const Element element : {Element::kBF16, Element::kF32}) {
    const std::string in = element == Element::kBF16 ? "" : ", in float";
    report.begin("experts whose products compute the activation" + in);
    check(library, report, {true, false, 0.0f, element, false});
    report.begin("experts with clamped gates that alternate with up" + in);
    check(library, report, {false, true, 0.6f, element, false});
    report.begin("experts with clamped gates before up" + in);
    check(library, report, {true, false, 0.6f, element, false});
    report.begin("experts of one rank" + in);
    check(library, report, {false, true, 0.6f, element, true});
  }
}

}  // namespace tokenmill
