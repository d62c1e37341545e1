// One exchange between ranks of one machine, over memory that they share.
//
// For every rank the memory holds two words, how many exchanges it has written and how many it has
// begun, then for every rank two places, used in turn. A place is written again when all have begun
// the exchange after the one that used it. Nothing is added here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside::exchange {

struct Room {
    unsigned char* memory;
    std::size_t line;   // bytes between words
    std::size_t place;  // bytes of a place
    int ranks;
};

struct Part {
    const unsigned char* bytes;
    std::size_t count;
    std::size_t offset;  // in the place
};

struct Turn {
    int rank;
    std::uint32_t number;  // of the exchange, the same on all ranks
    bool writes;
    int first, last;  // ranks whose parts are waited for
    const Part* parts;
    int count;
};

// Writes the rank's parts, if it writes, and waits for others'. Each wait keeps the core for
// `spin_seconds` at first. Returns false when one of them took longer than `seconds`; the same call
// may be made again then, with the same bytes.
bool pass(const Room& room, const Turn& turn, double spin_seconds, double seconds);

}  // namespace deskside::exchange
