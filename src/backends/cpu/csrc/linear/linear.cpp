// Computes a product: divides it among workers, orders the work, and prefetches weights.
#include <algorithm>
#include <cstring>
#include <memory>

#include "linear/inputs.h"
#include "threads/scratch.h"
#include "threads/thread_pool.h"

namespace tokenmill {
namespace {

// Maximum number of rows whose sums for one panel are kept at once. The sums, 32 KB of floats
// [rows, 32], stay in L1 and L2, while a panel (37 KB at k = 576) is read from memory once for all
// rows.
constexpr int64_t kRowsAtOnce = 264;
// Minimum number of rows for which a worker reads weights that another worker reads, too.
constexpr int64_t kRowsToShare = 128;
// Maximum size of a piece of a panel. Longer panels are cut along k, so that a piece stays in L2
// while all rows use it.
constexpr int64_t kPieceBytes = 128 * 1024;
// Distance of the prefetch in a product with one tile of rows: memory latency times bandwidth.
constexpr int64_t kAheadBytes = 4096;

thread_local Scratch sums_scratch, unpacked_scratch;

struct Grid {
  int columns;  // of workers, along n
  int rows;     // of workers, along the rows of x
};

// Divides panels and rows among workers. Chooses the grid whose largest part is smallest. Among grids
// that differ little, it divides rows, as long as each part has kRowsToShare: workers with the same
// rows prepare these inputs again, each for itself.
Grid choose_grid(int64_t panels, int64_t rows, int64_t tile_rows, int workers) {
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  Grid best = {workers, 1};
  int64_t least = INT64_MAX;
  for (int parts = 1; parts <= workers && parts <= tiles; parts++) {
    if (workers % parts != 0) continue;
    const int columns = workers / parts;
    const int64_t part = ((panels + columns - 1) / columns) * ((tiles + parts - 1) / parts);
    if (part < least || (rows >= parts * kRowsToShare && part <= least + least / 16)) {
      least = std::min(part, least);
      best = {columns, parts};
    }
  }
  return best;
}

bool unpacks_for(const TileSet& tiles, int64_t rows) {
  return tiles.unpacking.tiles != nullptr && rows > tiles.unpack_above;
}

// Multiplies rows [first_row, first_row + rows) of x by panels, and writes their columns of out. What
// is the same for all panels is computed once: a panel takes less than a microsecond.
class PanelProduct {
 public:
  PanelProduct(const LinearCall& call, const TileSet& packed_tiles, const PreparedInputs& inputs,
               int64_t first_row, int64_t rows)
      : call_(call),
        weights_(*call.weights),
        inputs_(inputs),
        sizes_(sizes_of(weights_.layout)),
        unpacking_(packed_tiles.unpacking),
        unpacks_(unpacks_for(packed_tiles, rows)),
        tiles_(unpacks_ ? *unpacking_.tiles : packed_tiles),
        first_row_(first_row),
        rows_(rows),
        step_(sizes_.step_bytes()),
        steps_(weights_.k / sizes_.step_inputs),
        used_step_(unpacks_ ? unpacking_.steps_of_step * unpacking_.step_bytes : step_),
        pieces_((steps_ * used_step_ + kPieceBytes - 1) / kPieceBytes),
        num_tiles_((rows + tiles_.max_rows - 1) / tiles_.max_rows),
        prefetch_tiles_(static_cast<int>(
            rows > tiles_.prefetch_above ? std::min<int64_t>(num_tiles_, kPrefetchTiles) : 0)),
        width_(weights_.gate_up ? kLaneRows : kPanelRows),
        out_bytes_(size_of(call.out_type)),
        // Sums are kept until the last piece. With one piece, each tile is finished at once.
        sums_(sums_scratch.floats((pieces_ == 1 ? tiles_.max_rows : rows) * kPanelRows)) {
    tile_.x_stride = inputs.stride;
    tile_.group_sums_stride = inputs.group_sums_stride;
    tile_.rests_at = inputs.rests_at;
    finish_.gate_up = weights_.gate_up != 0;
    finish_.activation = weights_.activation;
    finish_.out_stride = call.out_stride;
    finish_.out_type = call.out_type;
    finish_.add_to_out = call.add_to_out != 0;
  }

  void multiply(int64_t panel) {
    const uint8_t* data = weights_.data + panel * steps_ * step_;
    finish_.columns = static_cast<int>(std::min(width_, num_columns(weights_) - panel * width_));
    finish_.bias = bias_of(panel * width_);
    if (pieces_ == 1 && num_tiles_ == 1 && !unpacks_) return multiply_by_one_tile(data, panel);
    for (int64_t piece = 0; piece < pieces_; piece++) multiply_piece(data, panel, piece);
  }

 private:
  // The bias of a panel's columns, padded; null without bias.
  const float* bias_of(int64_t first) {
    if (call_.bias == nullptr) return nullptr;
    std::memcpy(bias_, call_.bias + first, finish_.columns * sizeof(float));
    const int64_t half = weights_.n / 2;
    if (weights_.gate_up)
      std::memcpy(bias_ + kLaneRows, call_.bias + half + first, finish_.columns * sizeof(float));
    return bias_;
  }

