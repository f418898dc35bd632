#include <algorithm>

#include "self_test/product.h"

namespace tokenmill {
namespace {

constexpr int64_t kTokens = 21, kVocabulary = 30, kHidden = 32, kInner = 48, kHeadSize = 32;
constexpr int32_t kHeads = 4, kKvHeads = 2, kBlockSize = 16;
constexpr int64_t kQuery = kHeads * kHeadSize, kKeys = kKvHeads * kHeadSize;
constexpr int64_t kRow = kQuery + 2 * kKeys;
constexpr float kEps = 0.1f, kEmbeddingScale = 1.5f;

struct Setting {
  Activation activation;
  bool float32_norms, post_norms, head_norms;
  int32_t rotary_size;
  Element element;
  bool over_ranks;  // the model of one rank, with norms over all heads; few rows fit into a slot
};
struct LayerSetting {
  bool rotates;
  int32_t window;
};
constexpr int kLayers = 2;
constexpr LayerSetting kLayerSettings[kLayers] = {{true, 5}, {false, 0}};

struct Layer {
  std::vector<float> input_norm, output_norm, post_attention_norm, last_norm, q_norm, k_norm;
  Product qkv, attention_output, gate_up, down;
};

// A decoder of two layers, which differ in window and rotation, by plain loops.
class Reference {
 public:
  Reference(const Library& library, Report& report, const Setting& setting, Random& random)
      : setting_(setting) {
    const auto norm = [&](int64_t size) { return random_floats(random, size, 1.0f, 0.3f); };
    const auto product = [&](int64_t n, int64_t k, bool gate_up) {
      return Product(library, report, random, setting.element, n, k, gate_up, setting.activation);
    };
    for (int i = 0; i < kLayers; i++)
      layers.push_back({norm(kHidden), norm(kHidden), norm(kHidden), norm(kHidden),
                        norm(kHeadSize), norm(kHeadSize), product(kRow, kHidden, false),
                        product(kHidden, kQuery, false), product(2 * kInner, kHidden, true),
                        product(kHidden, kInner, false)});
    angles = random_floats(random, kTokens * setting.rotary_size / 2, 0.0f, 3.0f);
    for (const float angle : angles) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    Random other(12);
    whole_q_norm = random_floats(other, kQuery, 1.0f, 0.3f);
    whole_k_norm = random_floats(other, kKeys, 1.0f, 0.3f);
  }

  // Computes all layers on the hidden states of a prompt.
  void run(std::vector<Row>& hidden) const {
    for (int i = 0; i < kLayers; i++) {
      attend(layers[i], kLayerSettings[i], hidden);
      for (Row& row : hidden) {
        const Row both = layers[i].gate_up.of(normed(row, layers[i].post_attention_norm));
        Row inner(kInner);
        for (int64_t j = 0; j < kInner; j++)
          inner[j] = rounded(activated(both[j]) * both[kInner + j]);
        add(layers[i].down.of(inner), layers[i].last_norm, row);
      }
    }
  }

  std::vector<Layer> layers;
  std::vector<float> angles, cos, sin, whole_q_norm, whole_k_norm;


  double rounded(double x) const { return tokenmill::rounded(x, setting_.element); }

