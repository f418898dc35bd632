#include "features/cpu_features.h"

#if defined(__x86_64__)
#include "features/x86.h"
#elif defined(__aarch64__)
#include "features/arm.h"
#endif

namespace tokenmill {

#if defined(__x86_64__) || defined(__aarch64__)
std::string supported_sets() { return Features().sets() + "portable"; }
std::string cpu_identity() { return Features().identity(); }
#else
std::string supported_sets() { return "portable"; }
std::string cpu_identity() { return ""; }
#endif

}  // namespace tokenmill
