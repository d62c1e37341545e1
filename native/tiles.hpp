// Exact sums of few rows of activations: rows of weights are decoded in registers, for all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sums.hpp"

namespace deskside::DESKSIDE_TIER {
namespace {

// target(p)[c] += sum of x[p] times row c of `columns` rows of weights, for R rows from `first` on.
template <int R, class Target>
void add_tile_rows(const WeightRows& w, int columns, const IntegerRow* const* x, int first,
                   const Target& target) {
    const auto tile = [&]<int C>(int c) {
        std::int64_t out[R][C];
        const std::ptrdiff_t at = c;
        integer_tile<R, C>(
            {w.codes + at * (w.inner / 2), w.scales + at * (w.inner / 32), w.inner, w.floor}, x,
            out);
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < C; ++i) target(first + r)[c + i] += out[r][i];
    };
    constexpr int kColumns = kIntegerColumns<R>;
    int c = 0;
    for (; c + kColumns <= columns; c += kColumns) tile.template operator()<kColumns>(c);
    for (; c < columns; ++c) tile.template operator()<1>(c);
}

// Rows [first, count), `R` at a time while they last.
template <int R, class Target>
void add_tiles(const WeightRows& w, int columns, const IntegerRow* const* x, int count, int first,
               const Target& target) {
    for (; count - first >= R; first += R) add_tile_rows<R>(w, columns, x + first, first, target);
    if constexpr (R > 1)
        if (first < count) add_tiles<R - 1>(w, columns, x, count, first, target);
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
