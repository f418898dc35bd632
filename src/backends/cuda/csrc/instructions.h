// Instructions without an equivalent in CUDA C++. Fragments are those of the PTX manual for
// mma.m16n8k16: lane 4 r + c holds rows r and r + 8 of the 16 x 16 matrix A, and column r of the
// 16 x 8 matrix B.
#pragma once

namespace tokenmill {

// c += a b, with c in float.
template <typename T>
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void multiply_accumulate<__half>(float (&c)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_accumulate<__nv_bfloat16>(float (&c)[4],
                                                                   const uint32_t (&a)[4],
                                                                   uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Loads four 8 x 8 matrices of 16-bit elements; lane i gives row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// Starts to copy 16 bytes to shared memory; unless `is_wanted`, writes zeros and reads nothing.
__device__ __forceinline__ void start_copy(void* shared, const void* global, bool is_wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(is_wanted ? 16 : 0)
               : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N groups of this thread are incomplete.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <typename T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Multiplies two pairs of halves.
__device__ __forceinline__ uint32_t multiply_halves(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Per half: all bits set if the first pair's half is greater than the second pair's.
__device__ __forceinline__ uint32_t mask_of_greater(uint32_t a, uint32_t b) {
  return __hgt2_mask(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
}

// Converts a pair of halves to bfloat16, which is exact for numbers that came from FP8.
__device__ __forceinline__ uint32_t bfloat16s_of(uint32_t halves) {
  const float2 floats = __half22float2(reinterpret_cast<const __half2&>(halves));
  const __nv_bfloat162 pair = __floats2bfloat162_rn(floats.x, floats.y);
  return reinterpret_cast<const uint32_t&>(pair);
}

// Packs two adjacent elements of a fragment, the first one in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float first, float second);
template <>
__device__ __forceinline__ uint32_t pack<__half>(float first, float second) {
  const __half2 pair = __floats2half2_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace tokenmill
