// Offers the kernels as torch operators, through torch's stable ABI: one build works with all later
// versions of torch. Streams are passed as integers, so that the library loads without CUDA, too.
#include <string>

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "head_sizes.h"

namespace tokenmill {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void check(bool holds, const char* what) { STD_TORCH_CHECK(holds, "tokenmill_cuda: ", what); }

void check(const char* error) {
  STD_TORCH_CHECK(error == nullptr, "tokenmill_cuda: ", error ? error : "");
}

Element element_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return Element::F32;
    case ScalarType::Half: return Element::F16;
    case ScalarType::BFloat16: return Element::BF16;
    default: break;
  }
  check(false, "tensors must be float32, float16 or bfloat16");
  return Element::F32;
}

Element element_of_cache(const Tensor& cache) {
  switch (cache.scalar_type()) {
    case ScalarType::Float8_e4m3fn: return Element::E4M3;
    case ScalarType::Float8_e5m2: return Element::E5M2;
    default: return element_of(cache);
  }
}

bool is_fp8(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Float8_e4m3fn ||
         tensor.scalar_type() == ScalarType::Float8_e5m2;
}

int64_t bytes_of(Element element) { return element == Element::F32 ? 4 : 2; }

// Checks that a tensor is [tokens][head][head_size] with contiguous tokens aligned to 16 bytes.
void check_rows(const Tensor& rows, const Tensor& cache, const char* what) {
  check(rows.dim() == 3 && (rows.scalar_type() == cache.scalar_type() || is_fp8(cache)) &&
            rows.get_device_index() == cache.get_device_index() && rows.size(2) == cache.size(4) &&
            rows.stride(2) == 1 && rows.stride(1) == rows.size(2) &&
            rows.stride(0) * bytes_of(element_of(rows)) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(rows.data_ptr()) % 16 == 0,
        what);
}

void check_cache(const Tensor& cache) {
  check(cache.dim() == 5 && cache.size(2) == 2 && cache.is_contiguous(),
        "the KV cache must be contiguous [blocks, kv_heads, 2, block_size, head_size]");
  check(cache.numel() / cache.size(4) <= INT32_MAX, "the KV cache has too many rows");
}

const int32_t* int32s(const Tensor& tensor, const Tensor& cache, int64_t at_least) {
  check(tensor.scalar_type() == ScalarType::Int && tensor.numel() >= at_least &&
            tensor.stride(tensor.dim() - 1) == 1 &&
            tensor.get_device_index() == cache.get_device_index(),
        "block tables, locations and lengths must be int32, on the GPU, with one per sequence");
  return static_cast<const int32_t*>(tensor.data_ptr());
}

// Memory for partial results, which are merged later; empty when no context is split.
float* floats(const Tensor& tensor, const Tensor& cache, int64_t at_least) {
  check(tensor.scalar_type() == ScalarType::Float && tensor.is_contiguous() &&
            tensor.numel() >= at_least && tensor.get_device_index() == cache.get_device_index(),
        "partial results must be float32, on the GPU, and large enough");
  return static_cast<float*>(tensor.data_ptr());
}

void write_kv(const Tensor& keys, const Tensor& values, const Tensor& slots, Tensor kv_cache,
              int64_t stream) {
  check_cache(kv_cache);
  check_rows(keys, kv_cache, "keys do not fit the KV cache");
  check_rows(values, kv_cache, "values do not fit the KV cache");
  check(keys.size(1) == kv_cache.size(1) && values.size(1) == kv_cache.size(1) &&
            keys.scalar_type() == values.scalar_type(),
        "keys and values must have the same type, and the KV cache's number of heads");
  check(slots.scalar_type() == ScalarType::Long && slots.is_contiguous() &&
            slots.get_device_index() == kv_cache.get_device_index() &&
            slots.numel() <= keys.size(0) && slots.numel() <= values.size(0),
        "slots must be int64, on the GPU, one per token");
  const WriteCall call{
      .keys = keys.data_ptr(),
      .values = values.data_ptr(),
      .slots = static_cast<const int64_t*>(slots.data_ptr()),
      .kv_cache = kv_cache.data_ptr(),
      .num_tokens = slots.numel(),
      .key_stride = keys.stride(0),
      .value_stride = values.stride(0),
      .num_kv_heads = static_cast<int32_t>(kv_cache.size(1)),
      .head_size = static_cast<int32_t>(kv_cache.size(4)),
      .block_size = static_cast<int32_t>(kv_cache.size(3)),
      .element = element_of(keys),
      .cache_element = element_of_cache(kv_cache),
  };
  const torch::stable::accelerator::DeviceGuard guard(kv_cache.get_device_index());
  check(write(call, reinterpret_cast<void*>(stream)));
}