 private:
  double activated(double x) const {
    if (setting_.activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
    return x / 2 * (1.0 + std::tanh(0.79788456 * (x + 0.044715 * x * x * x)));
  }

  Row unrounded_norm(const Row& x, const std::vector<float>& weight) const {
    double squares = 0.0;
    for (const double one : x) squares += one * one;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
    Row out;
    for (size_t i = 0; i < x.size(); i++) {
      const double quotient = x[i] * factor;
      out.push_back((setting_.float32_norms ? quotient : rounded(quotient)) * weight[i]);
    }
    return out;
  }
  Row normed(const Row& x, const std::vector<float>& weight) const {
    Row out = unrounded_norm(x, weight);
    for (double& one : out) one = rounded(one);
    return out;
  }

  void add(Row product, const std::vector<float>& norm, Row& hidden) const {
    if (setting_.post_norms) {
      for (double& one : product) one = rounded(one);
      product = unrounded_norm(product, norm);
    }
    for (int64_t i = 0; i < kHidden; i++) hidden[i] = rounded(hidden[i] + product[i]);
  }

  // One head of q or k, normalized and rotated.
  Row head(const Row& qkv, int64_t index, const std::vector<float>& norm, bool rotates,
           int64_t position) const {
    Row x(qkv.begin() + index * kHeadSize, qkv.begin() + (index + 1) * kHeadSize);
    if (setting_.head_norms) x = normed(x, norm);
    const int64_t half = setting_.rotary_size / 2;
    for (int64_t i = 0; rotates && i < half; i++) {
      const double c = cos[position * half + i], s = sin[position * half + i];
      const double first = x[i], second = x[half + i];
      x[i] = rounded(first * c - second * s);
      x[half + i] = rounded(second * c + first * s);
    }
    return x;
  }

  // The norm of numbers [begin, end) together.
  void norm_part(Row& x, int64_t begin, int64_t end, const std::vector<float>& weight) const {
    const Row part = normed(Row(x.begin() + begin, x.begin() + end), weight);
    std::copy(part.begin(), part.end(), x.begin() + begin);
  }

  void attend(const Layer& layer, const LayerSetting& setting, std::vector<Row>& hidden) const {
    std::vector<Row> keys, values;
    for (int64_t token = 0; token < kTokens; token++) {
      Row qkv = layer.qkv.of(normed(hidden[token], layer.input_norm));
      for (double& one : qkv) one = rounded(one);
      if (setting_.over_ranks) {
        norm_part(qkv, 0, kQuery, whole_q_norm);
        norm_part(qkv, kQuery, kQuery + kKeys, whole_k_norm);
      }
      for (int64_t kv = 0; kv < kKvHeads; kv++) {
        keys.push_back(head(qkv, kHeads + kv, layer.k_norm, setting.rotates, token));
        const auto value = qkv.begin() + (kHeads + kKvHeads + kv) * kHeadSize;
        values.emplace_back(value, value + kHeadSize);
      }
      Row attended;
      for (int64_t index = 0; index < kHeads; index++) {
        const Row q = head(qkv, index, layer.q_norm, setting.rotates, token);
        const int64_t kv = index / (kHeads / kKvHeads);
        const Row out = attend_head(q, keys, values, kv, token, setting.window);
        attended.insert(attended.end(), out.begin(), out.end());
      }
      add(layer.attention_output.of(attended), layer.output_norm, hidden[token]);
    }
  }

  Row attend_head(const Row& q, const std::vector<Row>& keys, const std::vector<Row>& values,
                  int64_t kv, int64_t token, int64_t window) const {
    const int64_t first = window > 0 ? std::max<int64_t>(0, token + 1 - window) : 0;
    Row out(kHeadSize);
    double sum = 0.0;
    for (int64_t key = first; key <= token; key++) {
      double score = 0.0;
      for (int64_t i = 0; i < kHeadSize; i++) score += q[i] * keys[key * kKvHeads + kv][i];
      const double weight = std::exp(0.2 * score);
      sum += weight;
      for (int64_t i = 0; i < kHeadSize; i++) out[i] += weight * values[key * kKvHeads + kv][i];
    }
    for (double& one : out) one = rounded(one / sum);
    return out;
  }

  const Setting setting_;
};

// Runs the layers of a reference on a prompt, by the library: in one call, or each as a stage.
class Run {
 public:
  Run(const Library& library, Report& report, const Setting& setting)
      : library_(library), report_(report) {
    spec_.num_heads = kHeads;
    spec_.num_kv_heads = kKvHeads;
    spec_.head_size = kHeadSize;
    spec_.block_size = kBlockSize;
    spec_.element = setting.element;
    spec_.scale = 0.2f;
    model_.spec = spec_;
    model_.num_layers = kLayers;
    model_.hidden_size = kHidden;
    model_.intermediate_size = kInner;
    model_.eps = kEps;
    model_.float32_norms = setting.float32_norms;
    model_.rotary_size = setting.rotary_size;
    model_.embedding_scale = kEmbeddingScale;
    model_.whole_q_size = kQuery;
    model_.whole_k_size = kKeys;
    memory_.resize(library.shared_bytes(&ranks_) + 128);
    ranks_.memory = memory_.data() + (128 - reinterpret_cast<uintptr_t>(memory_.data()) % 128) % 128;
    if (setting.over_ranks) model_.ranks = &ranks_;
    for (int i = 0; i < kLayers; i++) plans_[i] = library.attention_plan_new();
  }
  ~Run() {
    for (AttentionPlan* plan : plans_) library_.attention_plan_free(plan);
  }
  Run(const Run&) = delete;

  void run(const Setting& setting, const Reference& reference, Numbers& table,
           const int64_t* token_ids, bool in_stages, Numbers& hidden) {
    DecoderLayer layers[kLayers] = {};
    for (int i = 0; i < kLayers; i++) {
      describe(setting, reference, i, layers[i]);
      plan(i);
    }
    model_.layers = layers;
    model_.embedding.table = table.at(0);
    const int64_t cache_size = 2 * kBlockSize * kKvHeads * 2 * kHeadSize;
    const Element element = setting.element;
    Numbers caches[kLayers] = {{element, cache_size}, {element, cache_size}};
    void* const addresses[kLayers] = {caches[0].at(0), caches[1].at(0)};
    Numbers normed(element, kTokens * kHidden), qkv(element, kTokens * kRow);
    Numbers attended(element, kTokens * kQuery), inner(element, kTokens * kInner);
    int64_t places[kTokens];
    for (int64_t token = 0; token < kTokens; token++) places[token] = token;
    DecoderStep step = {};
    step.num_tokens = kTokens;
    step.token_ids = token_ids;
    const int64_t* slots[kLayers];
    std::fill_n(slots, kLayers, places);
    step.positions = places;
    step.slots = slots;
    step.plans = plans_;
    step.kv_caches = addresses;
    step.hidden = hidden.at(0);
    step.normed = normed.at(0);
    step.qkv = qkv.at(0);
    step.attended = attended.at(0);
    step.inner = inner.at(0);
    if (in_stages) return run_stages(step);
    report_.expect_done(library_.run_decoder(&model_, &step), "tm_run_decoder");
  }

