// Exact integer sums of a tile with AVX-512, by the tier's own `add_group`.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "groups_avx512.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

template <int R>
constexpr int kIntegerColumns = R <= 4 ? 4 : 2;

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
