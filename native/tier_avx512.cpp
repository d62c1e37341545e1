#define DESKSIDE_TIER avx512
#include "lanes_avx512.hpp"
#include "sums_avx512.hpp"
#include "tier.inl"
