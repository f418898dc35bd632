#include <algorithm>

#include "self_test/checks.h"

namespace tokenmill {
namespace {

struct Setting {
  Element element;
  int32_t block_size, head_size, window;
  float soft_cap;
  bool rotates;  // rotates and normalizes heads
  bool has_sinks;
  bool sees_ahead;  // the first queries of a step see each other
};

constexpr int32_t kHeads = 6, kKvHeads = 2, kBlocks = 64;
constexpr int64_t kTokenHeads = kHeads + 2 * kKvHeads;
constexpr float kEps = 0.1f;

// Sequences to which each step adds tokens. The steps' results are compared with plain loops.
class Attention {
 public:
  Attention(const Library& library, Report& report, const Setting& setting)
      : library_(library),
        report_(report),
        setting_(setting),
        random_(setting.block_size * 100 + setting.head_size),
        size_(setting.head_size),
        cache_(setting.element, kBlocks * kKvHeads * 2 * setting.block_size * setting.head_size) {
    cache_.fill(random_);
    spec_.num_heads = kHeads;
    spec_.num_kv_heads = kKvHeads;
    spec_.head_size = setting.head_size;
    spec_.block_size = setting.block_size;
    spec_.element = setting.element;
    spec_.sliding_window = setting.window;
    spec_.scale = 1.5f;  // large enough for a row's largest weight to grow by more than 2^8
    spec_.logits_soft_cap = setting.soft_cap;
    for (int32_t block = 0; block < kBlocks; block++) tables_.push_back((block * 37 + 5) % kBlocks);
    for (int64_t i = 0; i < kPositions * size_ / 2; i++) {
      cos_.push_back(std::cos(static_cast<float>(i) * 0.7f));
      sin_.push_back(std::sin(static_cast<float>(i) * 0.7f));
    }
    for (int32_t head = 0; head < kHeads; head++) sinks_.push_back(4.0f * random_.number());
    for (int64_t i = 0; i < 2 * size_; i++) norms_.push_back(1.0f + 0.3f * random_.number());
  }

  // Runs a step of two sequences, each with this number of queries.
  void step(int64_t queries) {
    const int64_t tokens = 2 * queries, row = kTokenHeads * size_;
    Numbers qkv(setting_.element, tokens * row), out(setting_.element, tokens * kHeads * size_);
    qkv.fill(random_);
    const Numbers given = qkv;
    std::vector<int64_t> positions, slots;
    for (int64_t token = 0; token < tokens; token++) {
      const int64_t seq = token / queries, position = length_ + token % queries;
      positions.push_back(position);
      slots.push_back(table(seq)[position / setting_.block_size] * setting_.block_size +
                      position % setting_.block_size);
    }
    length_ += queries;
    run(tokens, queries, positions, slots, qkv, out);
    for (int64_t seq = 0; seq < 2; seq++) {
      for (int64_t query = 0; query < queries; query++)
        remember(given, seq, seq * queries + query, positions[query]);
      for (int64_t query = 0; query < queries; query++)
        compare(given, out, seq, seq * queries + query, positions[query],
                last_key(positions[query], queries));
    }
  }

 private:
  static constexpr int64_t kPositions = 512;

  const int32_t* table(int64_t seq) const { return tables_.data() + seq * kBlocks / 2; }

  void run(int64_t tokens, int64_t queries, const std::vector<int64_t>& positions,
           const std::vector<int64_t>& slots, Numbers& qkv, Numbers& out) {
    const int64_t row = kTokenHeads * size_;
    const int32_t starts[] = {0, static_cast<int32_t>(queries), static_cast<int32_t>(tokens)};
    const int32_t lengths[] = {static_cast<int32_t>(length_), static_cast<int32_t>(length_)};
    std::vector<int32_t> last_keys;
    for (const int64_t position : positions)
      last_keys.push_back(static_cast<int32_t>(last_key(position, queries)));
    const AttentionBatch batch = {2, starts, lengths, tables_.data(), kBlocks / 2,
                                  setting_.sees_ahead ? last_keys.data() : nullptr};
    AttentionPlan* plan = library_.attention_plan_new();
    report_.expect_done(library_.attention_plan(plan, &spec_, &batch), "tm_attention_plan");
    RotateAndWriteCall write = {};
    write.spec = spec_;
    write.q = qkv.at(0);
    write.k = qkv.at(kHeads * size_);
    write.v = qkv.at((kHeads + kKvHeads) * size_);
    write.q_stride = write.k_stride = write.v_stride = row;
    if (setting_.rotates) {
      write.q_norm = norms_.data();
      write.k_norm = norms_.data() + size_;
      write.cos = cos_.data();
      write.sin = sin_.data();
    }
    write.eps = kEps;
    write.rotary_size = setting_.head_size;
    write.positions = positions.data();
    write.slots = slots.data();
    write.kv_cache = cache_.at(0);
    const AttentionCall call = {plan,      qkv.at(0),       row, cache_.at(0),
                                out.at(0), kHeads * size_, setting_.has_sinks ? sinks_.data() : nullptr};
    report_.expect_done(library_.write_and_attend(&write, tokens, &call), "tm_write_and_attend");
    library_.attention_plan_free(plan);
  }

