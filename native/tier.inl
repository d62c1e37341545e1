// One tier: every kernel, compiled with this unit's instruction set over this unit's lanes.
//
// All code here lives in an unnamed namespace and calls no template of the standard library: the
// linker keeps one copy of a shared function, and that copy could hold this tier's instructions.

#include "kernels.hpp"
#include "pool.hpp"
#include "weights.inl"
#include "product.inl"
#include "linear.inl"
#include "math.inl"
#include "rows.inl"
#include "hyper.inl"
#include "attend.inl"
#include "sorted.inl"
#include "exponents.inl"
#include "bands.inl"
#include "vectors.inl"
#if defined(DESKSIDE_PANELS)
#include "passes.inl"
#include "strips.inl"
#include "panels.inl"
#endif
#include "integer.inl"
#include "read.inl"
#include "route.inl"
#include "codec.inl"
#include "best.inl"

#define DESKSIDE_PASTE(tier, suffix) tier##suffix
#define DESKSIDE_NAME(tier, suffix) DESKSIDE_PASTE(tier, suffix)
#define DESKSIDE_QUOTE(tier) #tier
#define DESKSIDE_STRING(tier) DESKSIDE_QUOTE(tier)

namespace deskside {

const Kernels* DESKSIDE_NAME(DESKSIDE_TIER, _kernels)() {
    static constexpr Kernels table = {
        DESKSIDE_STRING(DESKSIDE_TIER),
        DESKSIDE_TIER::linear,
        DESKSIDE_TIER::expert_sums,
        DESKSIDE_TIER::finish_experts,
        DESKSIDE_TIER::attend,
        DESKSIDE_TIER::index_scores,
        DESKSIDE_TIER::hyper_pre,
        DESKSIDE_TIER::hyper_head,
        DESKSIDE_TIER::hyper_post,
        DESKSIDE_TIER::rms_norm,
        DESKSIDE_TIER::rope,
        DESKSIDE_TIER::gated_unit,
        DESKSIDE_TIER::route,
        DESKSIDE_TIER::pool_rows,
        DESKSIDE_TIER::encode_fp8_rows,
        DESKSIDE_TIER::decode_fp8_rows,
        DESKSIDE_TIER::encode_mxfp4_rows,
        DESKSIDE_TIER::decode_mxfp4_rows,
        DESKSIDE_TIER::hadamard,
        DESKSIDE_TIER::read,
        DESKSIDE_TIER::best,
    };
    return &table;
}

}  // namespace deskside
