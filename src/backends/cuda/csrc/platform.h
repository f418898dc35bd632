// The platform of the kernels: CUDA, or C++ with an emulator of the features that they use.
#pragma once

#include <cstdint>

namespace tokenmill {

// The number of thread blocks of a launch, per dimension.
struct Grid {
  int64_t x;
  int y;
  int z;
};

}  // namespace tokenmill

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "instructions.h"

#define SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

namespace tokenmill {

using Half = __half;
using BFloat16 = __nv_bfloat16;

// Launches a kernel. Returns an error message, or null on success.
template <typename Call>
const char* launch(void (*kernel)(Call), Grid grid, int threads, int shared_bytes, const Call& call,
                   void* stream) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return nullptr;
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 48 * 1024)  // CUDA's limit without this attribute
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error == cudaSuccess) {
    const dim3 blocks(static_cast<unsigned>(grid.x), grid.y, grid.z);
    kernel<<<blocks, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(call);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace tokenmill

#else

#include "emulator.h"  // defines everything above, and CUDA's built-ins such as threadIdx

#endif
