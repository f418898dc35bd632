#include "decoder/rank_exchange.h"

#include "elementwise/elementwise.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// Rows of a product whose partial sums are exchanged at once: their weights are read once.
constexpr int64_t kRowsOfSlot = 256;

}  // namespace

RankExchange::RankExchange(const DecoderModel& model, const DecoderStep& step, PhaseClock& clock,
                           int worker, int workers)
    : model_(model),
      step_(step),
      clock_(clock),
      meetings_(*model.ranks, worker),
      element_bytes_(size_of(model.spec.element)),
      worker_(worker),
      workers_(workers) {}

// Ends a phase in which all workers wrote to their rank's slot, and returns once all slots may be
// read.
void RankExchange::meet(Phase phase) {
  clock_.finish(phase);
  meetings_.meet();
  clock_.lap(Phase::kWait);
}

void RankExchange::norm_heads(const DecoderLayer& layer, uint8_t* q, int64_t q_size,
                              int64_t k_size) {
  const Element element = model_.spec.element;
  const int64_t row_bytes = (q_size + 2 * k_size) * element_bytes_, q_bytes = q_size * element_bytes_;
  const int64_t at_once = meetings_.slot_floats() / 2;
  for (int64_t first = 0; first < step_.num_tokens; first += at_once) {
    const Share mine = share_of(std::min(step_.num_tokens - first, at_once), worker_, workers_);
    for (int64_t i = mine.begin; i < mine.end; i++) {
      uint8_t* row = q + (first + i) * row_bytes;
      meetings_.own_slot()[2 * i] = sum_of_squares(element, row, q_size);
      meetings_.own_slot()[2 * i + 1] = sum_of_squares(element, row + q_bytes, k_size);
    }
    meet(Phase::kNorm);
    for (int64_t i = mine.begin; i < mine.end; i++) {
      uint8_t* row = q + (first + i) * row_bytes;
      norm_part(row, layer.whole_q_norm, q_size, 2 * i, model_.whole_q_size);
      norm_part(row + q_bytes, layer.whole_k_norm, k_size, 2 * i + 1, model_.whole_k_size);
    }
    meetings_.end_round();
  }
  clock_.finish(Phase::kNorm);
}

// The norm of a part of a vector, in place. Number `place` of each slot is the sum of its squares.
void RankExchange::norm_part(uint8_t* x, const float* weight, int64_t size, int64_t place,
                             int64_t whole_size) {
  float sum = 0;
  for (int rank = 0; rank < meetings_.size(); rank++) sum += meetings_.slot_of(rank)[place];
  const float mean = sum / static_cast<float>(whole_size);
  RmsNormCall call = {};
  call.element = model_.spec.element;
  call.x = call.out = x;
  call.x_stride = call.out_stride = call.size = size;
  call.weight = weight;
  call.eps = model_.eps;
  call.float32_norm = model_.float32_norms != 0;
  call.mean_square = &mean;
  rms_norm(call, 0, 1);
}

// The rows for which a slot has room, at most those that a product computes at once.
int64_t RankExchange::rows_at_once() const {
  return std::min(meetings_.slot_floats() / model_.hidden_size, kRowsOfSlot);
}

// out (+)= the sums of all slots, for some rows.
void RankExchange::add_up(int64_t first, int64_t rows, void* out, bool add, Phase phase) {
  meet(phase);
  const Share mine = share_of(rows * model_.hidden_size, worker_, workers_);
  add_slots(meetings_, mine.begin, mine.end,
            static_cast<uint8_t*>(out) + first * model_.hidden_size * element_bytes_,
            model_.spec.element, add);
  meetings_.end_round();
}

// Exchanges rows in groups that fit into a slot.
void RankExchange::gather_logits() {
  const int64_t* first = model_.first_logits;
  int64_t widest = 0;
  for (int rank = 0; rank < meetings_.size(); rank++)
    widest = std::max(widest, first[rank + 1] - first[rank]);
  const int64_t at_once = meetings_.slot_floats() / widest;
  for (int64_t row = 0; row < step_.num_sampled; row += at_once) {
    const int64_t rows = std::min(step_.num_sampled - row, at_once);
    copy_logits(model_.ranks->rank, row, rows, true);
    meet(Phase::kLogits);
    for (int rank = 0; rank < meetings_.size(); rank++)
      if (rank != model_.ranks->rank) copy_logits(rank, row, rows, false);
    meetings_.end_round();
  }
}

// Copies this worker's columns of a rank's logits to the rank's slot, or from it.
void RankExchange::copy_logits(int rank, int64_t row, int64_t rows, bool to_slot) {
  const int64_t first = model_.first_logits[rank], count = model_.first_logits[rank + 1] - first;
  const Share mine = share_of(count, worker_, workers_);
  for (int64_t i = 0; i < rows; i++) {
    float* logits = step_.logits + (row + i) * num_logits() + first + mine.begin;
    float* slot = meetings_.slot_of(rank) + i * count + mine.begin;
    std::copy_n(to_slot ? logits : slot, mine.end - mine.begin, to_slot ? slot : logits);
  }
}

}  // namespace tokenmill
