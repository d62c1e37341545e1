// Bands of rows of weights with AVX-512 VBMI and VNNI, as bytes.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sums_vbmi.hpp"
// The tier's own weights come first.
#include "decode_avx512.hpp"
#include "tiles.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kBandRows = 5;
constexpr int kBandFrom = 4;

// total[r] += a group of the band times the group of row r.
template <int R>
LANES void multiply_band(const Band& w, int group, int blocks, const IntegerRow* const* x,
                         std::int64_t* total) {
    for (int b = 0; b < blocks; ++b) {
        __m512i low[R][2], high[R][2];
        const RowGroup* row[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            row[r] = &x[r]->groups[group];
            const std::int32_t* const start = row[r]->start + 4 * b;
            low[r][0] = low[r][1] = _mm512_set1_epi32(start[0] + start[1] + start[2] + start[3]);
            high[r][0] = high[r][1] = _mm512_setzero_si512();
        }
        for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 4
            for (int d = 0; d < 4; ++d) {
                const __m512i w0 = _mm512_load_si512(&w.weights[b][i][d][0]);
                const __m512i w1 = _mm512_load_si512(&w.weights[b][i][d][16]);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const int at = 16 * b + 4 * d;
                    const __m512i l = _mm512_set1_epi32(four_bytes(row[r]->low[i] + at));
                    const __m512i h = _mm512_set1_epi32(four_bytes(row[r]->high[i] + at));
                    low[r][0] = _mm512_dpbusd_epi32(low[r][0], w0, l);
                    low[r][1] = _mm512_dpbusd_epi32(low[r][1], w1, l);
                    high[r][0] = _mm512_dpbusd_epi32(high[r][0], w0, h);
                    high[r][1] = _mm512_dpbusd_epi32(high[r][1], w1, h);
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const __m512i shift = _mm512_set1_epi32(x[r]->shifts[group]);
#pragma GCC unroll 2
            for (int c = 0; c < 2; ++c)
                add_lane_sums(_mm512_add_epi32(low[r][c], _mm512_slli_epi32(high[r][c], 8)),
                              &w.factor[b][16 * c], shift, total + r * kBandLanes + 16 * c);
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