  // As multiply_piece, without what only larger products need.
  void multiply_by_one_tile(const uint8_t* data, int64_t panel) {
    tile_.weights = data;
    tile_.steps = steps_;
    tile_.x = inputs_.x;
    tile_.group_sums = inputs_.group_sums;
    tile_.sums = sums_;
    tile_.prefetch = data + kAheadBytes;
    tile_.prefetch_tiles = prefetch_tiles_;
    tiles_.tile[rows_](tile_);
    finish_rows(panel, 0, rows_);
  }

  void multiply_piece(const uint8_t* data, int64_t panel, int64_t piece) {
    const Share along = share_of(steps_, piece, pieces_);
    tile_.weights = data + along.begin * step_;
    tile_.steps = along.end - along.begin;
    tile_.add_to_sums = piece > 0;
    const int64_t piece_bytes = tile_.steps * step_;
    int prefetch_tiles = prefetch_tiles_;
    if (unpacks_) {
      auto* unpacked =
          static_cast<uint8_t*>(unpacked_scratch.bytes(tile_.steps * used_step_));
      unpacking_.unpack(tile_.weights, tile_.steps, unpacked);
      tile_.weights = unpacked;
      tile_.steps *= unpacking_.steps_of_step;
      prefetch_tiles = 0;
    }
    for (int64_t i = 0; i < num_tiles_; i++) {
      const Share part = share_of(rows_, i, num_tiles_);
      tile_.x = inputs_.x + part.begin * inputs_.row_bytes + along.begin * inputs_.step_bytes;
      tile_.group_sums = inputs_.group_sums + part.begin * inputs_.group_sums_stride +
                         along.begin * sizes_.step_inputs / sizes_.group;
      tile_.sums = pieces_ == 1 ? sums_ : sums_ + part.begin * kPanelRows;
      // A single tile prefetches its own weights. Of several tiles, the first ones share the
      // prefetch of the weights after the piece.
      const int64_t ahead = piece_bytes + piece_bytes * i / std::max(prefetch_tiles, 1);
      tile_.prefetch = tile_.weights + (num_tiles_ == 1 ? kAheadBytes : ahead);
      tile_.prefetch_tiles = i < prefetch_tiles ? prefetch_tiles : 0;
      tiles_.tile[part.end - part.begin](tile_);
      if (piece + 1 == pieces_) finish_rows(panel, part.begin, part.end - part.begin);
    }
  }

  void finish_rows(int64_t panel, int64_t first, int64_t rows) {
    finish_.sums = tile_.sums;
    finish_.rows = rows;
    finish_.out = static_cast<char*>(call_.out) +
                  ((first_row_ + first) * call_.out_stride + panel * width_) * out_bytes_;
    linear_kernels().finish(finish_);
  }

  const LinearCall& call_;
  const PackedLinear& weights_;
  const PreparedInputs& inputs_;
  const Sizes& sizes_;
  const Unpacking& unpacking_;
  const bool unpacks_;
  const TileSet& tiles_;
  const int64_t first_row_, rows_, step_, steps_, used_step_, pieces_, num_tiles_;
  const int prefetch_tiles_;  // 0: none
  const int64_t width_, out_bytes_;
  float* const sums_;
  TileCall tile_ = {};
  FinishCall finish_ = {};
  alignas(64) float bias_[kPanelRows] = {};
};

// Computes one worker's part of a product with one segment.
void segment_part(const LinearCall& call, int worker, int workers) {
  const PackedLinear& weights = *call.weights;
  const TileSet& tiles = tiles_for(weights);
  const Grid grid = choose_grid(num_panels(weights), call.rows, tiles.max_rows, workers);
  const Share panels = share_of(num_panels(weights), worker % grid.columns, grid.columns);
  const Share my_rows = share_of(call.rows, worker / grid.columns, grid.rows);
  const int64_t count = my_rows.end - my_rows.begin;
  const int64_t passes = (count + kRowsAtOnce - 1) / kRowsAtOnce;
  for (int64_t pass = 0; pass < passes; pass++) {
    const Share part = share_of(count, pass, passes);
    const int64_t first_row = my_rows.begin + part.begin, rows = part.end - part.begin;
    const PreparedInputs inputs = prepare_inputs(call, tiles, first_row, rows);
    PanelProduct product(call, tiles, inputs, first_row, rows);
    for (int64_t panel = panels.begin; panel < panels.end; panel++) product.multiply(panel);
  }
}

}  // namespace

void linear_part(const LinearCall& call, int worker, int workers) {
  const int64_t out_bytes = size_of(call.out_type);
  LinearCall part = call;
  while (part.weights != nullptr) {
    segment_part(part, worker, workers);
    const int64_t n = part.weights->n;
    part.out = static_cast<char*>(part.out) + num_columns(*part.weights) * out_bytes;
    if (part.bias != nullptr) part.bias += n;
    part.weights = part.weights->next;
  }
}

void linear(const LinearCall& call) {
  parallel([&](int worker, int workers) { linear_part(call, worker, workers); });
}

}  // namespace tokenmill
