// Exact integer sums with AVX-512 BW, and VNNI where the tier has it; see sums_portable.hpp.
//
// One 64-byte load is a group: 128 weights in four blocks. A 16-bit word of it holds four
// weights; four permutes look them up, without masks, because a permute ignores the high bits and
// the table is there twice. Four dot products leave 8 products a lane, 4 lanes a block; pairs of
// lanes are added, shifted by one widening multiply, and added to 64-bit sums.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "groups_avx512.hpp"
#include "words.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

LANES __m512i dot(__m512i sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}

struct Decoded {
    __m512i v[kDecoded];
};

LANES Decoded decode_codes(__m512i codes) {
    const __m512i half = _mm512_cvtepi8_epi16(_mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)));
    return {{_mm512_permutexvar_epi16(codes, half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), half)}};
}

// Adds one group of C rows of weights. Words of a row are loaded once for all C: with many rows
// they come from the second cache.
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
        __m512i sum[C];
        for (int c = 0; c < C; ++c) sum[c] = _mm512_setzero_si512();
        for (int i = 0; i < 4; ++i) {
            const __m512i a = _mm512_load_si512(row.words[i]);
            for (int c = 0; c < C; ++c) sum[c] = dot(sum[c], w[c].v[i], a);
        }
        for (int c = 0; c < C; ++c) total[r][c] = add_shifted(total[r][c], sum[c], scale[c], shift);
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER

#include "tile_avx512.hpp"
