// What every tier provides: one table of functions, and their arguments.
//
// All pointers are to caller-owned memory; leading dimensions count elements. Every function gives
// each row the same bits whatever other rows, threads or tier it runs with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside {

enum class Kind : int { kF32 = 0, kBf16 = 1, kFp8 = 2, kMxfp4 = 3 };

// out[r, n] = sum over k of x[r, k] * w[n, k]. K falls into `leaves` equal leaves; lane l of 16 sums
// k = l mod 16 of a leaf, ascending, fused; then the lanes' tree, then the leaves' pairwise tree.
struct LinearCall {
    Kind kind;
    const float* x;
    int rows;
    int inner;
    std::ptrdiff_t x_stride;
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    int columns;
    int leaves;
    float* out;
    std::ptrdiff_t out_stride;
};

struct Kernels {
    const char* name;
    void (*linear)(const LinearCall&);
};

// The tiers this build holds; those not for this processor are null.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace deskside
