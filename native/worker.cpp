// A worker's side of the pool.

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "crew.hpp"

namespace deskside::pool {
namespace {

void meet(Pool& p, Seat& seat) {
    switch (seat.fault.exchange(Fault::kNone)) {
        case Fault::kNone:
            return;
        case Fault::kThrow:
            throw std::runtime_error("a fault set by a test");
        case Fault::kLeave:
            pthread_exit(nullptr);
        case Fault::kVanish:
            syscall(SYS_exit, 0);
            return;
        case Fault::kHang:
            while (seat.fault.load() == Fault::kNone && !p.stop.load())
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

void keep_failure(Pool& p) {
    std::lock_guard lock(p.failing);
    if (!p.failed.exchange(true)) p.failure = std::current_exception();
    p.next.store(p.blocks, std::memory_order_relaxed);
}

bool fresh(std::uint64_t state, std::uint64_t seen) {
    return (state & kOpen) != 0 && (state >> kNumber) != seen;
}

std::uint64_t await(Pool& p, Seat& seat, std::uint64_t seen) {
    for (int spin = 0; spin < p.spins; ++spin) {
        const std::uint64_t state = p.state.load(std::memory_order_acquire);
        if (fresh(state, seen) || p.stop.load(std::memory_order_relaxed)) return state;
        relax();
        count(seat.rounds);
    }
    count(seat.sleeps);
    std::unique_lock lock(p.sleeping);
    p.sleepers.fetch_add(1);
    std::uint64_t state = 0;
    p.wake.wait(lock, [&] { return fresh(state = p.state.load(), seen) || p.stop.load(); });
    p.sleepers.fetch_sub(1);
    return state;
}

// Tells the caller, on the way out of a thread that nobody sent home.
struct Obituary {
    Pool& p;
    Seat& seat;
    ~Obituary() {
        if (p.stop.load()) return;
        if (seat.life.exchange(Life::kDead) == Life::kWell) p.lost.fetch_add(1);
        leave(p, seat);
    }
};

}  // namespace

void work(Pool& p, Seat* seat) {
    const Body body = p.body;
    void* const context = p.context;
    const int blocks = p.blocks;
    try {
        for (int b; (b = p.next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
            if (seat == nullptr) {
                body(context, b);
                continue;
            }
            seat->block.store(b, std::memory_order_relaxed);
            if (seat->fault.load(std::memory_order_relaxed) != Fault::kNone) meet(p, *seat);
            if (seat->life.load(std::memory_order_relaxed) != Life::kWell) return;
            body(context, b);
            seat->block.store(-1, std::memory_order_relaxed);
            count(seat->finished);
        }
    } catch (const std::exception&) {  // not (...): a thread that is made to leave unwinds too
        keep_failure(p);
    }
}

void leave(Pool& p, Seat& seat) {
    if (seat.inside.exchange(false)) p.state.fetch_sub(1, std::memory_order_acq_rel);
}

void serve(Pool& p, Seat& seat) {
    Obituary obituary{p, seat};
    seat.task.store(syscall(SYS_gettid));
    inside = true;
    std::uint64_t seen = 0;  // a job may be open before this thread has begun
    while (!p.stop.load()) {
        std::uint64_t state = await(p, seat, seen);
        while (fresh(state, seen)) {
            if (!p.state.compare_exchange_weak(state, state + 1, std::memory_order_acquire))
                continue;
            seat.inside.store(true, std::memory_order_relaxed);
            seen = state >> kNumber;
            work(p, &seat);
            leave(p, seat);
        }
    }
}

}  // namespace deskside::pool
