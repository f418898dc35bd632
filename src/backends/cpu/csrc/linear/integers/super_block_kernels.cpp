#include "linear/integers/integer_tiles.h"

namespace tokenmill {

void add_tiles_of_super_blocks(TileSet* sets) {
  add_integer_tiles<Layout::kSuper4, Layout::kSuper5>(sets);
}

}  // namespace tokenmill
