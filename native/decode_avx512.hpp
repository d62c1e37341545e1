// Decodes a band of rows of weights with AVX-512, into whatever the tier multiplies with.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "groups_avx512.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

// Decodes the blocks of a group that are there. `decode_codes` looks up what each 32 bits of codes
// stand for, as the registers that a vector's integers meet.
void decode_band(const WeightRows& w, int group, int blocks, Band& out) {
    const std::ptrdiff_t stride = w.inner / 2;
    for (int part = 0; part < kBandLanes; part += 16) {
        const std::uint8_t* const codes = w.codes + part * stride + group * 64;
        for (int b = 0; b < blocks; ++b) {
            __m512i block[4];
            gather_block(codes + b * 16, stride, block);
            for (int d = 0; d < 4; ++d) {
                const Decoded decoded = decode_codes(block[d]);
                for (int i = 0; i < kDecoded; ++i)
                    _mm512_store_si512(&out.weights[b][i][d][part], decoded.v[i]);
            }
        }
        gather_factors(w, part, group, blocks, &out.factor[0][part]);
        prefetch_band(codes, stride);
    }
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
