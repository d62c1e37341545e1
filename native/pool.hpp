// The worker pool: one parallel loop at a time over numbered blocks, and scratch memory by thread.
//
// Which thread runs a block is decided by an atomic counter, so a block's result must not depend on
// it. Knows nothing of kernels.
#pragma once

#include <cstddef>

namespace deskside::pool {

using Body = void (*)(void* context, int block);

// Workers including the caller. Joins the old ones first; 1 leaves no thread behind.
void set_threads(int count);
int threads();

// Runs body(context, b) for every b in [0, blocks), on the caller and on idle workers. A second
// caller at the same time, or a body that calls run, works alone on its own thread.
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

}  // namespace deskside::pool
