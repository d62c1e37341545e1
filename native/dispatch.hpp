// Chooses the tier: the widest instruction set that this build holds and this processor has.
#pragma once

#include <string>
#include <vector>

#include "kernels.hpp"

namespace deskside {

const Kernels& kernels();
std::vector<std::string> usable_tiers();
bool use_tier(const std::string& name);  // false where the tier can't run here
void release_tier();                     // back to the widest
bool tier_forced();                      // whether use_tier had the last word

}  // namespace deskside
