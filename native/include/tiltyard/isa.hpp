// Which kernel tables this build holds and this CPU can run.
#pragma once
#include <string>
#include <vector>

#include "tiltyard/kernels.hpp"

namespace tiltyard {

// Best first; always ends with "scalar".
std::vector<std::string> available_isas();
// Throws std::invalid_argument naming what is available. An empty name means the best.
const KernelTable& kernels_for(const std::string& isa);

}  // namespace tiltyard
