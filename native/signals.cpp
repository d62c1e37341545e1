#include "signals.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>

namespace deskside::signals {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kNap = 0.05;  // seconds: a wake that was missed costs no more

void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool reached(std::uint32_t count, std::uint32_t least) {
    return static_cast<std::int32_t>(count - least) >= 0;
}

void sleep_on(std::uint32_t* count, std::uint32_t seen, double seconds) {
    const auto whole = static_cast<std::time_t>(seconds);
    const timespec nap{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    syscall(SYS_futex, count, FUTEX_WAIT, seen, &nap, nullptr, 0);
}

}  // namespace

void post(Word* word, std::uint32_t count) {
    std::atomic_ref<std::uint32_t>(word->count).store(count, std::memory_order_seq_cst);
    if (std::atomic_ref<std::uint32_t>(word->sleepers).load(std::memory_order_seq_cst) != 0)
        syscall(SYS_futex, &word->count, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

bool wait(Word* word, std::uint32_t least, double spin_seconds, double seconds) {
    const std::atomic_ref<std::uint32_t> count(word->count);
    if (reached(count.load(std::memory_order_acquire), least)) return true;
    const auto start = Clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    while (passed() < spin_seconds)
        for (int turn = 0; turn < 64; ++turn) {
            if (reached(count.load(std::memory_order_acquire), least)) return true;
            pause_core();
        }
    const std::atomic_ref<std::uint32_t> sleepers(word->sleepers);
    for (double left; (left = seconds - passed()) > 0;) {
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        const std::uint32_t seen = count.load(std::memory_order_seq_cst);
        if (!reached(seen, least)) sleep_on(&word->count, seen, left < kNap ? left : kNap);
        sleepers.fetch_sub(1, std::memory_order_seq_cst);
        if (reached(count.load(std::memory_order_acquire), least)) return true;
    }
    return false;
}

}  // namespace deskside::signals
