// What Python calls, by ctypes: see library.py for the signatures. No exception leaves.
#include <cstdint>

#include "c_abi.h"
#include "instruction_sets.h"
#include "packing.h"
#include "thread_pool.h"

using namespace tokenmill;

// Changes with every signature or structure that Python shares; library.py must say the same.
TM_API int tm_abi_version() noexcept { return 3; }

TM_API const char* tm_instruction_sets() noexcept { return instruction_sets(); }
TM_API const char* tm_instruction_set() noexcept { return kernels().name; }
TM_API int tm_use_instruction_set(const char* name) noexcept { return use_instruction_set(name); }

TM_API Status tm_set_threads(int threads, const int* cpus) noexcept {
  return guarded([&] { set_threads(threads, cpus); });
}
TM_API int tm_num_threads() noexcept { return num_threads(); }

TM_API int64_t tm_packed_bytes(const PackedLinear* weights) noexcept {
  return packed_bytes(*weights);
}
TM_API void tm_pack(const PackedLinear* weights, const WeightRows* source,
                    uint8_t* data) noexcept {
  pack(*weights, *source, data);
}
TM_API void tm_unpack(const PackedLinear* weights, float* out) noexcept { unpack(*weights, out); }
TM_API void tm_linear(const LinearCall* call) noexcept { linear(*call); }
