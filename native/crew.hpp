// What a pool and its workers share: a job, a place for each worker, and how they wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "pool.hpp"

namespace deskside::pool {

// About 100 microseconds: longer than the gap between two kernels of one forward.
constexpr int kSpins = 2000;

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The state word: a job's number in the high half, an open bit, and the workers inside it. A worker
// enters by a compare-and-swap that fails once the job is closed, so that a late one can't touch a
// job that is gone, and the caller never waits for a worker that has not begun.
constexpr std::uint64_t kOpen = 1u << 31;
constexpr std::uint64_t kInside = kOpen - 1;
constexpr int kNumber = 32;

enum class Fault { kNone, kThrow, kLeave, kVanish, kHang };
enum class Life { kWell, kDead, kHung };

// A worker's place: all that others see of it, on cache lines of its own.
struct alignas(64) Seat {
    int number = 0;  // from 1; the caller is 0
    Cpus cpus;
    std::thread thread;
    std::atomic<long> task{0};        // its number in the kernel
    std::atomic<bool> inside{false};  // counted in the state word
    std::atomic<int> block{-1};
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::uint64_t> rounds{0};  // in which it waited and kept its core
    std::atomic<std::uint64_t> sleeps{0};
    std::atomic<Life> life{Life::kWell};
    std::atomic<Fault> fault{Fault::kNone};
};

struct Pool {
    std::atomic<std::uint64_t> state{0};
    alignas(64) std::atomic<int> next{0};
    alignas(64) int blocks = 0;
    Body body = nullptr;
    void* context = nullptr;

    std::mutex sleeping;
    std::condition_variable wake;
    std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};

    std::mutex failing;
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    std::atomic<int> lost{0};

    std::vector<std::unique_ptr<Seat>> seats;
    bool caller_works = true;
    int spins = kSpins;
    std::atomic<std::uint64_t> rounds{0};  // in which the caller waited and kept its core
};

// Whether this thread is in a loop.
inline thread_local bool inside = false;

// One more; only one thread counts.
inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
    counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

// Takes blocks while there are any; `seat` is null for the caller.
void work(Pool& p, Seat* seat);

// A worker leaves the job.
void leave(Pool& p, Seat& seat);

// A worker's life.
void serve(Pool& p, Seat& seat);

}  // namespace deskside::pool
