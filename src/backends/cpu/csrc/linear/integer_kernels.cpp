#include "linear/integer_tiles.h"

namespace tokenmill {
namespace {

template <Layout kLayout>
void add(TileSet* sets) {
  sets[static_cast<int>(kLayout)] = integer_tiles<kLayout>();
}

}  // namespace

void add_integer_tiles(TileSet* sets) {
  add<Layout::kBlocks4>(sets);
  add<Layout::kBlocks5>(sets);
  add<Layout::kBytes>(sets);
  add<Layout::kSuper4>(sets);
  add<Layout::kSuper5>(sets);
  add<Layout::kSix>(sets);
  add<Layout::kE2M1>(sets);
  add<Layout::kIQ4>(sets);
  add<Layout::kSuperIQ4>(sets);
  add<Layout::kThree>(sets);
  add<Layout::kTwo>(sets);
}

}  // namespace tokenmill
