// What Python calls, by ctypes: see library.py for the signatures. No exception leaves.
#include <cstdint>

#include "instruction_sets.h"
#include "packing.h"
#include "thread_pool.h"

#define TM_API extern "C" __attribute__((visibility("default")))

// Changes with every signature or structure that Python shares; library.py must say the same.
TM_API int tm_abi_version() { return 1; }

TM_API const char* tm_instruction_sets() { return tokenmill::instruction_sets(); }
TM_API const char* tm_instruction_set() { return tokenmill::kernels().name; }
TM_API int tm_use_instruction_set(const char* name) { return tokenmill::use_instruction_set(name); }

TM_API void tm_set_threads(int threads, const int* cpus) { tokenmill::set_threads(threads, cpus); }
TM_API int tm_num_threads() { return tokenmill::num_threads(); }
TM_API int tm_pin_caller() { return tokenmill::pin_caller(); }

TM_API int64_t tm_packed_bytes(const tokenmill::PackedLinear* weights) {
  return tokenmill::packed_bytes(*weights);
}
TM_API void tm_pack(const tokenmill::PackedLinear* weights, const tokenmill::WeightRows* source,
                    uint8_t* data) {
  tokenmill::pack(*weights, *source, data);
}
TM_API void tm_unpack(const tokenmill::PackedLinear* weights, float* out) {
  tokenmill::unpack(*weights, out);
}
TM_API void tm_linear(const tokenmill::LinearCall* call) { tokenmill::linear(*call); }
// Products one after the other in one parallel region, as a decoder runs them.
TM_API void tm_linear_chain(const tokenmill::LinearCall* calls, int64_t count) {
  tokenmill::parallel([&](int worker, int workers) {
    for (int64_t i = 0; i < count; i++) {
      tokenmill::linear_part(calls[i], worker, workers);
      tokenmill::barrier();
    }
  });
}
