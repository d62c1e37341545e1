// Numbers in memory that processes share: one writes, others wait until it has come far enough.
//
// A word is two 32-bit numbers on a boundary of 8 bytes: the count, and how many sleep for it. What
// was written before a count is seen by who has seen the count.
#pragma once

#include <cstdint>

namespace deskside::signals {

struct Word {
    std::uint32_t count;
    std::uint32_t sleepers;
};

void post(Word* word, std::uint32_t count);

// Waits until the count has reached `least` (counts may wrap), first without giving up the core,
// then asleep. Returns whether it came in time.
bool wait(Word* word, std::uint32_t least, double spin_seconds, double seconds);

}  // namespace deskside::signals
