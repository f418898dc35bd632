#include "linear/integers/integer_tiles.h"

namespace tokenmill {

void add_tiles_of_blocks(TileSet* sets) {
  add_integer_tiles<Layout::kBlocks4, Layout::kBlocks5, Layout::kBytes>(sets);
}

}  // namespace tokenmill
