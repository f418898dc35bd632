// Finds the instruction sets that this CPU runs. Compiled for the oldest CPU of the architecture.
#pragma once

#include <string>

namespace tokenmill {

// Names of instruction sets that this CPU runs, best first, separated by commas. The last is
// "portable".
std::string supported_sets();

// Features and model of this CPU; empty if unknown. Two CPUs with the same text run the same code.
std::string cpu_identity();

}  // namespace tokenmill
