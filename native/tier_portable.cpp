#define DESKSIDE_TIER portable
#include "lanes_portable.hpp"
#include "bands_portable.hpp"
#include "tier.inl"
