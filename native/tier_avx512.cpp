#define DESKSIDE_TIER avx512
#include "lanes_avx512.hpp"
#include "bands_avx512.hpp"
#include "tier.inl"
