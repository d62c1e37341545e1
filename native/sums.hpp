// The operands of exact integer sums, the same in every tier.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kGroup = 128;

// Consecutive rows of an MXFP4 matrix: inner / 2 bytes and inner / 32 scale bytes each.
struct WeightRows {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    int inner;
    int floor;  // of the scale bytes; a block below counts as zeros
    // What is read after these rows, where that is known: to be fetched in time.
    const std::uint8_t* next_codes = nullptr;
    const std::uint8_t* next_scales = nullptr;
};

// Rows of weights that lie side by side in a band, one a lane. A matrix has whole bands of rows,
// because its rows are the columns of another one, and those come in blocks of 32.
constexpr int kBandLanes = 32;

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
