#include "dispatch.hpp"

#include <atomic>

namespace deskside {
namespace {

std::vector<const Kernels*> find_usable() {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (__builtin_cpu_supports("avx512vnni")) found.push_back(avx512vnni_kernels());
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
