// Sixteen float32 lanes as a plain array: the definition, and the tier of every other processor.
//
// A Pair is a unit of 32 consecutive weights. Nothing here relies on hardware fused multiply-add:
// where the target has none, `fused` rounds once all the same.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tables.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

#define LANES [[gnu::always_inline]] inline

constexpr int kTileRows = 2;
constexpr int kTileColumns = 2;

struct alignas(64) Lanes {
    float v[16];
};
struct Pair {
    Lanes low, high;
};

// a * b + c, rounded once. The product is exact in double; the sum is rounded to odd, which keeps
// enough of the tail for the one rounding to float that follows.
LANES float fused(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    const double product = static_cast<double>(a) * b, addend = c;
    const double total = product + addend;
    const double back = total - product;
    const double tail = (product - (total - back)) + (addend - back);
    std::int64_t bits = std::bit_cast<std::int64_t>(total);
    const std::int64_t inexact = (tail > 0) | (tail < 0);  // neither for NaN and infinity
    const std::int64_t away = (tail > 0) == (total > 0) ? 1 : -1;
    bits += inexact & ~bits & 1 ? away : 0;
    return static_cast<float>(std::bit_cast<double>(bits));
#endif
}

#define LANES_EACH(expression)                            \
    Lanes out;                                            \
    for (int i = 0; i < 16; ++i) out.v[i] = (expression); \
    return out

LANES Lanes zero() { LANES_EACH(0.0f); }
LANES Lanes splat(float a) { LANES_EACH(a); }
LANES Lanes load(const float* p) { LANES_EACH(p[i]); }
LANES Lanes load_part(const float* p, int count) { LANES_EACH(i < count ? p[i] : 0.0f); }
LANES void store(float* p, const Lanes& a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
LANES void store_part(float* p, const Lanes& a, int count) {
    for (int i = 0; i < count; ++i) p[i] = a.v[i];
}
LANES Lanes operator+(const Lanes& a, const Lanes& b) { LANES_EACH(a.v[i] + b.v[i]); }
LANES Lanes operator-(const Lanes& a, const Lanes& b) { LANES_EACH(a.v[i] - b.v[i]); }
LANES Lanes operator*(const Lanes& a, const Lanes& b) { LANES_EACH(a.v[i] * b.v[i]); }
LANES Lanes operator/(const Lanes& a, const Lanes& b) { LANES_EACH(a.v[i] / b.v[i]); }
LANES Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    LANES_EACH(fused(a.v[i], b.v[i], c.v[i]));
}
LANES Lanes root(const Lanes& a) { LANES_EACH(__builtin_sqrtf(a.v[i])); }

// NaN stays NaN in both.
LANES Lanes at_most(const Lanes& a, const Lanes& bound) {
    LANES_EACH(bound.v[i] < a.v[i] ? bound.v[i] : a.v[i]);
}
LANES Lanes at_least(const Lanes& a, const Lanes& bound) {
    LANES_EACH(bound.v[i] > a.v[i] ? bound.v[i] : a.v[i]);
}

// a * 2^n, where magic = 1.5 * 2^23 + n. In two steps, so that a subnormal result is rounded once.
LANES float scale_one(float a, float magic) {
    const std::int32_t n = std::bit_cast<std::int32_t>(magic) - 0x4b400000, half = n >> 1;
    const auto power = [](std::int32_t e) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
    };
    return a * power(half) * power(n - half);
}
LANES Lanes scale_by_power(const Lanes& a, const Lanes& magic) {
    LANES_EACH(scale_one(a.v[i], magic.v[i]));
}

// The one tree over lanes: l + (l + 8), then + 4, + 2, + 1.
LANES float sum(const Lanes& a) {
    float t[8];
    for (int i = 0; i < 8; ++i) t[i] = a.v[i] + a.v[i + 8];
    for (int i = 0; i < 4; ++i) t[i] += t[i + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}
template <int R, int C>
LANES void sums(const Lanes (&a)[R][C], float* out, std::ptrdiff_t stride) {
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) out[r * stride + c] = sum(a[r][c]);
}

LANES float bf16_one(const std::uint8_t* p) {
    std::uint16_t half;
    std::memcpy(&half, p, sizeof half);
    return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}
LANES Lanes bf16_half(const std::uint8_t* p) { LANES_EACH(bf16_one(p + 2 * i)); }
LANES Pair bf16_unit(const std::uint8_t* p) { return {bf16_half(p), bf16_half(p + 32)}; }

// E4M3 comes 2^8 too small in every tier: see Fp8Weights.
LANES Lanes fp8_half(const std::uint8_t* p) { LANES_EACH(kE4m3.value[p[i]] / 256); }
LANES Pair fp8_unit(const std::uint8_t* p) { return {fp8_half(p), fp8_half(p + 16)}; }

LANES Lanes fp4_half(const std::uint8_t* p, float scale) {
    LANES_EACH(kE2m1[p[i / 2] >> (i % 2 * 4) & 15] * scale);
}
LANES Pair fp4_unit(const std::uint8_t* p, float scale) {
    return {fp4_half(p, scale), fp4_half(p + 8, scale)};
}

#undef LANES_EACH

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
