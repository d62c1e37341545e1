// What all exact integer sums with AVX-512 share: scales, transposing, and adding up.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

// 2^(byte - floor) of 16 blocks; 0 below the floor, because such a count is huge when unsigned.
LANES __m512i factors(__m128i bytes, int floor) {
    const __m512i shift = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(floor));
    return _mm512_sllv_epi32(_mm512_set1_epi32(1), shift);
}

// Which of 16 factors each lane of a group needs: four lanes are a block.
LANES __m512i factor_lanes(int group) {
    const __m512i blocks = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_add_epi32(blocks, _mm512_set1_epi32(4 * (group % 4)));
}

// total + sums of pairs of lanes, shifted.
LANES __m512i add_shifted(__m512i total, __m512i sum, __m512i factor, __m512i shift) {
    sum = _mm512_add_epi32(sum, _mm512_srli_epi64(sum, 32));
    return _mm512_add_epi64(total, _mm512_mul_epi32(sum, _mm512_sllv_epi32(factor, shift)));
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

// Sums of even lanes lie before those of odd ones, sixteen lanes at a time.
constexpr int band_place(int lane) { return lane / 16 * 16 + lane % 2 * 8 + lane % 16 / 2; }

// 16 bytes of each of 16 rows: a block, transposed so that each row has a lane.
LANES void gather_block(const std::uint8_t* rows, std::ptrdiff_t stride, __m512i (&out)[4]) {
    const auto load = [&](int row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
    };
    __m512i z[4];
    for (int j = 0; j < 4; ++j) {
        z[j] = _mm512_zextsi128_si512(load(j));
        z[j] = _mm512_mask_broadcast_i32x4(z[j], 0x00f0, load(4 + j));
        z[j] = _mm512_mask_broadcast_i32x4(z[j], 0x0f00, load(8 + j));
        z[j] = _mm512_mask_broadcast_i32x4(z[j], 0xf000, load(12 + j));
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// 2^(byte - floor) of each block of a group, of 16 rows from `first` on.
LANES void gather_factors(const WeightRows& w, int first, int group, int blocks,
                          std::int32_t* out) {
    const std::ptrdiff_t stride = w.inner / 32;
    const std::uint8_t* const scales = w.scales + first * stride + group * 4;
    alignas(64) std::uint32_t four[16] = {};
    if (blocks == 4)
        for (int r = 0; r < 16; ++r) __builtin_memcpy(four + r, scales + r * stride, 4);
    else
        for (int r = 0; r < 16; ++r) __builtin_memcpy(four + r, scales + r * stride, blocks);
    __m512i bytes = _mm512_load_si512(four);
    for (int b = 0; b < blocks; ++b, bytes = _mm512_srli_epi32(bytes, 8)) {
        const __m512i one = _mm512_and_si512(bytes, _mm512_set1_epi32(255));
        const __m512i shift = _mm512_sub_epi32(one, _mm512_set1_epi32(w.floor));
        _mm512_store_si512(out + b * kBandLanes, _mm512_sllv_epi32(_mm512_set1_epi32(1), shift));
    }
}

// Adds sums of 16 lanes of a band, shifted, to `total`.
LANES void add_lane_sums(__m512i sum, const std::int32_t* factors, __m512i shift,
                         std::int64_t* total) {
    const __m512i factor = _mm512_sllv_epi32(_mm512_load_si512(factors), shift);
    const auto add = [&](std::int64_t* at, __m512i sums, __m512i by) {
        const __m512i scaled = _mm512_mul_epi32(sums, by);
        _mm512_store_si512(at, _mm512_add_epi64(_mm512_load_si512(at), scaled));
    };
    add(total, sum, factor);
    add(total + 8, _mm512_srli_epi64(sum, 32), _mm512_srli_epi64(factor, 32));
}

// Bands lie one after the other: first into the second cache, then into the first.
LANES void prefetch_band(const std::uint8_t* codes, std::ptrdiff_t stride) {
    constexpr int kNear = 256;  // bytes
    for (int r = 0; r < 16; ++r) {
        const char* const at = reinterpret_cast<const char*>(codes + r * stride);
        _mm_prefetch(at + kNear, _MM_HINT_T0);
        _mm_prefetch(at + kBandLanes * stride, _MM_HINT_T1);
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
