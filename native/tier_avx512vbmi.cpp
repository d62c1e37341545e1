#define DESKSIDE_TIER avx512vbmi
#include "lanes_avx512.hpp"
#include "bands_vbmi.hpp"
#include "tier.inl"
