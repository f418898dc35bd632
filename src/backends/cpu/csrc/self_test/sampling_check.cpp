#include <algorithm>
#include <limits>
#include <numeric>

#include "sampling/noise.h"
#include "self_test/checks.h"

namespace tokenmill {
namespace {

constexpr int64_t kRows = 6, kSize = 1500;
constexpr int64_t kAccept = 5;
// Ratio of a draft's probability in q to its probability in the row.
constexpr float kTimes[kRows] = {2.0f, 1.5f, 3.0f, 2.0f, 0.5f, 10.0f};
constexpr double kSlack = 1e-5;  // maximum error of float32 sums

struct Drawn {
  std::vector<float> logits = std::vector<float>(kRows * kSize);
  std::vector<int64_t> best = std::vector<int64_t>(kRows);
  std::vector<int64_t> positions = std::vector<int64_t>(kRows);
  std::vector<DrawnRow> rows;

  Drawn() {
    Random random(11);
    for (float& one : logits) one = 8.0f * random.number();
    for (int64_t row = 0; row < kRows; row++) {
      best[row] = best_of(row);
      positions[row] = row * 13;
      const float temperature = 0.7f + 0.2f * static_cast<float>(row);
      rows.push_back({row, row * 1000 + 1, 1.0, kSize, temperature, 0.0f});
    }
    rows[1].top_k = 20;
    rows[2].top_p = 0.8;
    rows[3].min_p = 0.05f;
    rows[4].top_k = 300, rows[4].top_p = 0.9, rows[4].min_p = 0.001f;
  }

  const float* row(int64_t index) const { return logits.data() + index * kSize; }
  int64_t best_of(int64_t index) const {
    return std::max_element(row(index), row(index) + kSize) - row(index);
  }

  LogitsRows call(int64_t* token_ids) const {
    return {logits.data(), kSize, best.data(), positions.data(), rows.data(), token_ids};
  }

  // Probabilities after the filters, as the documentation of the sampling parameters defines them.
  std::vector<double> probabilities(int64_t index) const {
    const DrawnRow& drawn = rows[index];
    std::vector<double> weights(kSize);
    const double temperature = drawn.temperature;
    for (int64_t i = 0; i < kSize; i++)
      weights[i] = std::exp((row(index)[i] - row(index)[best[index]]) / temperature);
    keep_from(weights, drawn.min_p);
    std::vector<double> sorted = weights;
    std::sort(sorted.rbegin(), sorted.rend());
    keep_from(weights, sorted[std::min(drawn.top_k, kSize) - 1]);
    keep_from(weights, nucleus_bound(weights, drawn.top_p));
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& one : weights) one /= total;
    return weights;
  }

