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

// Divides panels, and rows if necessary, among workers: a product with fewer panels than workers,
// or an uneven number, also divides its rows. Chooses the grid whose largest part is smallest.
Grid choose_grid(int64_t panels, int64_t tiles, int workers) {
  Grid best = {workers, 1};
  int64_t least = INT64_MAX;
  for (int rows = 1; rows <= workers && rows <= tiles; rows++) {
    if (workers % rows != 0) continue;
    const int columns = workers / rows;
    const int64_t part = ((panels + columns - 1) / columns) * ((tiles + rows - 1) / rows);
    if (part < least) {
      least = part;
      best = {columns, rows};
    }
  }
  return best;
}

bool unpacks_for(const TileSet& tiles, int64_t rows) {
  return tiles.unpacking.tiles != nullptr && rows > tiles.unpack_above;
}

// The bias of a panel's columns, copied to `padded`; null without bias.
const float* bias_of_panel(const LinearCall& call, int64_t first, int64_t columns, float* padded) {
  if (call.bias == nullptr) return nullptr;
  std::memcpy(padded, call.bias + first, columns * sizeof(float));
  const int64_t half = call.weights->n / 2;
  if (call.weights->gate_up)
    std::memcpy(padded + kLaneRows, call.bias + half + first, columns * sizeof(float));
  return padded;
}

// Multiplies rows [first_row, first_row + rows) of x by one panel, and writes its columns of out.
void multiply_panel(const LinearCall& call, const TileSet& packed_tiles,
                    const PreparedInputs& inputs, int64_t panel, int64_t first_row, int64_t rows) {
  const PackedLinear& weights = *call.weights;
  const uint8_t* data = weights.data + panel * panel_bytes(weights);
  const Sizes sizes = sizes_of(weights.layout);
  const int64_t step = sizes.step_bytes(), steps = weights.k / sizes.step_inputs;
  const Unpacking& unpacking = packed_tiles.unpacking;
  const bool unpacks = unpacks_for(packed_tiles, rows);
  const TileSet& tiles = unpacks ? *unpacking.tiles : packed_tiles;
  const int64_t used_step = unpacks ? unpacking.steps_of_step * unpacking.step_bytes : step;
  const int64_t pieces = (steps * used_step + kPieceBytes - 1) / kPieceBytes;
  const int64_t num_tiles = (rows + tiles.max_rows - 1) / tiles.max_rows;
  const int64_t width = weights.gate_up ? kLaneRows : kPanelRows;
  const int64_t out_bytes = call.out_type == Element::kF32 ? 4 : 2;
  // Sums are kept until the last piece. With one piece, each tile is finished at once.
  float* sums = sums_scratch.floats((pieces == 1 ? tiles.max_rows : rows) * kPanelRows);
  alignas(64) float bias[kPanelRows] = {};

  FinishCall finish = {};
  finish.gate_up = weights.gate_up != 0;
  finish.activation = weights.activation;
  finish.out_stride = call.out_stride;
  finish.out_type = call.out_type;
  finish.add_to_out = call.add_to_out != 0;
  finish.columns = static_cast<int>(std::min(width, num_columns(weights) - panel * width));
  finish.bias = bias_of_panel(call, panel * width, finish.columns, bias);

  for (int64_t piece = 0; piece < pieces; piece++) {
    const Share along = share_of(steps, piece, pieces);
    TileCall tile = {};
    tile.weights = data + along.begin * step;
    tile.steps = along.end - along.begin;
    tile.x_stride = inputs.stride;
    tile.group_sums_stride = inputs.group_sums_stride;
    tile.rests_at = inputs.rests_at;
    tile.add_to_sums = piece > 0;
    int prefetch_tiles = static_cast<int>(std::min<int64_t>(num_tiles, kPrefetchTiles));
    const int64_t piece_bytes = tile.steps * step;
    if (unpacks) {
      auto* unpacked = static_cast<uint8_t*>(unpacked_scratch.bytes(tile.steps * used_step));
      unpacking.unpack(tile.weights, tile.steps, unpacked);
      tile.weights = unpacked;
      tile.steps *= unpacking.steps_of_step;
      prefetch_tiles = 0;
    }
    for (int64_t i = 0; i < num_tiles; i++) {
      const Share part = share_of(rows, i, num_tiles);
      tile.x = inputs.x + part.begin * inputs.row_bytes + along.begin * inputs.step_bytes;
      tile.group_sums = inputs.group_sums + part.begin * inputs.group_sums_stride +
                        along.begin * sizes.step_inputs / sizes.group;
      tile.sums = pieces == 1 ? sums : sums + part.begin * kPanelRows;
      // A single tile prefetches its own weights. Of several tiles, the first ones share the
      // prefetch of the weights after the piece.
      const int64_t ahead = piece_bytes + piece_bytes * i / std::max(prefetch_tiles, 1);
      tile.prefetch = tile.weights + (num_tiles == 1 ? kAheadBytes : ahead);
      tile.prefetch_tiles = i < prefetch_tiles ? prefetch_tiles : 0;
      tiles.tile[part.end - part.begin](tile);
      if (piece + 1 < pieces) continue;
      finish.sums = tile.sums;
      finish.rows = part.end - part.begin;
      finish.out = static_cast<char*>(call.out) +
                   ((first_row + part.begin) * call.out_stride + panel * width) * out_bytes;
      linear_kernels().finish(finish);
    }
  }
}

// Computes one worker's part of a product with one segment.
void segment_part(const LinearCall& call, int worker, int workers) {
  const PackedLinear& weights = *call.weights;
  const TileSet& tiles = tiles_for(weights);
  const int64_t num_tiles = (call.rows + tiles.max_rows - 1) / tiles.max_rows;
  const Grid grid = choose_grid(num_panels(weights), num_tiles, workers);
  const Share panels = share_of(num_panels(weights), worker % grid.columns, grid.columns);
  const Share my_rows = share_of(call.rows, worker / grid.columns, grid.rows);
  const int64_t count = my_rows.end - my_rows.begin;
  const int64_t passes = (count + kRowsAtOnce - 1) / kRowsAtOnce;
  for (int64_t pass = 0; pass < passes; pass++) {
    const Share part = share_of(count, pass, passes);
    const int64_t first_row = my_rows.begin + part.begin, rows = part.end - part.begin;
    const PreparedInputs inputs = prepare_inputs(call, tiles, first_row, rows);
    for (int64_t panel = panels.begin; panel < panels.end; panel++)
      multiply_panel(call, tiles, inputs, panel, first_row, rows);
  }
}

}  // namespace

void linear_part(const LinearCall& call, int worker, int workers) {
  const int64_t out_bytes = call.out_type == Element::kF32 ? 4 : 2;
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
