// Loaded before bochscpu. The CPU that it makes is the model whose function BOCHS_MODEL names, not
// its usual one. Hooks that each instruction would call do nothing: they take half of the time. Also
// here are functions of glibc 2.38, which bochscpu's wheel needs.
#include <dlfcn.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

using Create = void* (*)(void* cpu);

extern "C" {

void* _Z23create_corei3_cnl_cpuidP8BX_CPU_C(void* cpu) {
  void* library = dlopen(std::getenv("BOCHS_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Create>(dlsym(library, std::getenv("BOCHS_MODEL")))(cpu);
}

unsigned long long __isoc23_strtoull(const char* text, char** end, int base) {
  return std::strtoull(text, end, base);
}

int __isoc23_sscanf(const char* text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int count = std::vsscanf(text, format, values);
  va_end(values);
  return count;
}

void bx_instr_before_execution(unsigned, void*) {}
void bx_instr_after_execution(unsigned, void*) {}
void bx_instr_lin_access(unsigned, uint64_t, uint64_t, unsigned, unsigned, unsigned) {}
void bx_instr_cnear_branch_taken(unsigned, uint64_t, uint64_t) {}
void bx_instr_cnear_branch_not_taken(unsigned, uint64_t) {}
void bx_instr_ucnear_branch(unsigned, unsigned, uint64_t, uint64_t) {}

}
