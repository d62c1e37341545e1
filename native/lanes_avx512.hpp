// Sixteen float32 lanes in one 512-bit register: AVX-512 F, BW, VL, DQ.
//
// Each lanes_*.hpp defines the same operations with the same bits; see lanes_portable.hpp for what
// they mean.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "tables.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

#define LANES [[gnu::always_inline]] inline

constexpr int kTileRows = 4;
constexpr int kTileColumns = 4;

struct Lanes {
    __m512 v;
};
struct Pair {
    Lanes low, high;
};

LANES Lanes zero() { return {_mm512_setzero_ps()}; }
LANES Lanes splat(float a) { return {_mm512_set1_ps(a)}; }
LANES Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
LANES __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1); }
LANES Lanes load_part(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(first(count), p)};
}
LANES void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
LANES void store_part(float* p, Lanes a, int count) { _mm512_mask_storeu_ps(p, first(count), a.v); }
LANES Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
LANES Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
LANES Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
LANES Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
LANES Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
LANES Lanes root(Lanes a) { return {_mm512_sqrt_ps(a.v)}; }
LANES Lanes at_most(Lanes a, Lanes bound) { return {_mm512_min_ps(bound.v, a.v)}; }
LANES Lanes at_least(Lanes a, Lanes bound) { return {_mm512_max_ps(bound.v, a.v)}; }

LANES Lanes scale_by_power(Lanes a, Lanes magic) {
    const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(magic.v), _mm512_set1_epi32(0x4b400000));
    const __m512i half = _mm512_srai_epi32(n, 1), bias = _mm512_set1_epi32(127);
    const __m512i p = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    const __m512i q = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
    return {_mm512_mul_ps(_mm512_mul_ps(a.v, _mm512_castsi512_ps(p)), _mm512_castsi512_ps(q))};
}

LANES __m128 sum_blocks(__m256 halves) {
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}
LANES float sum(Lanes a) {
    const __m256 low = _mm512_castps512_ps256(a.v), high = _mm512_extractf32x8_ps(a.v, 1);
    const __m128 four = sum_blocks(_mm256_add_ps(low, high));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The first two levels of four trees at once: 128-bit block i holds the four partial sums of a[i].
LANES __m512 half_sums(Lanes a, Lanes b, Lanes c, Lanes d) {
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// Sums of a tile of lanes: out[r * stride + c] = sum(a[r][c]).
template <int R, int C>
LANES void sums(const Lanes (&a)[R][C], float* out, std::ptrdiff_t stride) {
    if constexpr (C == 4) {
        const auto row = [&](int r) { return half_sums(a[r][0], a[r][1], a[r][2], a[r][3]); };
        for (int r = 0; r < R; ++r) {
            const __m512 s = row(r);
            const __m512 t = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
            const __m512 u = _mm512_add_ps(t, _mm512_permute_ps(t, 0xb1));
            const __m512i heads =
                _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            _mm_storeu_ps(out + r * stride,
                          _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, u)));
        }
    } else {
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < C; ++c) out[r * stride + c] = sum(a[r][c]);
    }
}

LANES Lanes widen_bf16(__m256i half) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
LANES Pair bf16_unit(const std::uint8_t* p) {
    return {widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
            widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)))};
}

// E4M3 read as half precision is 2^8 too small; subnormals convert exactly and at full speed.
LANES Pair fp8_unit(const std::uint8_t* p) {
    const __m512i wide =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i placed =
        _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xbf80)));
    const __m512i nan = _mm512_set1_epi16(0x3f80);
    const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(placed, nan), nan);
    const __m512i fixed = _mm512_mask_blend_epi16(is_nan, placed, _mm512_set1_epi16(0x7e00));
    return {{_mm512_cvtph_ps(_mm512_castsi512_si256(fixed))},
            {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(fixed, 1))}};
}

LANES Pair fp4_unit(const std::uint8_t* p, float scale) {
    const __m512 table = _mm512_mul_ps(_mm512_load_ps(kE2m1), _mm512_set1_ps(scale));
    const __m512i codes =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i shift =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i first_words = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i last_words = _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m512i low = _mm512_srlv_epi32(_mm512_permutexvar_epi32(first_words, codes), shift);
    const __m512i high = _mm512_srlv_epi32(_mm512_permutexvar_epi32(last_words, codes), shift);
    return {{_mm512_permutexvar_ps(low, table)}, {_mm512_permutexvar_ps(high, table)}};
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
