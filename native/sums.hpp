// The operands of exact integer sums, the same in every tier.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kGroup = 128;

// A vector as integers, padded with zeros to whole groups. Words of a group stand by their place in
// four consecutive elements, as the nibbles of a 16-bit word of codes do: word[32 * i + j] is
// element 4 * j + i.
struct IntegerRow {
    const std::int16_t* words;   // [groups, 128], 64-byte aligned
    const std::int32_t* shifts;  // [groups]
};

// Consecutive rows of an MXFP4 matrix: inner / 2 bytes and inner / 32 scale bytes each.
struct WeightRows {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    int inner;
    int floor;  // of the scale bytes; a block below counts as zeros
};

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
