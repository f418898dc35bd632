#include "self_test/checks.h"

namespace tokenmill {

// Checks three threads, and a call that needs more memory than any CPU's address space has.
void check_threads(const Library& library, Report& report) {
  report.begin("threads");
  report.expect_done(library.set_threads(3, nullptr), "tm_set_threads");
  report.expect(library.num_threads() == 3, "tm_num_threads returned ", library.num_threads(),
                ", expected 3");
  PackedLinear weights = {};
  weights.layout = Layout::kBlocks4;
  weights.n = 64;
  weights.k = int64_t{1} << 52;
  LinearCall call = {};
  call.weights = &weights;
  call.x_stride = weights.k;
  call.rows = 2;
  const Status status = library.linear(&call);
  report.expect(status == Status::kOutOfMemory,
                "tm_linear without enough memory returned status ", static_cast<int>(status),
                ", expected 1 (out of memory)");
}

}  // namespace tokenmill
