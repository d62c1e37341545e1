#define DESKSIDE_TIER amx
#define DESKSIDE_PANELS
#include "lanes_avx512.hpp"
#include "sums_avx512.hpp"
#include "tier.inl"
