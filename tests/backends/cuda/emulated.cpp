// The kernels for one head size, HEAD_SIZE, in the emulator, for ctypes.
#include "launch.h"

extern "C" {

const char* write_kv(const tokenmill::WriteCall* call) {
  return tokenmill::launch_write(*call, nullptr);
}

const char* attend_decodes(const tokenmill::AttentionCall* call) {
  return tokenmill::launch_decodes<HEAD_SIZE>(*call, nullptr);
}

const char* attend_prompts(const tokenmill::AttentionCall* call) {
  return tokenmill::launch_prompts<HEAD_SIZE>(*call, nullptr);
}

}
