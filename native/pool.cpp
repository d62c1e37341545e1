#include "pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace deskside::pool {
namespace {

using Clock = std::chrono::steady_clock;

// About 100 microseconds: longer than the gap between two kernels of one forward.
constexpr int kSpins = 2000;
// A single block takes milliseconds; a minute without any is no slow machine.
constexpr double kPatience = 60;
constexpr auto kBetweenLooks = std::chrono::milliseconds(5);
// What is between two looks counts as no more: the whole process was stopped for a while.
constexpr auto kLongestLook = std::chrono::milliseconds(100);

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
};

// Never destroyed: a worker may outlive the static destructors of a process that ends by exit().
std::atomic<Pool*>& current() {
    static std::atomic<Pool*> instance{new Pool};
    return instance;
}

std::mutex& caller() {
    static std::mutex* instance = new std::mutex;
    return *instance;
}

std::atomic<double> patience{kPatience};
std::atomic<long> growths{0};
thread_local bool inside = false;

// --- a worker's side

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
            seat->finished.store(seat->finished.load(std::memory_order_relaxed) + 1,
                                 std::memory_order_relaxed);
        }
    } catch (const std::exception&) {  // not (...): a thread that is made to leave unwinds too
        keep_failure(p);
    }
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

void leave(Pool& p, Seat& seat) {
    if (seat.inside.exchange(false)) p.state.fetch_sub(1, std::memory_order_acq_rel);
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

void serve(Pool& p, Seat& seat) {
    Obituary obituary{p, seat};
    seat.task.store(syscall(SYS_gettid));
    inside = true;
    std::uint64_t seen = 0;  // a job may be open before this thread has begun
    while (!p.stop.load()) {
        std::uint64_t state = await(p, seen);
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

// --- the caller's side

std::string cpus_of(const Seat& seat) {
    if (seat.cpus.empty()) return "any CPU";
    std::string listed = seat.cpus.size() == 1 ? "CPU" : "CPUs";
    for (std::size_t i = 0; i < seat.cpus.size(); ++i)
        listed += (i == 0 ? " " : ", ") + std::to_string(seat.cpus[i]);
    return listed;
}

[[noreturn]] void report_lost(const Pool& p) {
    std::string said;
    for (const auto& seat : p.seats) {
        const Life life = seat->life.load();
        if (life == Life::kWell) continue;
        said += (said.empty() ? "worker " : "; worker ") + std::to_string(seat->number) + " (" +
                cpus_of(*seat) + ")";
        said += life == Life::kDead ? " died" : " does not move";
        const int block = seat->block.load();
        if (block >= 0) said += " in block " + std::to_string(block);
    }
    throw WorkerLost(said +
                     ": the step is lost, restart deskside; if it happens again, free that CPU of "
                     "other programs, or use --threads or --bind off");
}

bool gone(const Seat& seat) {
    const long task = seat.task.load();
    return task != 0 && syscall(SYS_tgkill, getpid(), task, 0) != 0;
}

// Looks after the workers while the caller waits: who is gone, and whether anything moves.
struct Watch {
    Pool& p;
    Clock::time_point looked = Clock::now();
    Clock::duration still{};
    std::uint64_t progress = ~0ull;

    void look() {
        const Clock::duration since = Clock::now() - looked;
        if (since < kBetweenLooks) return;
        looked += since;
        std::uint64_t sum = static_cast<std::uint64_t>(p.next.load(std::memory_order_relaxed));
        for (const auto& seat : p.seats) {
            sum += seat->finished.load(std::memory_order_relaxed);
            if (seat->life.load() == Life::kWell && gone(*seat)) {
                seat->life.store(Life::kDead);
                p.lost.fetch_add(1);
                leave(p, *seat);
            }
        }
        if (sum != progress) {
            progress = sum;
            still = {};
        } else {
            still += std::min<Clock::duration>(since, kLongestLook);
            if (std::chrono::duration<double>(still).count() > patience.load()) give_up();
        }
    }

    // With nobody inside, those that never came are to blame.
    [[noreturn]] void give_up() {
        const bool any = (p.state.load() & kInside) != 0;
        for (const auto& seat : p.seats)
            if (seat->life.load() == Life::kWell && (seat->inside.load() || !any)) {
                seat->life.store(Life::kHung);
                p.lost.fetch_add(1);
            }
        p.next.store(p.blocks);
        p.state.fetch_and(~kOpen);
        inside = false;
        report_lost(p);
    }
};

template <class Done>
void wait_until(Pool& p, const Done& done) {
    // Most waits are short: the clock is read only after many rounds.
    for (int round = 0; round < 2 * kSpins; ++round) {
        if (done()) return;
        round < p.spins ? relax() : std::this_thread::yield();
    }
    for (Watch watch{p}; !done(); watch.look()) std::this_thread::yield();
}

bool all_lost(const Pool& p) { return p.lost.load() == static_cast<int>(p.seats.size()); }

void open_job(Pool& p, int blocks, Body body, void* context) {
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
}

void finish_job(Pool& p) {
    if (!p.caller_works) wait_until(p, [&] { return p.next.load() >= p.blocks || all_lost(p); });
    p.state.fetch_and(~kOpen, std::memory_order_acq_rel);
    // A worker that lost its core mid-block may need this one.
    wait_until(p, [&] { return (p.state.load(std::memory_order_acquire) & kInside) == 0; });
}

// A worker that hangs keeps its pool: it may wake up in it.
void send_home(Pool* p) {
    {
        std::lock_guard lock(p->sleeping);
        p->stop.store(true);
    }
    p->wake.notify_all();
    bool kept = false;
    for (const auto& seat : p->seats) {
        if (seat->life.load() == Life::kHung) {
            seat->thread.detach();
            kept = true;
        } else {
            seat->thread.join();
        }
    }
    if (!kept) delete p;
}

int allowed_cpus() {
    cpu_set_t set;  // too small for a machine of more than 1024 CPUs, which then counts as large
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : CPU_SETSIZE;
}

bool tie(Seat& seat) {
    if (seat.cpus.empty()) return true;
    cpu_set_t* const set = CPU_ALLOC(CPU_SETSIZE * 8);
    const std::size_t size = CPU_ALLOC_SIZE(CPU_SETSIZE * 8);
    CPU_ZERO_S(size, set);
    for (const int cpu : seat.cpus) CPU_SET_S(cpu, size, set);
    const int refused = pthread_setaffinity_np(seat.thread.native_handle(), size, set);
    CPU_FREE(set);
    return refused == 0;
}

struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
    ~Buffer() { std::free(memory); }
};

}  // namespace

std::vector<int> set_crew(const Crew& crew) {
    std::lock_guard lock(caller());
    send_home(current().load());
    Pool& p = *new Pool;
    p.caller_works = crew.caller_works || crew.workers.empty();
    p.spins = crew.spin ? kSpins : 0;
    current().store(&p);
    for (const Cpus& cpus : crew.workers) {
        p.seats.push_back(std::make_unique<Seat>());
        p.seats.back()->number = static_cast<int>(p.seats.size());
        p.seats.back()->cpus = cpus;
    }
    std::vector<int> untied;
    for (const auto& seat : p.seats) {
        seat->thread = std::thread(serve, std::ref(p), std::ref(*seat));
        pthread_setname_np(seat->thread.native_handle(),
                           ("deskside-" + std::to_string(seat->number)).c_str());
        if (!tie(*seat)) untied.push_back(seat->number);
    }
    return untied;
}

void set_threads(int count) {
    Crew crew;
    crew.workers.resize(count > 1 ? count - 1 : 0);
    // More workers than cores must not spin: they would hold the core the last block needs.
    crew.spin = count <= allowed_cpus();
    set_crew(crew);
}

int threads() {
    std::lock_guard lock(caller());
    const Pool& p = *current().load();
    return static_cast<int>(p.seats.size()) + (p.caller_works ? 1 : 0);
}

void run(int blocks, Body body, void* context) {
    std::unique_lock lock(caller(), std::defer_lock);
    if (inside || !lock.try_lock() || current().load()->seats.empty()) {
        for (int block = 0; block < blocks; ++block) body(context, block);
        return;
    }
    Pool& p = *current().load();
    if (p.lost.load() > 0) report_lost(p);
    inside = true;
    open_job(p, blocks, body, context);
    if (p.caller_works) work(p, nullptr);
    finish_job(p);
    inside = false;
    if (p.lost.load() > 0) report_lost(p);
    if (p.failed.load()) {
        p.failed.store(false);
        std::rethrow_exception(std::exchange(p.failure, nullptr));
    }
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
        growths.fetch_add(1);
    }
    return buffer.memory;
}

long scratch_growths() { return growths.load(); }

void touch(unsigned char* memory, std::size_t bytes) {
    constexpr std::size_t kPart = 2u << 20;  // a huge page
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto parts = [&](int part) {
        const std::size_t first = part * kPart;
        const std::size_t last = first + kPart < bytes ? first + kPart : bytes;
        for (std::size_t at = first; at < last; at += page)
            *static_cast<volatile unsigned char*>(memory + at) = 0;
    };
    const std::size_t count = (bytes + kPart - 1) / kPart;
    loop(static_cast<int>(count), static_cast<double>(bytes), parts);
}

void set_patience(double seconds) { patience.store(seconds); }

void set_fault(int worker, const std::string& fault) {
    Fault kind = Fault::kNone;
    if (fault == "throw") kind = Fault::kThrow;
    if (fault == "leave") kind = Fault::kLeave;
    if (fault == "vanish") kind = Fault::kVanish;
    if (fault == "hang") kind = Fault::kHang;
    current().load()->seats.at(worker - 1)->fault.store(kind);
}

}  // namespace deskside::pool
