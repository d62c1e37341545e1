// Vectors as two planes of bytes, and weights to multiply them with four at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

// Weights are looked up with this added to twice their value, because one factor of a product of
// bytes is unsigned.
constexpr int kAbove = 12;

// A group as bytes, 256 * high + low: even elements, then odd ones, as low and high nibbles of
// codes stand. `start` takes off again what weights lie above their value, each for eight elements.
struct alignas(64) RowGroup {
    std::int8_t low[2][kGroup / 2];
    std::int8_t high[2][kGroup / 2];
    std::int32_t start[kGroup / 8];
};

// A vector as integers, padded with zeros to whole groups.
struct IntegerRow {
    const RowGroup* groups;
    const std::int32_t* shifts;  // [groups]
};

LANES void pack_group(const std::int32_t (&whole)[kGroup], RowGroup& out) {
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < kGroup / 2; ++j) {
            const std::int32_t value = whole[2 * j + i], high = (value + 128) >> 8;
            out.low[i][j] = static_cast<std::int8_t>(value - high * 256);
            out.high[i][j] = static_cast<std::int8_t>(high);
        }
    for (int j = 0; j < kGroup / 8; ++j) {
        std::int32_t sum = 0;
        for (int k = 0; k < 8; ++k) sum += whole[8 * j + k];
        out.start[j] = -kAbove * sum;
    }
}

constexpr int kDecoded = 2;  // bytes that two nibbles of codes are decoded to

// A group of a band. Weights are fours: what meets bytes [i][4 * d] to [i][4 * d + 3] of a vector,
// for each four bytes d of codes, four of them a block.
struct alignas(64) Band {
    std::int32_t weights[4][kDecoded][4][kBandLanes];  // [block][i][d % 4]
    std::int32_t factor[4][kBandLanes];                // 2^(scale byte - floor), or 0
};

LANES std::int32_t four_bytes(const std::int8_t* at) {
    std::int32_t four;
    __builtin_memcpy(&four, at, sizeof four);
    return four;
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
