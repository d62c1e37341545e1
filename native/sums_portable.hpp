// Exact integer sums of a tile: activations as 16-bit integers times MXFP4 weights.
//
// Each sums_*.hpp defines the same two things. `integer_tile` gives, for R rows and C rows of
// weights, the sums of ops/integer_moe.py; being exact, they are the same in every tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kIntegerRows = 4;

template <int R>
constexpr int kIntegerColumns = 1;

template <int R, int C>
void integer_tile(const WeightRows& w, const IntegerRow* const* x, std::int64_t (&out)[R][C]) {
    static constexpr std::int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
    const int blocks = w.inner / 32;
    for (int c = 0; c < C; ++c) {
        const std::uint8_t* codes = w.codes + static_cast<std::ptrdiff_t>(c) * blocks * 16;
        const std::uint8_t* scales = w.scales + static_cast<std::ptrdiff_t>(c) * blocks;
        for (int r = 0; r < R; ++r) out[r][c] = 0;
        for (int b = 0; b < blocks; ++b) {
            const int shift = scales[b] - w.floor;
            if (shift < 0) continue;
            for (int r = 0; r < R; ++r) {
                const std::int16_t* const words = x[r]->words + (b / 4) * kGroup + (b % 4) * 8;
                std::int32_t sum = 0;
                for (int k = 0; k < 32; ++k) {
                    const int code = codes[b * 16 + k / 2] >> (k % 2 * 4) & 15;
                    sum += words[k % 4 * 32 + k / 4] * kTwice[code];
                }
                const std::int64_t factor = std::int64_t{1} << (shift + x[r]->shifts[b / 4]);
                out[r][c] += sum * factor;
            }
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
