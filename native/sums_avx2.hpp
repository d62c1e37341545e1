// Exact integer sums with AVX2; see sums_portable.hpp. One 32-byte load is half a group.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "words.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

template <int R>
constexpr int kIntegerColumns = R == 1 ? 2 : 1;

struct Decoded {
    __m256i v[4];
};

LANES Decoded decode_words(__m256i codes) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
    const __m256i odd =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
    const auto low = [](__m256i bytes) {
        return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    };
    const auto high = [](__m256i bytes) { return _mm256_srai_epi16(bytes, 8); };
    return {{low(even), low(odd), high(even), high(odd)}};
}

LANES std::int64_t factor(int byte, int floor) {
    return byte < floor ? 0 : std::int64_t{1} << (byte - floor);
}

// The half group at `half` (64 weights from 64 * half on); `second` is 0 where a block is missing.
template <int R, int C>
LANES void add_half(__m256i codes, std::int64_t one, std::int64_t second, int half, int c,
                    const IntegerRow* const* x, __m256i (&total)[R][C]) {
    const Decoded w = decode_words(codes);
    const __m256i scale = _mm256_set_epi64x(second, second, one, one);
    for (int r = 0; r < R; ++r) {
        const RowGroup& row = x[r]->groups[half / 2];
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < 4; ++i) {
            const __m256i a =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(&row.words[i][half % 2 * 16]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w.v[i], a));
        }
        sum = _mm256_add_epi32(sum, _mm256_srli_epi64(sum, 32));
        const __m256i power = _mm256_sll_epi64(scale, _mm_cvtsi32_si128(x[r]->shifts[half / 2]));
        total[r][c] = _mm256_add_epi64(total[r][c], _mm256_mul_epi32(sum, power));
    }
}

template <int R, int C>
void integer_tile(const WeightRows& w, const IntegerRow* const* x, std::int64_t (&out)[R][C]) {
    constexpr int kAhead = 8192;  // bytes
    const std::ptrdiff_t stride = w.inner / 2, scale_stride = w.inner / 32;
    __m256i total[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) total[r][c] = _mm256_setzero_si256();
    const int halves = w.inner / 64;
    for (int h = 0; h < halves; ++h)
        for (int c = 0; c < C; ++c) {
            const std::uint8_t* const p = w.codes + c * stride + h * 32;
            const std::uint8_t* const s = w.scales + c * scale_stride + h * 2;
            if (h % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(p + kAhead), _MM_HINT_T0);
            add_half<R, C>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                           factor(s[0], w.floor), factor(s[1], w.floor), h, c, x, total);
        }
    if (w.inner % 64 != 0)
        for (int c = 0; c < C; ++c) {
            const std::uint8_t* const p = w.codes + c * stride + halves * 32;
            const __m128i block = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
            const int byte = w.scales[c * scale_stride + halves * 2];
            add_half<R, C>(_mm256_zextsi128_si256(block), factor(byte, w.floor), 0, halves, c, x,
                           total);
        }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            alignas(32) std::int64_t lane[4];
            _mm256_store_si256(reinterpret_cast<__m256i*>(lane), total[r][c]);
            out[r][c] = lane[0] + lane[1] + lane[2] + lane[3];
        }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
