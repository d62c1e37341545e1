#define DESKSIDE_TIER amx
#define DESKSIDE_PANELS
#include "lanes_avx512.hpp"
#include "bands_vbmi.hpp"
#include "tier.inl"
