// Which instruction sets this CPU runs. Compiled for the oldest CPU of the architecture.
#pragma once

#include <string>

namespace tokenmill {

// Names of libraries that this CPU runs, best first, separated by commas; the last is "portable".
std::string supported_sets();

// What cpuid says of features and model, as hexadecimal words; empty where there is no cpuid. Two
// CPUs with the same words run the same code.
std::string cpu_identity();

}  // namespace tokenmill