 private:
  static void describe(const Setting& setting, const Reference& reference, int index,
                       DecoderLayer& to) {
    const Layer& layer = reference.layers[index];
    to.input_norm = layer.input_norm.data();
    to.post_attention_norm = layer.post_attention_norm.data();
    if (setting.post_norms) {
      to.attention_output_norm = layer.output_norm.data();
      to.feed_forward_output_norm = layer.last_norm.data();
    }
    if (setting.head_norms) {
      to.q_norm = layer.q_norm.data();
      to.k_norm = layer.k_norm.data();
    }
    if (setting.over_ranks) {
      to.whole_q_norm = reference.whole_q_norm.data();
      to.whole_k_norm = reference.whole_k_norm.data();
    }
    if (kLayerSettings[index].rotates) {
      to.cos = reference.cos.data();
      to.sin = reference.sin.data();
    }
    to.plan = index;
    to.qkv = layer.qkv.packed();
    to.attention_output = layer.attention_output.packed();
    to.gate_up = layer.gate_up.packed();
    to.down = layer.down.packed();
  }

  void run_stages(DecoderStep step) {
    DecoderModel stage = model_;
    stage.num_layers = 1;
    for (int i = 0; i < kLayers; i++) {
      report_.expect_done(library_.run_decoder(&stage, &step), "tm_run_decoder of a stage");
      stage.embedding = {};
      stage.layers++;
      step.kv_caches++;
    }
  }

  void plan(int index) {
    AttentionSpec spec = spec_;
    spec.sliding_window = kLayerSettings[index].window;
    const AttentionBatch batch = {1, starts_, &starts_[1], blocks_, 2, nullptr};
    report_.expect_done(library_.attention_plan(plans_[index], &spec, &batch),
                        "tm_attention_plan");
  }

  const Library& library_;
  Report& report_;
  AttentionSpec spec_ = {};
  DecoderModel model_ = {};
  AttentionPlan* plans_[kLayers];
  Ranks ranks_ = {0, 1, nullptr, kHidden};
  std::vector<uint8_t> memory_;
  const int32_t starts_[2] = {0, kTokens}, blocks_[2] = {0, 1};
};

void check(const Library& library, Report& report, const Setting& setting) {
  Random random(11);
  const Reference reference(library, report, setting, random);
  const Element element = setting.element;
  Numbers table(element, kVocabulary * kHidden), hidden(element, kTokens * kHidden);
  table.fill(random);
  int64_t token_ids[kTokens];
  std::vector<Row> wanted(kTokens);
  for (int64_t token = 0; token < kTokens; token++) {
    token_ids[token] = token * 7 % kVocabulary;
    for (int64_t i = 0; i < kHidden; i++)
      wanted[token].push_back(
          reference.rounded(table.get(token_ids[token] * kHidden + i) * kEmbeddingScale));
  }
  reference.run(wanted);
  Run(library, report, setting).run(setting, reference, table, token_ids, false, hidden);
  Numbers staged(element, kTokens * kHidden);
  Run(library, report, setting).run(setting, reference, table, token_ids, true, staged);
  // Sums in another order change roundings to 8 bits, here and in the layer after.
  const double bound = element == Element::kBF16 ? 0.12 : 1e-4;
  for (int64_t i = 0; i < kTokens * kHidden; i++) {
    const double right = wanted[i / kHidden][i % kHidden];
    report.expect_near(hidden.get(i), right, bound, "hidden", i / kHidden, i % kHidden);
    report.expect_near(staged.get(i), hidden.get(i), 0.0, "hidden of stages", i / kHidden,
                       i % kHidden);
  }
}

}  // namespace

// Checks two different layers: with all optional parts of a layer, and without them. As two stages
// they have the same results to the last bit.
void check_decoder_layers(const Library& library, Report& report) {
  for (const Element element : {Element::kBF16, Element::kF32}) {
    const std::string in = element == Element::kBF16 ? "" : ", in float";
    report.begin("decoder layers with norms of heads and outputs, and GELU" + in);
    check(library, report, {Activation::kGelu, true, true, true, 16, element, false});
    report.begin("decoder layers without norms of heads and outputs, and SiLU" + in);
    check(library, report, {Activation::kSilu, false, false, false, 32, element, false});
    report.begin("decoder layers of one rank with norms over all heads" + in);
    check(library, report, {Activation::kSilu, false, true, false, 32, element, true});
  }
}

}  // namespace tokenmill
