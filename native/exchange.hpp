// One exchange between ranks of one machine, over memory that they share.
//
// For every rank the memory holds two words, how many exchanges it has written and how many it has
// begun, then for every rank two places, used in turn. A place is written again when all have begun
// the exchange after the one that used it. Parts are added in one order alone, that of
// ops/tiles.py's pairwise_sum: neighbours first, by rank.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside::exchange {

constexpr int kMostRanks = 8;
constexpr int kMostParts = 8;

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

// A part of a sum of float32 or int64 numbers, and where the sum goes.
struct Term {
    Part part;
    unsigned char* sum;
    std::size_t size;  // bytes of a number: 4 for float32, 8 for int64
};

// Adds every term over all ranks; as `pass`.
bool total(const Room& room, int rank, std::uint32_t number, const Term* terms, int count,
           double spin_seconds, double seconds);

}  // namespace deskside::exchange
