// What every tier provides: one table of functions, and their arguments.
//
// All pointers are to caller-owned memory; leading dimensions count elements. Every function gives
// each row the same bits whatever other rows, threads or tier it runs with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deskside {

enum class Kind : int { kF32 = 0, kBf16 = 1, kFp8 = 2, kMxfp4 = 3 };

// out[r, n] = sum over k of x[r, k] * w[n, k]. K falls into `leaves` equal leaves; lane l of 16
// sums k = l mod 16 of a leaf, ascending, fused; then the lanes' tree, then the leaves' pairwise
// tree.
struct LinearPart {
    Kind kind;
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    int columns;
    const float* x;
    float* out;
    std::ptrdiff_t out_stride;
};

// One or more matrices of one inner size: their tasks are shared out together.
struct LinearCall {
    int rows;
    int inner;
    std::ptrdiff_t x_stride;
    int leaves;
    const LinearPart* parts;
    int count;
};

// An MXFP4 matrix for each expert: codes [experts, rows, columns / 2], scales [.., columns / 32].
struct Bank {
    const std::uint8_t* codes;
    const std::uint8_t* scales;
};

// The exact sums of ops/integer_moe.py: out[r] = sum over slots of integer down(gated unit).
// `table` holds the layer's windows: floor of gate's and up's scale bytes, depth of x's window,
// floor of down's scale bytes, low and top of the gated unit's window.
struct ExpertSumsCall {
    const float* x;
    int rows;
    int hidden;
    const std::int64_t* ids;
    const float* weights;
    int topk;
    int experts;
    int inner;
    Bank gate, up, down;
    float limit;
    const std::int32_t* table;
    std::int64_t* out;
};

// out = sums * 2^exponent; NaN in rows whose x or used weights are not finite.
struct FinishExpertsCall {
    const std::int64_t* sums;
    const std::int32_t* table;
    const float* x;
    int rows;
    int hidden;
    const std::int64_t* ids;
    const float* weights;
    int topk;
    float* out;
};

// Every row attends to its lists of keys, window then entries; index -1 is an absent key.
struct AttendCall {
    const float* q;
    int rows;
    int heads;
    int width;
    const float* window_keys;
    const std::int32_t* window_index;
    int window;
    const float* entry_keys;
    const std::int32_t* entry_index;
    int entries;
    const float* sink;
    float scale;
    float* out;
};

// out[r, e] = sum over heads, ascending, of weight * relu(q . keys[first[r] + e]); -inf from
// visible[r] on.
struct IndexScoresCall {
    const float* q;
    int rows;
    int heads;
    int width;
    const float* weights;
    const float* keys;
    const std::int64_t* first;
    const std::int64_t* visible;
    int entries;
    float* out;
};

// x [rows, streams, width], fn [streams * (2 + streams), streams * width].
struct HyperPreCall {
    const float* x;
    int rows;
    int streams;
    int width;
    const float* fn;
    const float* base;
    const float* scale;
    int iterations;
    float eps;
    float norm_eps;
    float* out;
    float* post;
    float* mixing;
};

// fn [streams, streams * width], base [streams], scale [1].
struct HyperHeadCall {
    const float* x;
    int rows;
    int streams;
    int width;
    const float* fn;
    const float* base;
    const float* scale;
    float eps;
    float norm_eps;
    float* out;
};

struct HyperPostCall {
    const float* output;
    const float* x;
    int rows;
    int streams;
    int width;
    const float* post;
    const float* mixing;
    float* out;
};

// `weight` is float32, or bfloat16 where `half_weight`; it may be null.
struct RmsNormCall {
    const float* x;
    int rows;
    int width;
    const void* weight;
    bool half_weight;
    float eps;
    float* out;
};

// Turns the last 2 * half elements of each head by the row's table: cosines, then sines.
struct RopeCall {
    const float* x;
    int rows;
    int heads;
    int width;
    const float* table;
    int half;
    bool inverse;
    float* out;
};

struct SwigluCall {
    const float* gate;
    const float* up;
    std::ptrdiff_t count;
    float limit;
    float* out;
};

// With a bias, chooses `ids` (the largest score + bias first, ties to the lower expert); without,
// reads them. A score is sqrt(softplus(logit)); weights are chosen scores over their sum * scale.
struct RouteCall {
    const float* logits;
    int rows;
    int experts;
    const float* bias;
    int topk;
    float scale;
    std::int64_t* ids;
    float* weights;
};

// out[e, i] = sum over rows j of softmax_j(scores[e, j, i]) * values[e, j, i]; absent rows are not
// there. Entries and rows of both lie `entry_stride` and `row_stride` elements apart.
struct PoolCall {
    const float* values;
    const float* scores;
    const bool* absent;
    int entries;
    int length;
    int width;
    std::ptrdiff_t entry_stride;
    std::ptrdiff_t row_stride;
    float* out;
};

// Cached rows as float32 [rows, width] and as stored bytes. FP8: `still` codes in blocks of 64, a
// scale each, padding to 8, the rest of the row in bfloat16. MXFP4: codes, then scales.
struct RowsCall {
    float* floats;
    std::uint8_t* bytes;
    int rows;
    int width;
    int still;
};

struct HadamardCall {
    const float* x;
    int rows;
    int width;
    float scale;
    float* out;
};

// Adds to `sum` what lies in memory, as numbers that nobody needs: for measuring.
struct ReadCall {
    const std::uint8_t* bytes;
    std::ptrdiff_t count;
    std::uint64_t* sum;
};

// The first place of each row's highest number; -1 where a number of the row is NaN or infinite.
struct BestCall {
    const float* x;
    int rows;
    int columns;
    std::int64_t* out;
};

struct Kernels {
    const char* name;
    void (*linear)(const LinearCall&);
    void (*expert_sums)(const ExpertSumsCall&);
    void (*finish_experts)(const FinishExpertsCall&);
    void (*attend)(const AttendCall&);
    void (*index_scores)(const IndexScoresCall&);
    void (*hyper_pre)(const HyperPreCall&);
    void (*hyper_head)(const HyperHeadCall&);
    void (*hyper_post)(const HyperPostCall&);
    void (*rms_norm)(const RmsNormCall&);
    void (*rope)(const RopeCall&);
    void (*swiglu)(const SwigluCall&);
    void (*route)(const RouteCall&);
    void (*pool)(const PoolCall&);
    void (*encode_fp8_rows)(const RowsCall&);
    void (*decode_fp8_rows)(const RowsCall&);
    void (*encode_mxfp4_rows)(const RowsCall&);
    void (*decode_mxfp4_rows)(const RowsCall&);
    void (*hadamard)(const HadamardCall&);
    void (*read)(const ReadCall&);
    void (*best)(const BestCall&);
};

// The tiers this build holds; those not for this processor are null.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512vnni_kernels();
const Kernels* avx512vbmi_kernels();
const Kernels* amx_kernels();

}  // namespace deskside
