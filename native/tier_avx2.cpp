#define DESKSIDE_TIER avx2
#include "lanes_avx2.hpp"
#include "bands_avx2.hpp"
#include "tier.inl"
