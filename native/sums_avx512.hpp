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

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kIntegerRows = 8;

template <int R>
constexpr int kIntegerColumns = R <= 4 ? 4 : 2;

LANES __m512i dot(__m512i sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}

struct Decoded {
    __m512i v[4];
};

LANES Decoded decode_words(__m512i codes) {
    const __m512i half = _mm512_cvtepi8_epi16(_mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)));
    return {{_mm512_permutexvar_epi16(codes, half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), half),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), half)}};
}

// 2^(byte - floor) of 16 blocks; 0 below the floor, because such a count is huge when unsigned.
LANES __m512i factors(__m128i bytes, int floor) {
    const __m512i shift = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(floor));
    return _mm512_sllv_epi32(_mm512_set1_epi32(1), shift);
}

// Adds one group of C rows of weights. Words of a row are loaded once for all C: with many rows
// they come from the second cache.
template <int R, int C>
LANES void add_group(const __m512i (&codes)[C], const __m512i (&factor)[C], int group,
                     const IntegerRow* const* x, __m512i (&total)[R][C]) {
    const __m512i blocks = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i lanes = _mm512_add_epi32(blocks, _mm512_set1_epi32(4 * (group % 4)));
    Decoded w[C];
    __m512i scale[C];
    for (int c = 0; c < C; ++c) w[c] = decode_words(codes[c]);
    for (int c = 0; c < C; ++c) scale[c] = _mm512_permutexvar_epi32(lanes, factor[c]);
    for (int r = 0; r < R; ++r) {
        const std::int16_t* const words = x[r]->words + group * kGroup;
        const __m512i shift = _mm512_set1_epi32(x[r]->shifts[group]);
        __m512i sum[C];
        for (int c = 0; c < C; ++c) sum[c] = _mm512_setzero_si512();
        for (int i = 0; i < 4; ++i) {
            const __m512i a = _mm512_load_si512(words + 32 * i);
            for (int c = 0; c < C; ++c) sum[c] = dot(sum[c], w[c].v[i], a);
        }
        for (int c = 0; c < C; ++c) {
            sum[c] = _mm512_add_epi32(sum[c], _mm512_srli_epi64(sum[c], 32));
            const __m512i power = _mm512_sllv_epi32(scale[c], shift);
            total[r][c] = _mm512_add_epi64(total[r][c], _mm512_mul_epi32(sum[c], power));
        }
    }
}

// The sums of the lanes of a and of b.
LANES void add_lanes(__m512i a, __m512i b, std::int64_t* out) {
    const __m512i pairs =
        _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m256i half =
        _mm256_add_epi64(_mm512_castsi512_si256(pairs), _mm512_extracti64x4_epi64(pairs, 1));
    const __m128i both =
        _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), both);
}

template <int R, int C>
void integer_tile(const WeightRows& w, const IntegerRow* const* x, std::int64_t (&out)[R][C]) {
    constexpr int kAhead = 8192;  // bytes
    const std::ptrdiff_t stride = w.inner / 2, scale_stride = w.inner / 32;
    const int groups = w.inner / kGroup;
    __m512i total[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) total[r][c] = _mm512_setzero_si512();
    __m512i codes[C], factor[C];
    int g = 0;
    for (; g + 4 <= groups; g += 4) {
        for (int c = 0; c < C; ++c) {
            const std::uint8_t* const scales = w.scales + c * scale_stride + 4 * g;
            factor[c] = factors(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)), w.floor);
        }
        for (int i = 0; i < 4; ++i) {
            for (int c = 0; c < C; ++c) {
                const std::uint8_t* const p = w.codes + c * stride + (g + i) * 64;
                _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
                codes[c] = _mm512_loadu_si512(p);
            }
            add_group<R, C>(codes, factor, g + i, x, total);
        }
    }
    if (4 * g < scale_stride) {
        const int left = static_cast<int>(scale_stride) - 4 * g;  // blocks, fewer than 16
        const __mmask16 some = static_cast<__mmask16>((1u << left) - 1);
        for (int c = 0; c < C; ++c)
            factor[c] =
                factors(_mm_maskz_loadu_epi8(some, w.scales + c * scale_stride + 4 * g), w.floor);
        for (int bytes = 16 * left; bytes > 0; bytes -= 64, ++g) {
            const __mmask64 present = bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
            for (int c = 0; c < C; ++c)
                codes[c] = _mm512_maskz_loadu_epi8(present, w.codes + c * stride + g * 64);
            add_group<R, C>(codes, factor, g, x, total);
        }
    }
    for (int r = 0; r < R; ++r) {
        if constexpr (C % 2 == 0) {
            for (int c = 0; c < C; c += 2) add_lanes(total[r][c], total[r][c + 1], &out[r][c]);
        } else {
            for (int c = 0; c < C; ++c) out[r][c] = _mm512_reduce_add_epi64(total[r][c]);
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
