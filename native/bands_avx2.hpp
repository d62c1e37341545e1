// Bands of rows of weights with AVX2; see sums.hpp.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "sums_avx2.hpp"
#include "tiles.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kBandRows = 4;
constexpr int kBandFrom = 3;

// Sums of even lanes lie before those of odd ones, eight lanes at a time.
constexpr int band_place(int lane) { return lane / 8 * 8 + lane % 2 * 4 + lane % 8 / 2; }

// 16 bytes of each of 8 rows: a block, transposed so that each row has a lane.
LANES void gather_block(const std::uint8_t* rows, std::ptrdiff_t stride, __m256i (&out)[4]) {
    const auto load = [&](int row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
    };
    __m256i z[4];
    for (int j = 0; j < 4; ++j)
        z[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(load(j)), load(4 + j), 1);
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[0], z[1]);
    const __m256i c = _mm256_unpacklo_epi32(z[2], z[3]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

// Decodes the blocks of a group that are there.
void decode_band(const WeightRows& w, int group, int blocks, Band& out) {
    const std::ptrdiff_t stride = w.inner / 2, scale_stride = w.inner / 32;
    for (int part = 0; part < kBandLanes; part += 8) {
        const std::uint8_t* const codes = w.codes + part * stride + group * 64;
        const std::uint8_t* const scales = w.scales + part * scale_stride + group * 4;
        for (int b = 0; b < blocks; ++b) {
            __m256i block[4];
            gather_block(codes + b * 16, stride, block);
            for (int d = 0; d < 4; ++d) {
                const Decoded pairs = decode_words(block[d]);
                for (int i = 0; i < 4; ++i)
                    _mm256_store_si256(reinterpret_cast<__m256i*>(&out.weights[b][i][d][part]),
                                       pairs.v[i]);
            }
            for (int r = 0; r < 8; ++r)
                out.factor[b][part + r] =
                    static_cast<std::int32_t>(factor(scales[r * scale_stride + b], w.floor));
        }
        // Bands lie one after the other: first into the second cache, then into the first.
        constexpr int kNear = 256;  // bytes
        for (int r = 0; r < 8; ++r) {
            const char* const at = reinterpret_cast<const char*>(codes + r * stride);
            _mm_prefetch(at + kNear, _MM_HINT_T0);
            _mm_prefetch(at + kBandLanes * stride, _MM_HINT_T1);
        }
    }
}

// total[r] += a group of the band times the group of row r.
template <int R>
LANES void multiply_band(const Band& w, int group, int blocks, const IntegerRow* const* x,
                         std::int64_t* total) {
    const auto load = [](const void* at) {
        return _mm256_load_si256(static_cast<const __m256i*>(at));
    };
    for (int b = 0; b < blocks; ++b) {
        const std::int16_t* words[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) words[r] = &x[r]->groups[group].words[0][8 * b];
        for (int part = 0; part < kBandLanes; part += 16) {
            __m256i sum[R][2];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
            for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
                for (int d = 0; d < 4; ++d) {
                    const std::int32_t* const pairs = &w.weights[b][i][d][part];
                    const __m256i w0 = load(pairs), w1 = load(pairs + 8);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        const __m256i a = _mm256_set1_epi32(pair_of_words(words[r] + 2 * d, i));
                        sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(w0, a));
                        sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(w1, a));
                    }
                }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
                for (int c = 0; c < 2; ++c) {
                    const __m256i factor =
                        _mm256_slli_epi32(load(&w.factor[b][part + 8 * c]), x[r]->shifts[group]);
                    std::int64_t* const to = total + r * kBandLanes + part + 8 * c;
                    const auto add = [&](std::int64_t* at, __m256i sums, __m256i by) {
                        const __m256i scaled = _mm256_mul_epi32(sums, by);
                        _mm256_store_si256(reinterpret_cast<__m256i*>(at),
                                           _mm256_add_epi64(load(at), scaled));
                    };
                    add(to, sum[r][c], factor);
                    add(to + 4, _mm256_srli_epi64(sum[r][c], 32), _mm256_srli_epi64(factor, 32));
                }
        }
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
