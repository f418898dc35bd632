// Tests a library with kernels on this CPU. `self_test LIBRARY` prints a line per failed check; the
// exit status is 0 if none fails. `self_test --sets` prints the instruction sets of this CPU.
#include <dlfcn.h>

#include <cstdio>

#include "features/cpu_features.h"
#include "self_test/checks.h"

namespace tokenmill {

void Report::begin(const std::string& check) {
  check_ = check;
  has_failed_ = false;
}

void Report::fail(const std::string& message) {
  failures_++;
  if (!has_failed_) std::printf("%s: %s\n", check_.c_str(), message.c_str());
  has_failed_ = true;
}

namespace {

template <class Function>
bool find(void* handle, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (*function == nullptr) std::printf("the library has no function %s\n", name);
  return *function != nullptr;
}

bool load(const char* path, Library* to) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::printf("the library cannot be loaded: %s\n", dlerror());
    return false;
  }
  return find(handle, "tm_instruction_set", &to->instruction_set) &&
         find(handle, "tm_structures", &to->structures) &&
         find(handle, "tm_set_threads", &to->set_threads) &&
         find(handle, "tm_num_threads", &to->num_threads) &&
         find(handle, "tm_packed_bytes", &to->packed_bytes) &&
         find(handle, "tm_pack", &to->pack) && find(handle, "tm_unpack", &to->unpack) &&
         find(handle, "tm_look_up", &to->look_up) &&
         find(handle, "tm_linear", &to->linear) &&
         find(handle, "tm_attention_plan_new", &to->attention_plan_new) &&
         find(handle, "tm_attention_plan_free", &to->attention_plan_free) &&
         find(handle, "tm_attention_plan", &to->attention_plan) &&
         find(handle, "tm_write_and_attend", &to->write_and_attend) &&
         find(handle, "tm_run_decoder", &to->run_decoder) &&
         find(handle, "tm_shared_bytes", &to->shared_bytes) &&
         find(handle, "tm_sum_over_ranks", &to->sum_over_ranks) &&
         find(handle, "tm_read_logits", &to->read_logits) &&
         find(handle, "tm_mask_logits", &to->mask_logits) && find(handle, "tm_draw", &to->draw) &&
         find(handle, "tm_try_drafts", &to->try_drafts);
}

void check_dispatch(const Library& library, Report& report) {
  report.begin("choice of instruction set");
  const std::string name = library.instruction_set();
  const std::string all = "," + supported_sets() + ",";
  report.expect(all.find("," + name + ",") != std::string::npos,
                "this CPU does not run ", name, ", only ", supported_sets());
}

int test(const char* path) {
  Library library = {};
  Report report;
  if (!load(path, &library)) return 1;
  check_dispatch(library, report);
  if (report.failures() > 0) return 1;
  check_ranks(library, report);  // before this process has threads: an emulator cannot fork them
  check_threads(library, report);
  check_linear(library, report);
  check_attention(library, report);
  check_decoder(library, report);
  check_decoder_layers(library, report);
  check_experts(library, report);
  check_sampling(library, report);
  return report.failures() > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tokenmill

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 1024);  // printed lines are not lost if a check crashes
  if (count != 2) {
    std::printf("usage: %s LIBRARY | --sets\n", arguments[0]);
    return 2;
  }
  if (std::strcmp(arguments[1], "--sets") != 0) return tokenmill::test(arguments[1]);
  std::printf("%s\n", tokenmill::supported_sets().c_str());
  return 0;
}
