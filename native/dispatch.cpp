#include "dispatch.hpp"

#include <atomic>

#if defined(DESKSIDE_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace deskside {
namespace {

#if defined(DESKSIDE_X86)
// Whether tiles may be used: the processor has them, the system saves them (XCR0), and it lets this
// process, which must ask once, because their state is large.
bool tiles_granted() {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kSaved = 1u << 27;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSaved) == 0) return false;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
    unsigned low = 0, high = 0;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kTileState = 3u << 17;
    if ((low & kTileState) != kTileState) return false;
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

std::vector<const Kernels*> find_usable() {
    std::vector<const Kernels*> found;
#if defined(DESKSIDE_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (__builtin_cpu_supports("avx512vnni")) {
            if (__builtin_cpu_supports("avx512vbmi")) {
                if (tiles_granted()) found.push_back(amx_kernels());
                found.push_back(avx512vbmi_kernels());
            }
            found.push_back(avx512vnni_kernels());
        }
        found.push_back(avx512_kernels());
    }
    if (avx2) found.push_back(avx2_kernels());
#endif
    found.push_back(portable_kernels());
    return found;
}

const std::vector<const Kernels*>& usable() {
    static const std::vector<const Kernels*> found = find_usable();
    return found;
}

std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> kernels{usable().front()};
    return kernels;
}

std::atomic<bool>& forced() {
    static std::atomic<bool> named{false};
    return named;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed); }

std::vector<std::string> usable_tiers() {
    std::vector<std::string> names;
    for (const Kernels* tier : usable()) names.emplace_back(tier->name);
    return names;
}

bool use_tier(const std::string& name) {
    for (const Kernels* tier : usable()) {
        if (name == tier->name) {
            chosen().store(tier);
            forced().store(true);
            return true;
        }
    }
    return false;
}

void release_tier() {
    chosen().store(usable().front());
    forced().store(false);
}

bool tier_forced() { return forced().load(); }

}  // namespace deskside
