#include "linear/integers/integer_tiles.h"

namespace tokenmill {

void add_tiles_of_tables(TileSet* sets) {
  add_integer_tiles<Layout::kE2M1, Layout::kIQ4, Layout::kSuperIQ4>(sets);
}

}  // namespace tokenmill
