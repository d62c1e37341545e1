// Vectors as 16-bit words, and weights to multiply them with two at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

// A group by the place of an element in four consecutive ones, as the nibbles of a 16-bit word of
// codes stand: word [i][j] is element 4 * j + i.
struct alignas(64) RowGroup {
    std::int16_t words[4][kGroup / 4];
};

// A vector as integers, padded with zeros to whole groups.
struct IntegerRow {
    const RowGroup* groups;
    const std::int32_t* shifts;  // [groups]
};

LANES void pack_group(const std::int32_t (&whole)[kGroup], RowGroup& out) {
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < kGroup / 4; ++j)
            out.words[i][j] = static_cast<std::int16_t>(whole[4 * j + i]);
}

constexpr int kDecoded = 4;  // words that four nibbles of codes are decoded to

// A group of a band. Weights are pairs: what meets words [i][2 * d] and [i][2 * d + 1] of a vector,
// for each four bytes d of codes, four of them a block.
struct alignas(64) Band {
    std::int32_t weights[4][kDecoded][4][kBandLanes];  // [block][i][d % 4]
    std::int32_t factor[4][kBandLanes];                // 2^(scale byte - floor), or 0
};

// Words [i][2 * d] and [i][2 * d + 1] of a group, from `at` = &words[0][2 * d] on.
LANES std::int32_t pair_of_words(const std::int16_t* at, int i) {
    std::int32_t pair;
    __builtin_memcpy(&pair, at + i * (kGroup / 4), sizeof pair);
    return pair;
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
