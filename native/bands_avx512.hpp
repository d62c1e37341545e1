// Bands of rows of weights with AVX-512, as words.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sums_avx512.hpp"
// The tier's own weights come first.
#include "decode_avx512.hpp"
#include "tiles.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kBandRows = 8;
constexpr int kBandFrom = 4;

// total[r] += a group of the band times the group of row r.
template <int R>
LANES void multiply_band(const Band& w, int group, int blocks, const IntegerRow* const* x,
                         std::int64_t* total) {
    for (int b = 0; b < blocks; ++b) {
        __m512i sum[R][2];
        const std::int16_t* words[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            sum[r][0] = sum[r][1] = _mm512_setzero_si512();
            words[r] = &x[r]->groups[group].words[0][8 * b];
        }
        for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
            for (int d = 0; d < 4; ++d) {
                const __m512i w0 = _mm512_load_si512(&w.weights[b][i][d][0]);
                const __m512i w1 = _mm512_load_si512(&w.weights[b][i][d][16]);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const __m512i a = _mm512_set1_epi32(pair_of_words(words[r] + 2 * d, i));
                    sum[r][0] = dot(sum[r][0], w0, a);
                    sum[r][1] = dot(sum[r][1], w1, a);
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const __m512i shift = _mm512_set1_epi32(x[r]->shifts[group]);
            std::int64_t* const to = total + r * kBandLanes;
            add_lane_sums(sum[r][0], &w.factor[b][0], shift, to);
            add_lane_sums(sum[r][1], &w.factor[b][16], shift, to + 16);
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