AttentionCall make_call(const Tensor& queries, const Tensor& kv_cache, const Tensor& block_tables,
                        const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& out,
                        int64_t first_sequence, int64_t num_sequences, int64_t max_query_len,
                        double scale, int64_t sliding_window, double logits_soft_cap) {
  check_cache(kv_cache);
  check_rows(queries, kv_cache, "queries do not fit the KV cache");
  check_rows(out, kv_cache, "the output does not fit the KV cache");
  check(out.size(0) == queries.size(0) && out.size(1) == queries.size(1) &&
            out.scalar_type() == queries.scalar_type(),
        "queries and output must have the same shape and type");
  check(queries.size(1) % kv_cache.size(1) == 0, "query heads must share KV heads evenly");
  const int64_t end = first_sequence + num_sequences;
  check(first_sequence >= 0 && num_sequences >= 0 && num_sequences <= 65535,
        "one call serves at most 65535 sequences");
  check(block_tables.dim() == 2 && block_tables.size(0) >= end,
        "there must be a block table per sequence");
  return {
      .queries = queries.data_ptr(),
      .kv_cache = kv_cache.data_ptr(),
      .out = out.data_ptr(),
      .query_stride = queries.stride(0),
      .out_stride = out.stride(0),
      .block_tables = int32s(block_tables, kv_cache, 0),
      .query_start_loc = int32s(query_start_loc, kv_cache, end + 1),
      .seq_lens = int32s(seq_lens, kv_cache, end),
      .block_tables_stride = block_tables.stride(0),
      .partial_sums = nullptr,
      .partial_stats = nullptr,
      .split_size = nullptr,
      .max_splits = 1,
      .first_sequence = static_cast<int32_t>(first_sequence),
      .num_sequences = static_cast<int32_t>(num_sequences),
      .max_query_len = static_cast<int32_t>(max_query_len),
      .num_heads = static_cast<int32_t>(queries.size(1)),
      .num_kv_heads = static_cast<int32_t>(kv_cache.size(1)),
      .head_size = static_cast<int32_t>(kv_cache.size(4)),
      .block_size = static_cast<int32_t>(kv_cache.size(3)),
      .sliding_window = static_cast<int32_t>(sliding_window),
      .scale = static_cast<float>(scale),
      .logits_soft_cap = static_cast<float>(logits_soft_cap),
      .element = element_of(queries),
      .cache_element = element_of_cache(kv_cache),
  };
}

void attend_decodes(const Tensor& queries, const Tensor& kv_cache, const Tensor& block_tables,
                    const Tensor& query_start_loc, const Tensor& seq_lens, Tensor out,
                    Tensor partial_sums, Tensor partial_stats, const Tensor& split_size,
                    int64_t first_sequence, int64_t num_sequences, int64_t max_query_len,
                    int64_t max_splits, double scale, int64_t sliding_window,
                    double logits_soft_cap, int64_t stream) {
  AttentionCall call =
      make_call(queries, kv_cache, block_tables, query_start_loc, seq_lens, out, first_sequence,
                num_sequences, max_query_len, scale, sliding_window, logits_soft_cap);
  if (max_splits > 1) {
    const int64_t places = num_sequences * max_query_len * call.num_heads * max_splits;
    call.partial_sums = floats(partial_sums, kv_cache, places * call.head_size);
    call.partial_stats = floats(partial_stats, kv_cache, places * 2);
    call.split_size = int32s(split_size, kv_cache, 1);
    call.max_splits = static_cast<int32_t>(max_splits);
  }
  const torch::stable::accelerator::DeviceGuard guard(kv_cache.get_device_index());
  switch (call.head_size) {
#define CASE(size) \
  case size: return check(decodes_##size(call, reinterpret_cast<void*>(stream)));
    TOKENMILL_HEAD_SIZES(CASE)
#undef CASE
  }
  check(false, "there are no kernels for this head size");
}

void attend_prompts(const Tensor& queries, const Tensor& kv_cache, const Tensor& block_tables,
                    const Tensor& query_start_loc, const Tensor& seq_lens, Tensor out,
                    int64_t first_sequence, int64_t num_sequences, int64_t max_query_len,
                    double scale, int64_t sliding_window, double logits_soft_cap, int64_t stream) {
  const AttentionCall call =
      make_call(queries, kv_cache, block_tables, query_start_loc, seq_lens, out, first_sequence,
                num_sequences, max_query_len, scale, sliding_window, logits_soft_cap);
  const torch::stable::accelerator::DeviceGuard guard(kv_cache.get_device_index());
  switch (call.head_size) {
#define CASE(size) \
  case size: return check(prompts_##size(call, reinterpret_cast<void*>(stream)));
    TOKENMILL_HEAD_SIZES(CASE)
#undef CASE
  }
  check(false, "there are no kernels for this head size");
}

}  // namespace
}  // namespace tokenmill

STABLE_TORCH_LIBRARY(tokenmill_cuda, m) {
  m.def(
      "write_kv(Tensor keys, Tensor values, Tensor slots, Tensor(a!) kv_cache, int stream) -> ()");
  m.def(
      "attend_decodes(Tensor queries, Tensor kv_cache, Tensor block_tables, "
      "Tensor query_start_loc, Tensor seq_lens, Tensor(a!) out, Tensor(b!) partial_sums, "
      "Tensor(c!) partial_stats, Tensor split_size, int first_sequence, int num_sequences, "
      "int max_query_len, int max_splits, float scale, int sliding_window, "
      "float logits_soft_cap, int stream) -> ()");
  m.def(
      "attend_prompts(Tensor queries, Tensor kv_cache, Tensor block_tables, "
      "Tensor query_start_loc, Tensor seq_lens, Tensor(a!) out, int first_sequence, "
      "int num_sequences, int max_query_len, float scale, int sliding_window, "
      "float logits_soft_cap, int stream) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(tokenmill_cuda, CUDA, m) {
  m.impl("write_kv", TORCH_BOX(&tokenmill::write_kv));
  m.impl("attend_decodes", TORCH_BOX(&tokenmill::attend_decodes));
  m.impl("attend_prompts", TORCH_BOX(&tokenmill::attend_prompts));
}
