#include "pool.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "crew.hpp"

namespace deskside::pool {
namespace {

using Clock = std::chrono::steady_clock;

// A single block takes milliseconds; a minute without any is no slow machine.
constexpr double kPatience = 60;
constexpr auto kBetweenLooks = std::chrono::milliseconds(5);
// What is between two looks counts as no more: the whole process was stopped for a while.
constexpr auto kLongestLook = std::chrono::milliseconds(100);

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
std::atomic<int> sharing{1};

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
        if (round < p.spins) {
            relax();
            count(p.rounds);
        } else {
            std::this_thread::yield();
        }
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

}  // namespace

std::vector<int> set_crew(const Crew& crew) {
    std::lock_guard lock(caller());
    send_home(current().load());
    Pool& p = *new Pool;
    p.caller_works = crew.caller_works || crew.workers.empty();
    p.spins = crew.spin ? kSpins : 0;
    sharing.store(static_cast<int>(crew.workers.size()) + (p.caller_works ? 1 : 0));
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

int threads() { return sharing.load(std::memory_order_relaxed); }

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

Waits waits() {
    std::lock_guard lock(caller());
    const Pool& p = *current().load();
    Waits all = {p.rounds.load(), 0};
    for (const auto& seat : p.seats) {
        all.rounds += seat->rounds.load();
        all.sleeps += seat->sleeps.load();
    }
    return all;
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
