// Sixteen float32 lanes in two 256-bit registers: AVX2, FMA, F16C.
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

constexpr int kTileRows = 2;
constexpr int kTileColumns = 2;

struct Lanes {
    __m256 a, b;
};
struct Pair {
    Lanes low, high;
};

LANES Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LANES Lanes splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
LANES Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES Lanes load_part(const float* p, int count) {
    if (count >= 16) return load(p);
    alignas(32) float whole[16] = {};
    for (int i = 0; i < count; ++i) whole[i] = p[i];
    return load(whole);
}
LANES void store(float* p, Lanes x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LANES void store_part(float* p, Lanes x, int count) {
    if (count >= 16) return store(p, x);
    alignas(32) float whole[16];
    store(whole, x);
    for (int i = 0; i < count; ++i) p[i] = whole[i];
}

#define LANES_BINARY(name, intrinsic) \
    LANES Lanes name(Lanes x, Lanes y) { return {intrinsic(x.a, y.a), intrinsic(x.b, y.b)}; }
LANES_BINARY(operator+, _mm256_add_ps)
LANES_BINARY(operator-, _mm256_sub_ps)
LANES_BINARY(operator*, _mm256_mul_ps)
LANES_BINARY(operator/, _mm256_div_ps)
#undef LANES_BINARY

LANES Lanes fma(Lanes x, Lanes y, Lanes z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
LANES Lanes root(Lanes x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
LANES Lanes at_most(Lanes x, Lanes bound) {
    return {_mm256_min_ps(bound.a, x.a), _mm256_min_ps(bound.b, x.b)};
}
LANES Lanes at_least(Lanes x, Lanes bound) {
    return {_mm256_max_ps(bound.a, x.a), _mm256_max_ps(bound.b, x.b)};
}

LANES __m256 scale_half(__m256 a, __m256 magic) {
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(magic), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    const __m256i p = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i q = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(p)), _mm256_castsi256_ps(q));
}
LANES Lanes scale_by_power(Lanes x, Lanes magic) {
    return {scale_half(x.a, magic.a), scale_half(x.b, magic.b)};
}

LANES float sum(Lanes x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
template <int R, int C>
LANES void sums(const Lanes (&a)[R][C], float* out, std::ptrdiff_t stride) {
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) out[r * stride + c] = sum(a[r][c]);
}

LANES __m128i bytes16(const std::uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
LANES __m256 widen_bf16(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
LANES Pair bf16_unit(const std::uint8_t* p) {
    return {{widen_bf16(bytes16(p)), widen_bf16(bytes16(p + 16))},
            {widen_bf16(bytes16(p + 32)), widen_bf16(bytes16(p + 48))}};
}

// E4M3 read as half precision is 2^8 too small; subnormals convert exactly and at full speed.
LANES Lanes fp8_half(const std::uint8_t* p) {
    const __m256i placed = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes16(p)), 7),
                                            _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i nan = _mm256_set1_epi16(0x3f80);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(placed, nan), nan);
    const __m256i half =
        _mm256_or_si256(placed, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
LANES Pair fp8_unit(const std::uint8_t* p) { return {fp8_half(p), fp8_half(p + 16)}; }

LANES __m256 fp4_eight(const std::uint8_t* p, __m256 magnitudes) {
    std::int32_t word;
    std::memcpy(&word, p, sizeof word);
    const __m256i codes =
        _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
}
LANES Pair fp4_unit(const std::uint8_t* p, float scale) {
    const __m256 table = _mm256_mul_ps(_mm256_load_ps(kE2m1), _mm256_set1_ps(scale));
    return {{fp4_eight(p, table), fp4_eight(p + 4, table)},
            {fp4_eight(p + 8, table), fp4_eight(p + 12, table)}};
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
