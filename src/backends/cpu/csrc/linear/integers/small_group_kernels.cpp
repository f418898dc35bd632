#include "linear/integers/integer_tiles.h"

namespace tokenmill {

void add_tiles_of_small_groups(TileSet* sets) {
  add_integer_tiles<Layout::kSix, Layout::kThree, Layout::kTwo>(sets);
}

}  // namespace tokenmill
