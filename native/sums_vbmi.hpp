// Exact integer sums with AVX-512 VBMI and VNNI: a 16-bit integer is two signed bytes.
//
// One 64-byte load is a group: 128 weights in four blocks. Two permutes look up its low and high
// nibbles, and a dot product takes four bytes a lane: two of them for the low bytes of a vector and
// two for the high ones leave 8 products a lane, 4 lanes a block.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "bytes.hpp"
#include "groups_avx512.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

struct Decoded {
    __m512i v[kDecoded];
};

// The permute ignores the high bits of an index, and the table is there four times.
LANES Decoded decode_codes(__m512i codes) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return {{_mm512_permutexvar_epi8(codes, table),
             _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table)}};
}

// Adds one group of C rows of weights.
template <int R, int C>
LANES void add_group(const __m512i (&codes)[C], const __m512i (&factor)[C], int group,
                     const IntegerRow* const* x, __m512i (&total)[R][C]) {
    const __m512i lanes = factor_lanes(group);
    Decoded w[C];
    __m512i scale[C];
    for (int c = 0; c < C; ++c) w[c] = decode_codes(codes[c]);
    for (int c = 0; c < C; ++c) scale[c] = _mm512_permutexvar_epi32(lanes, factor[c]);
    for (int r = 0; r < R; ++r) {
        const RowGroup& row = x[r]->groups[group];
        const __m512i shift = _mm512_set1_epi32(x[r]->shifts[group]);
        const __m512i start = _mm512_load_si512(row.start);
        __m512i low[C], high[C];
        for (int c = 0; c < C; ++c) low[c] = start;
        for (int c = 0; c < C; ++c) high[c] = _mm512_setzero_si512();
        for (int i = 0; i < 2; ++i) {
            const __m512i l = _mm512_load_si512(row.low[i]), h = _mm512_load_si512(row.high[i]);
            for (int c = 0; c < C; ++c) low[c] = _mm512_dpbusd_epi32(low[c], w[c].v[i], l);
            for (int c = 0; c < C; ++c) high[c] = _mm512_dpbusd_epi32(high[c], w[c].v[i], h);
        }
        for (int c = 0; c < C; ++c) {
            const __m512i sum = _mm512_add_epi32(low[c], _mm512_slli_epi32(high[c], 8));
            total[r][c] = add_shifted(total[r][c], sum, scale[c], shift);
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER

#include "tile_avx512.hpp"