  // The last key that a query of the latest step sees.
  int64_t last_key(int64_t position, int64_t queries) const {
    const int64_t first = length_ - queries, last = first + std::min<int64_t>(queries, 50) - 1;
    return setting_.sees_ahead ? std::max(position, last) : position;
  }

  // One head of a token, normalized and rotated.
  std::vector<double> head(const Numbers& qkv, int64_t token, int64_t index, const float* norm,
                           int64_t position) const {
    std::vector<double> x;
    const int64_t first = (token * kTokenHeads + index) * size_;
    for (int64_t i = 0; i < size_; i++) x.push_back(qkv.get(first + i));
    if (!setting_.rotates || norm == nullptr) return x;
    double squares = 0.0;
    for (const double one : x) squares += one * one;
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size_) + kEps);
    for (int64_t i = 0; i < size_; i++) x[i] = rounded(rounded(x[i] * factor) * norm[i]);
    std::vector<double> turned(size_);
    const int64_t half = size_ / 2;
    for (int64_t i = 0; i < half; i++) {
      const double c = cos_[position * half + i], s = sin_[position * half + i];
      turned[i] = rounded(x[i] * c - x[half + i] * s);
      turned[half + i] = rounded(x[half + i] * c + x[i] * s);
    }
    return turned;
  }

  double rounded(double x) const {
    const auto value = static_cast<float>(x);
    return setting_.element == Element::kBF16 ? from_bf16(to_bf16(value)) : value;
  }

  void remember(const Numbers& qkv, int64_t seq, int64_t token, int64_t position) {
    for (int64_t kv = 0; kv < kKvHeads; kv++) {
      keys_[seq][kv].push_back(head(qkv, token, kHeads + kv, norms_.data() + size_, position));
      values_[seq][kv].push_back(head(qkv, token, kHeads + kKvHeads + kv, nullptr, position));
    }
  }

  void compare(const Numbers& qkv, const Numbers& out, int64_t seq, int64_t token,
               int64_t position, int64_t last) {
    // With bfloat16, weights, results, queries and keys are rounded to 8 bits.
    const double bound = setting_.element == Element::kBF16 ? 0.04 : 1e-4;
    for (int64_t index = 0; index < kHeads; index++) {
      const auto q = head(qkv, token, index, norms_.data(), position);
      const int64_t kv = index / (kHeads / kKvHeads);
      const auto wanted = attend(index, q, keys_[seq][kv], values_[seq][kv], position, last);
      for (int64_t i = 0; i < size_; i++) {
        const int64_t column = index * size_ + i;
        report_.expect_near(out.get(token * kHeads * size_ + column), wanted[i], bound, "out",
                            token, column);
      }
    }
  }

  std::vector<double> attend(int64_t index, const std::vector<double>& q,
                             const std::vector<std::vector<double>>& keys,
                             const std::vector<std::vector<double>>& values,
                             int64_t position, int64_t last) const {
    const int64_t window = setting_.window;
    const int64_t first = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
    std::vector<double> out(size_);
    double sum = setting_.has_sinks ? std::exp(sinks_[index]) : 0.0;
    for (int64_t key = first; key <= last; key++) {
      double score = 0.0;
      for (int64_t i = 0; i < size_; i++) score += q[i] * keys[key][i];
      score *= spec_.scale;
      if (setting_.soft_cap > 0) score = setting_.soft_cap * std::tanh(score / setting_.soft_cap);
      const double weight = std::exp(score);
      sum += weight;
      for (int64_t i = 0; i < size_; i++) out[i] += weight * values[key][i];
    }
    for (double& one : out) one /= sum;
    return out;
  }

  const Library& library_;
  Report& report_;
  const Setting setting_;
  Random random_;
  const int64_t size_;
  AttentionSpec spec_ = {};
  Numbers cache_;
  std::vector<int32_t> tables_;
  std::vector<float> cos_, sin_, norms_, sinks_;
  int64_t length_ = 0;
  std::vector<std::vector<double>> keys_[2][kKvHeads], values_[2][kKvHeads];
};

}  // namespace

void check_attention(const Library& library, Report& report) {
  for (const Element element : {Element::kF32, Element::kBF16}) {
    const std::string type = element == Element::kF32 ? "float32" : "bfloat16";
    const Setting settings[] = {
        {element, 16, 64, 0, 0.0f, false, true, false},
        {element, 8, 48, 0, 0.0f, true, false, false},
        {element, 16, 32, 20, 5.0f, true, true, false},
        {element, 16, 48, 20, 0.0f, true, false, true},
    };
    for (const Setting& setting : settings) {
      Attention attention(library, report, setting);
      // The last step reads two chunks of keys, which two threads share.
      for (const int64_t queries : {45, 1, 5, 130, 1}) {
        report.begin("attention in " + type + " with head size " +
                     std::to_string(setting.head_size) + ", " + std::to_string(queries) +
                     " queries per sequence");
        attention.step(queries);
      }
    }
  }
}

}  // namespace tokenmill
