#include "self_test/checks.h"

namespace tokenmill {

// Checks three threads, and a call that needs more memory than any CPU's address space has.
void check_threads(const Library& library, Report& report) {
  report.begin("threads");
  report.expect(library.set_threads(3, nullptr) == Status::kDone, "three cannot be had");
  report.expect(library.num_threads() == 3, "there are not three");
  PackedLinear weights = {};
  weights.format = Format::kQ4_1;
  weights.n = 64;
  weights.k = int64_t{1} << 52;
  LinearCall call = {};
  call.weights = &weights;
  call.x_stride = weights.k;
  call.rows = 2;
  report.expect(library.linear(&call) == Status::kOutOfMemory, "a lack of memory is not reported");
}

}  // namespace tokenmill
