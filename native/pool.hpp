// The worker pool: one parallel loop at a time over numbered blocks, and scratch memory by thread.
//
// Which thread runs a block is decided by an atomic counter, so a block's result must not depend on
// it. Knows nothing of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace deskside::pool {

using Body = void (*)(void* context, int block);
using Cpus = std::vector<int>;

// A worker died or does not move: what it was doing is lost, and every further loop refuses to run
// until the workers are set again. One that hangs may still wake up and write where its last block
// goes, so the process should end.
struct WorkerLost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Who works: the CPUs of each worker (none: wherever the system likes), whether the calling thread
// takes blocks too, and whether a thread that waits may keep its core for a moment.
struct Crew {
    std::vector<Cpus> workers;
    bool caller_works = true;
    bool spin = true;
};

// Sends the old workers home first. Returns the numbers, from 1, of workers that could not be tied
// to their CPUs.
std::vector<int> set_crew(const Crew& crew);

// The same for count - 1 workers anywhere beside the caller; 1 leaves no thread behind.
void set_threads(int count);
int threads();  // that take blocks

// Runs body(context, b) for every b in [0, blocks). A second caller at the same time, or a body
// that calls run, works alone on its own thread. What a body throws is thrown here.
void run(int blocks, Body body, void* context);

// Like run, for a lambda. `worth` is the work in all, in multiply-adds: small loops stay here.
template <class Function>
void loop(int blocks, double worth, const Function& function) {
    constexpr double kAlone = 100e3;
    if (blocks < 2 || worth < kAlone) {
        for (int block = 0; block < blocks; ++block) function(block);
        return;
    }
    run(
        blocks, [](void* context, int block) { (*static_cast<const Function*>(context))(block); },
        const_cast<void*>(static_cast<const void*>(&function)));
}

// 64-byte aligned memory of this thread, kept and only ever grown. Each slot has one user at a
// time.
enum class Slot { kStrip, kTile, kRows, kCall, kCount };
void* scratch(Slot slot, std::size_t bytes);
long scratch_growths();  // how often any thread's scratch had to grow

// How all threads of the present crew have waited so far: rounds in which they kept their core, and
// times that a worker went to sleep.
struct Waits {
    std::uint64_t rounds = 0;
    std::uint64_t sleeps = 0;
};
Waits waits();

// Writes one byte of every page with all threads, so that each page lies on the node of the thread
// that will share in reading it. The memory must be new.
void touch(unsigned char* memory, std::size_t bytes);

// For tests. How long nothing may move, in seconds, and a fault that a worker meets at its next
// block: "throw", "leave" (unwinds), "vanish" (does not), "hang" (until another fault is set). Not
// while a crew is being set.
void set_patience(double seconds);
void set_fault(int worker, const std::string& fault);

}  // namespace deskside::pool
