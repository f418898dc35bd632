#include "self_test/checks.h"

namespace tokenmill {

namespace {

constexpr int64_t kSize = 38, kVocabulary = 50, kTokens = 5;

// A matrix [kVocabulary, kSize] that the library packed.
class PackedMatrix {
 public:
  PackedMatrix(const Library& library, Report& report, Element element, Numbers& rows) {
    const bool is_float = element == Element::kF32;
    packed_.layout = is_float ? Layout::kF32 : Layout::kBF16;
    packed_.n = kVocabulary;
    packed_.k = kSize;
    memory_.resize(library.packed_bytes(&packed_) + 64 + 8192);  // kernels prefetch
    auto* data = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    packed_.data = data;
    const WeightRows source = {static_cast<uint8_t*>(rows.at(0)), nullptr, rows.size() * kSize,
                               is_float ? Source::kF32 : Source::kBF16};
    report.expect_done(library.pack(&packed_, &source, data), "tm_pack");
  }
  const PackedLinear* get() const { return &packed_; }

 private:
  PackedLinear packed_ = {};
  std::vector<uint8_t> memory_;
};

void check(const Library& library, Report& report, Element element, bool is_packed) {
  Random random(7);
  Numbers table(element, kVocabulary * kSize), rows(element, kVocabulary * kSize);
  table.fill(random);
  rows.fill(random);
  std::vector<float> norm(kSize);
  for (float& one : norm) one = 1.0f + 0.3f * random.number();
  const PackedMatrix head(library, report, element, rows), embedding(library, report, element, table);
  DecoderModel model = {};
  model.spec.element = element;
  model.hidden_size = kSize;
  if (is_packed) model.embedding.packed = embedding.get();
  else model.embedding.table = table.at(0);
  model.norm = norm.data();
  model.head = head.get();
  model.eps = 0.1f;
  model.embedding_scale = 1.0f;
  const int64_t token_ids[kTokens] = {49, 0, 7, 7, 21}, sampled_rows[] = {4, 0, 2};
  Numbers hidden(element, kTokens * kSize), sampled(element, 3 * kSize);
  std::vector<float> logits(3 * kVocabulary);
  DecoderStep step = {};
  step.num_tokens = kTokens;
  step.token_ids = token_ids;
  step.hidden = hidden.at(0);
  step.num_sampled = 3;
  step.sampled_rows = sampled_rows;
  step.sampled = sampled.at(0);
  step.logits = logits.data();
  report.expect_done(library.run_decoder(&model, &step), "tm_run_decoder");

  const double precision = element == Element::kBF16 ? 0x1p-7 : 0x1p-21;
  for (int64_t i = 0; i < 3; i++) {
    const int64_t token = token_ids[sampled_rows[i]];
    double squares = 0.0;
    for (int64_t j = 0; j < kSize; j++) {
      const double one = table.get(token * kSize + j);
      report.expect_near(hidden.get(sampled_rows[i] * kSize + j), one, 0.0, "hidden",
                         sampled_rows[i], j);
      squares += one * one;
    }
    const double factor = 1.0 / std::sqrt(squares / kSize + 0.1f);
    for (int64_t j = 0; j < kSize; j++) {
      const double wanted = table.get(token * kSize + j) * factor * norm[j];
      report.expect_near(sampled.get(i * kSize + j), wanted, std::fabs(wanted) * precision,
                         "normed", i, j);
    }
    for (int64_t j = 0; j < kVocabulary; j++) {
      double wanted = 0.0;
      for (int64_t k = 0; k < kSize; k++)
        wanted += static_cast<double>(sampled.get(i * kSize + k)) * rows.get(j * kSize + k);
      report.expect_near(logits[i * kVocabulary + j], wanted, 1e-4, "logits", i, j);
    }
  }
}

}  // namespace

// Checks a decoder without layers: embeddings, the last norm, and the head.
void check_decoder(const Library& library, Report& report) {
  report.begin("decoder without layers");
  check(library, report, Element::kBF16, false);
  report.begin("decoder without layers, with a packed embedding");
  check(library, report, Element::kBF16, true);
  report.begin("decoder without layers, in float");
  check(library, report, Element::kF32, false);
  report.begin("decoder without layers, in float, with a packed embedding");
  check(library, report, Element::kF32, true);
}

}  // namespace tokenmill
