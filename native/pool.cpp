#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace deskside::pool {
namespace {

// About 100 microseconds: longer than the gap between two kernels of one forward.
constexpr int kSpins = 2000;

void relax() {
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

struct Pool {
    std::atomic<std::uint64_t> state{0};
    std::atomic<int> next{0};
    int blocks = 0;
    Body body = nullptr;
    void* context = nullptr;

    std::mutex sleeping;
    std::condition_variable wake;
    std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};

    std::mutex caller;
    std::vector<std::thread> workers;
    int spins = kSpins;
};

// Never destroyed: a worker may outlive the static destructors of a process that ends by exit().
Pool& pool() {
    static Pool* instance = new Pool;
    return *instance;
}

thread_local bool inside = false;

void work(Pool& p) {
    const Body body = p.body;
    void* const context = p.context;
    const int blocks = p.blocks;
    for (int b; (b = p.next.fetch_add(1, std::memory_order_relaxed)) < blocks;) body(context, b);
}

bool fresh(std::uint64_t state, std::uint64_t seen) {
    return (state & kOpen) != 0 && (state >> kNumber) != seen;
}

std::uint64_t await(Pool& p, std::uint64_t seen) {
    for (int spin = 0; spin < p.spins; ++spin) {
        const std::uint64_t state = p.state.load(std::memory_order_acquire);
        if (fresh(state, seen) || p.stop.load(std::memory_order_relaxed)) return state;
        relax();
    }
    std::unique_lock lock(p.sleeping);
    p.sleepers.fetch_add(1);
    std::uint64_t state = 0;
    p.wake.wait(lock, [&] { return fresh(state = p.state.load(), seen) || p.stop.load(); });
    p.sleepers.fetch_sub(1);
    return state;
}

void worker(Pool& p) {
    inside = true;
    std::uint64_t seen = p.state.load() >> kNumber;
    while (!p.stop.load()) {
        std::uint64_t state = await(p, seen);
        while (fresh(state, seen)) {
            if (!p.state.compare_exchange_weak(state, state + 1, std::memory_order_acquire))
                continue;
            seen = state >> kNumber;
            work(p);
            p.state.fetch_sub(1, std::memory_order_release);
        }
    }
}

void join(Pool& p) {
    {
        std::lock_guard lock(p.sleeping);
        p.stop.store(true);
    }
    p.wake.notify_all();
    for (std::thread& thread : p.workers) thread.join();
    p.workers.clear();
    p.stop.store(false);
}

struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
    ~Buffer() { std::free(memory); }
};

}  // namespace

void set_threads(int count) {
    Pool& p = pool();
    std::lock_guard lock(p.caller);
    join(p);
    // More workers than cores must not spin: they would hold the core the last block needs.
    p.spins = count <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 0;
    for (int i = 1; i < count; ++i) p.workers.emplace_back([&p] { worker(p); });
}

int threads() {
    Pool& p = pool();
    std::lock_guard lock(p.caller);
    return static_cast<int>(p.workers.size()) + 1;
}

void run(int blocks, Body body, void* context) {
    Pool& p = pool();
    std::unique_lock lock(p.caller, std::defer_lock);
    if (inside || !lock.try_lock() || p.workers.empty()) {
        for (int block = 0; block < blocks; ++block) body(context, block);
        return;
    }
    inside = true;
    p.body = body;
    p.context = context;
    p.blocks = blocks;
    p.next.store(0, std::memory_order_relaxed);
    const std::uint64_t number = (p.state.load(std::memory_order_relaxed) >> kNumber) + 1;
    p.state.store(number << kNumber | kOpen);  // sequentially consistent with `sleepers`
    if (p.sleepers.load() > 0) {
        {
            std::lock_guard wait(p.sleeping);
        }
        p.wake.notify_all();
    }
    work(p);
    p.state.fetch_and(~kOpen, std::memory_order_acq_rel);
    // A worker that lost its core mid-block may need this one.
    for (int spin = 0; (p.state.load(std::memory_order_acquire) & kInside) != 0; ++spin) {
        if (spin < p.spins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
    inside = false;
}

void* scratch(Slot slot, std::size_t bytes) {
    thread_local Buffer buffers[static_cast<int>(Slot::kCount)];
    Buffer& buffer = buffers[static_cast<int>(slot)];
    if (buffer.bytes < bytes) {
        constexpr std::size_t kPage = 4096;
        const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
        void* const memory = std::aligned_alloc(64, size);
        if (memory == nullptr) throw std::bad_alloc();
        std::free(buffer.memory);
        buffer.memory = memory;
        buffer.bytes = size;
    }
    return buffer.memory;
}

}  // namespace deskside::pool
