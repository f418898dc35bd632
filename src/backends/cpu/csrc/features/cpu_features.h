// Finds the instruction sets that this CPU runs. Compiled for the oldest CPU of the architecture.
#pragma once

#include <string>

namespace tokenmill {

// Names of instruction sets that this CPU runs, best first, separated by commas. The last is
// "portable".
std::string supported_sets();

// The cpuid words for features and model, in hexadecimal; empty on CPUs without cpuid. Two CPUs
// with the same words run the same code.
std::string cpu_identity();

}  // namespace tokenmill
