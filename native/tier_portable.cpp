#define DESKSIDE_TIER portable
#include "lanes_portable.hpp"
#include "sums_portable.hpp"
#include "tier.inl"
