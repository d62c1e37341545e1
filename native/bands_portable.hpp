// Exact integer sums of bands of rows of weights: activations as 16-bit integers times MXFP4
// weights.
//
// Each bands_*.hpp defines the same: from how many rows of activations on bands are used, how a
// band is decoded, and how it is multiplied. The sums are those of ops/integer_moe.py; being exact,
// they are the same in every tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "words.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr std::int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr int kBandRows = 4;
constexpr int kBandFrom = 1;

constexpr int band_place(int lane) { return lane; }

// Decodes the blocks of a group that are there.
void decode_band(const WeightRows& w, int group, int blocks, Band& out) {
    const std::ptrdiff_t stride = w.inner / 2, scale_stride = w.inner / 32;
    for (int b = 0; b < blocks; ++b)
        for (int r = 0; r < kBandLanes; ++r) {
            const std::uint8_t* const codes = w.codes + r * stride + group * 64 + b * 16;
            for (int d = 0; d < 4; ++d)
                for (int i = 0; i < 4; ++i) {
                    const int half = 4 * d + i / 2, nibble = i % 2 * 4;
                    const std::int32_t low = kTwice[codes[half] >> nibble & 15];
                    const std::int32_t high = kTwice[codes[half + 2] >> nibble & 15];
                    out.weights[b][i][d][r] = high * 65536 + (low & 65535);
                }
            const int shift = w.scales[r * scale_stride + group * 4 + b] - w.floor;
            out.factor[b][r] = shift < 0 ? 0 : 1 << shift;
        }
}

constexpr int kBandCells = 16;  // lanes at a time
typedef std::int32_t Cells __attribute__((vector_size(kBandCells * sizeof(std::int32_t))));
typedef float FloatCells __attribute__((vector_size(kBandCells * sizeof(float))));

// total[r] += a group of the band times the group of row r. A block's sum is a whole number below
// 2^24, and so is every part of it: float adds it exactly, and every processor multiplies floats.
template <int R>
LANES void multiply_band(const Band& w, int group, int blocks, const IntegerRow* const* x,
                         std::int64_t* total) {
    for (int b = 0; b < blocks; ++b)
        for (int part = 0; part < kBandLanes; part += kBandCells) {
            FloatCells sum[R] = {};
            for (int k = 0; k < 16; ++k) {
                const int i = k / 4, d = k % 4, at = 8 * b + 2 * d;
                const Cells pairs = *reinterpret_cast<const Cells*>(&w.weights[b][i][d][part]);
                const FloatCells low = __builtin_convertvector(pairs << 16 >> 16, FloatCells);
                const FloatCells high = __builtin_convertvector(pairs >> 16, FloatCells);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const std::int16_t* const words = x[r]->groups[group].words[i];
                    const float first = words[at], second = words[at + 1];
                    sum[r] += low * first;
                    sum[r] += high * second;
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < kBandCells; ++c) {
                    const std::int64_t factor = std::int64_t{w.factor[b][part + c]}
                                                << x[r]->shifts[group];
                    total[r * kBandLanes + part + c] +=
                        static_cast<std::int64_t>(sum[r][c]) * factor;
                }
        }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
