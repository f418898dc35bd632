// Emulates vpdpbusd on registers of 256 bits, for CPUs with AVX2 but without AVX-VNNI: such a CPU
// raises SIGILL, and the handler computes the result and goes on behind the instruction. Linked into
// the self-test in place of the code that asks the CPU for its features.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace {

long g_emulated = 0;

// The vector registers of an interrupted thread. In the frame of a signal, lower halves lie where
// fxsave has them, and upper halves behind the header of xsave.
struct Vectors {
  explicit Vectors(const ucontext_t* context)
      : base(reinterpret_cast<uint8_t*>(context->uc_mcontext.fpregs)) {}

  void read(int index, uint8_t* to) const {
    std::memcpy(to, base + 160 + index * 16, 16);
    std::memcpy(to + 16, base + 576 + index * 16, 16);
    if ((base[512] & 4) == 0) std::memset(to + 16, 0, 16);  // upper halves that were not in use
  }
  void write(int index, const uint8_t* from) const {
    if ((base[512] & 4) == 0) std::memset(base + 576, 0, 256);
    base[512] |= 6;
    std::memcpy(base + 160 + index * 16, from, 16);
    std::memcpy(base + 576 + index * 16, from + 16, 16);
  }
  uint8_t* base;
};

int64_t general(const ucontext_t* context, int index) {
  static const int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
  return context->uc_mcontext.gregs[kPlaces[index]];
}

int32_t read_int(const uint8_t* at) {
  int32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

void emulate(int signal_number, siginfo_t*, void* raw) {
  auto* context = static_cast<ucontext_t*>(raw);
  const auto* code = reinterpret_cast<const uint8_t*>(context->uc_mcontext.gregs[REG_RIP]);
  // VEX.256.66.0F38.W0 50 /r: Intel's manual, volume 2, VPDPBUSD.
  const bool is_known = code[0] == 0xc4 && (code[1] & 0x1f) == 2 && (code[2] & 0x87) == 0x05 &&
                        code[3] == 0x50;
  if (!is_known) {
    signal(signal_number, SIG_DFL);
    return;  // raises the signal again
  }
  const int more_reg = code[1] & 0x80 ? 0 : 8, more_index = code[1] & 0x40 ? 0 : 8;
  const int more_base = code[1] & 0x20 ? 0 : 8;
  const int mode = code[4] >> 6, low = code[4] & 7;
  const Vectors vectors(context);
  const uint8_t* next = code + 5;
  uint8_t sums[32], weights[32], inputs[32];
  const int target = (code[4] >> 3 & 7) + more_reg;
  vectors.read(target, sums);
  vectors.read(~(code[2] >> 3) & 15, weights);
  if (mode == 3) {
    vectors.read(low + more_base, inputs);
  } else {
    int64_t address = 0;
    const bool relative = mode == 0 && low == 5;
    if (low == 4) {
      const int sib = *next++, index = (sib >> 3 & 7) + more_index, base = sib & 7;
      if (index != 4) address += general(context, index) << (sib >> 6);
      if (mode != 0 || base != 5) address += general(context, base + more_base);
      if (mode == 0 && base == 5) address += read_int(next), next += 4;
    } else if (!relative) {
      address += general(context, low + more_base);
    }
    if (mode == 1) address += static_cast<int8_t>(*next++);
    if (mode == 2 || relative) address += read_int(next), next += 4;
    if (relative) address += reinterpret_cast<int64_t>(next);
    std::memcpy(inputs, reinterpret_cast<const void*>(address), 32);
  }
  for (int lane = 0; lane < 32; lane += 4) {
    int32_t sum = read_int(sums + lane);
    for (int i = lane; i < lane + 4; i++) sum += weights[i] * static_cast<int8_t>(inputs[i]);
    std::memcpy(sums + lane, &sum, 4);
  }
  vectors.write(target, sums);
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<int64_t>(next);
  __atomic_add_fetch(&g_emulated, 1, __ATOMIC_RELAXED);
}

struct Handler {
  Handler() {
    struct sigaction action = {};
    action.sa_sigaction = emulate;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
  }
  ~Handler() { dprintf(2, "emulated %ld instructions\n", g_emulated); }
} g_handler;

}  // namespace

namespace tokenmill {

std::string supported_sets() { return "avxvnni,avx2,portable"; }

}  // namespace tokenmill