 private:
  static void keep_from(std::vector<double>& weights, double bound) {
    for (double& one : weights)
      if (one < bound) one = 0.0;
  }
  static double nucleus_bound(const std::vector<double>& weights, double top_p) {
    if (top_p >= 1.0) return 0.0;
    std::vector<double> sorted = weights;
    std::sort(sorted.rbegin(), sorted.rend());
    double left = top_p * std::accumulate(sorted.begin(), sorted.end(), 0.0);
    for (const double one : sorted) {
      left -= one;
      if (left <= 0.0) return one;
    }
    return 0.0;
  }
};

// Expects the token at which the cumulative probabilities pass the random number.
void expect_drawn(Report& report, int64_t row, const std::vector<double>& probabilities,
                  double number, int64_t token) {
  const bool is_token = 0 <= token && token < kSize;
  double before = 0.0;
  for (int64_t i = 0; is_token && i < token; i++) before += probabilities[i];
  const double after = is_token ? before + probabilities[token] : before;
  report.expect(after > before && before - kSlack <= number && number <= after + kSlack,
                "the token drawn for row ", row, " is ", token, " with cumulative probabilities ",
                before, " to ", after, ", expected the token whose range contains ", number);
}

void check_reading(const Library& library, Report& report, Drawn drawn) {
  report.begin("reading logits");
  drawn.logits[2 * kSize + 1499] = std::numeric_limits<float>::quiet_NaN();
  drawn.logits[5 * kSize + 3] = -std::numeric_limits<float>::infinity();
  std::vector<int64_t> best(kRows);
  std::vector<uint8_t> is_finite(kRows);
  const LogitsCall call = {drawn.logits.data(), kSize, best.data(), is_finite.data()};
  report.expect_done(library.read_logits(&call, kRows), "tm_read_logits");
  for (int64_t row = 0; row < kRows; row++) {
    const bool is_good = row != 2 && row != 5;
    report.expect((is_finite[row] != 0) == is_good, "is_finite of row ", row, " is ",
                  int{is_finite[row]}, ", expected ", is_good);
    report.expect(!is_good || best[row] == drawn.best[row], "the best token of row ", row, " is ",
                  best[row], ", expected ", drawn.best[row]);
  }
}

// Masks rows 1 and 4: with words of all ones, of all zeros, and of both.
void check_masking(const Library& library, Report& report, Drawn drawn) {
  report.begin("masking logits");
  constexpr int64_t kWords = (kSize + 31) / 32;
  const std::vector<int64_t> rows = {1, 4};
  std::vector<uint32_t> masks(rows.size() * kWords);
  for (size_t i = 0; i < masks.size(); i++)
    masks[i] = i % 3 == 0 ? ~0u : i % 3 == 1 ? 0u : 0x9e3779b9u * static_cast<uint32_t>(i);
  const std::vector<float> before = drawn.logits;
  const MaskCall call = {drawn.logits.data(), kSize, rows.data(), masks.data(), kWords};
  report.expect_done(library.mask_logits(&call, 2), "tm_mask_logits");
  for (int64_t row = 0; row < kRows; row++)
    for (int64_t i = 0; i < kSize; i++) {
      const int64_t mask = row == 1 ? 0 : row == 4 ? 1 : -1;
      const bool stays = mask < 0 || (masks[mask * kWords + i / 32] >> i % 32 & 1) != 0;
      const float wanted =
          stays ? before[row * kSize + i] : -std::numeric_limits<float>::infinity();
      report.expect(drawn.row(row)[i] == wanted, "logit ", i, " of row ", row, " is ",
                    drawn.row(row)[i], ", expected ", wanted);
    }
}

void check_drawing(const Library& library, Report& report, const Drawn& drawn) {
  report.begin("drawing tokens");
  std::vector<int64_t> token_ids(kRows, -1);
  std::vector<std::vector<float>> probs(kRows, std::vector<float>(kSize));
  std::vector<float*> written;
  for (auto& row : probs) written.push_back(row.data());
  const DrawCall call = {drawn.call(token_ids.data()), kRows, written.data(), kSize, nullptr};
  report.expect_done(library.draw(&call), "tm_draw");
  for (int64_t row = 0; row < kRows; row++) {
    const auto wanted = drawn.probabilities(row);
    for (int64_t i = 0; i < kSize; i++)
      report.expect_near(probs[row][i], wanted[i], wanted[i] * kSlack + 1e-9, "probs", row, i);
    const double number = uniform(drawn.rows[row].seed, drawn.positions[row]);
    expect_drawn(report, row, wanted, number, token_ids[row]);
  }
}

// Checks sequences of one and two drafts, with probabilities from small ones to certainty.
void check_trials(const Library& library, Report& report, const Drawn& drawn) {
  report.begin("trying draft tokens");
  const std::vector<int64_t> ends = {1, 2, 3, 4, kRows}, &drafts = drawn.best;
  std::vector<std::vector<float>> q(kRows, std::vector<float>(kSize, 1.0f / kSize));
  std::vector<const float*> from;
  std::vector<int64_t> token_ids(kRows, -1);
  for (int64_t row = 0; row < kRows; row++) {
    q[row][drafts[row]] = static_cast<float>(drawn.probabilities(row)[drafts[row]]) * kTimes[row];
    from.push_back(q[row].data());
  }
  const TrialCall call = {drawn.call(token_ids.data()), static_cast<int64_t>(ends.size()),
                          ends.data(), drafts.data(), from.data(), kAccept};
  report.expect_done(library.try_drafts(&call), "tm_try_drafts");
  bool is_open = true;
  for (int64_t row = 0; row < kRows; row++) {
    if (row + 1 < kRows) is_open = true;  // only the last row follows another draft
    if (!is_open) continue;
    auto wanted = drawn.probabilities(row);
    const int64_t seed = drawn.rows[row].seed, position = drawn.positions[row], draft = drafts[row];
    const double chance = wanted[draft] / q[row][draft], number = uniform(seed ^ kAccept, position);
    if (std::fabs(chance - number) < kSlack) return;  // both decisions may be right
    is_open = number < chance;
    if (is_open) {
      report.expect(token_ids[row] == draft, "the token of row ", row, " is ", token_ids[row],
                    ", expected its draft token ", draft, ", which has to be accepted");
      continue;
    }
    for (int64_t i = 0; i < kSize; i++) wanted[i] = std::max(wanted[i] - q[row][i], 0.0);
    wanted[draft] = 0.0;
    const double total = std::accumulate(wanted.begin(), wanted.end(), 0.0);
    for (double& one : wanted) one /= total;
    expect_drawn(report, row, wanted, uniform(seed, position), token_ids[row]);
  }
}

}  // namespace

void check_sampling(const Library& library, Report& report) {
  const Drawn drawn;
  check_reading(library, report, drawn);
  check_masking(library, report, drawn);
  check_drawing(library, report, drawn);
  check_trials(library, report, drawn);
}

}  // namespace tokenmill
