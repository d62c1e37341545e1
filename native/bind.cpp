// The Python module: checks only names and expert ids, owns nothing, releases the GIL.
//
// Tensors arrive as addresses from data_ptr(); kernels/native.py asserts shapes and types.

#include "bind.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "dispatch.hpp"
#include "pool.hpp"
#include "select.hpp"

using namespace deskside;
using namespace deskside::bind;

namespace {

void linear(int kind, Address x, int rows, int inner, std::ptrdiff_t x_stride, Address codes,
            Address scales, int columns, int leaves, Address out, std::ptrdiff_t out_stride) {
    const LinearPart part = {static_cast<Kind>(kind),
                             at<const std::uint8_t>(codes),
                             at<const std::uint8_t>(scales),
                             columns,
                             at<const float>(x),
                             at<float>(out),
                             out_stride};
    kernels().linear({rows, inner, x_stride, leaves, &part, 1});
}

// The matrices of ops/linear.py's Bundle: four numbers each, the kind, two addresses, the columns.
constexpr int kMostMatrices = 16;

LinearPart matrix(Address table, int i) {
    const std::int64_t* const numbers = at<const std::int64_t>(table) + 4 * i;
    return {static_cast<Kind>(numbers[0]),
            at<const std::uint8_t>(static_cast<Address>(numbers[1])),
            at<const std::uint8_t>(static_cast<Address>(numbers[2])),
            static_cast<int>(numbers[3]),
            nullptr,
            nullptr,
            0};
}

// All matrices times the same rows, each into its own place.
void linears(Address x, int rows, int inner, std::ptrdiff_t x_stride, Address table,
             const std::vector<Address>& outs) {
    LinearPart parts[kMostMatrices];
    const int count = static_cast<int>(outs.size());
    for (int i = 0; i < count; ++i) {
        parts[i] = matrix(table, i);
        parts[i].x = at<const float>(x);
        parts[i].out = at<float>(outs[i]);
        parts[i].out_stride = parts[i].columns;
    }
    kernels().linear({rows, inner, x_stride, 1, parts, count});
}

// Matrix i times the i-th `inner` columns of the rows; products side by side.
void grouped_linear(Address x, int rows, int inner, std::ptrdiff_t x_stride, Address table,
                    int count, Address out, std::ptrdiff_t out_stride) {
    LinearPart parts[kMostMatrices];
    std::ptrdiff_t column = 0;
    for (int i = 0; i < count; ++i) {
        parts[i] = matrix(table, i);
        parts[i].x = at<const float>(x) + static_cast<std::ptrdiff_t>(i) * inner;
        parts[i].out = at<float>(out) + column;
        parts[i].out_stride = out_stride;
        column += parts[i].columns;
    }
    kernels().linear({rows, inner, x_stride, 1, parts, count});
}

using Bytes = const std::uint8_t;
using Floats = const float;
using Ids = const std::int64_t;
using Indices = const std::int32_t;

// An expert that is in no bank: the routing, or the checkpoint's table of it, is damaged.
struct UnknownExpert : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void check_ids(Ids* ids, std::ptrdiff_t count, std::int64_t least, int experts) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        if (ids[i] < least || ids[i] >= experts) {
            throw UnknownExpert("expert " + std::to_string(ids[i]) + " of a bank of " +
                                std::to_string(experts) +
                                ": its routing is damaged, download the checkpoint again");
        }
    }
}

void expert_sums(Address x, int rows, int hidden, Address ids, Address weights, int topk,
                 int experts, int inner, Address gate, Address gate_scales, Address up,
                 Address up_scales, Address down, Address down_scales, float limit, Address table,
                 Address out) {
    check_ids(at<Ids>(ids), static_cast<std::ptrdiff_t>(rows) * topk, -1, experts);
    kernels().expert_sums({at<Floats>(x),
                           rows,
                           hidden,
                           at<Ids>(ids),
                           at<Floats>(weights),
                           topk,
                           experts,
                           inner,
                           {at<Bytes>(gate), at<Bytes>(gate_scales)},
                           {at<Bytes>(up), at<Bytes>(up_scales)},
                           {at<Bytes>(down), at<Bytes>(down_scales)},
                           limit,
                           at<Indices>(table),
                           at<std::int64_t>(out)});
}

void finish_experts(Address sums, Address table, Address x, int rows, int hidden, Address ids,
                    Address weights, int topk, Address out) {
    kernels().finish_experts({at<Ids>(sums), at<Indices>(table), at<Floats>(x), rows, hidden,
                              at<Ids>(ids), at<Floats>(weights), topk, at<float>(out)});
}

void attend(Address q, int rows, int heads, int width, Address window_keys, Address window_index,
            int window, Address entry_keys, Address entry_index, int entries, Address sink,
            float scale, Address out) {
    kernels().attend({at<Floats>(q), rows, heads, width, at<Floats>(window_keys),
                      at<Indices>(window_index), window, at<Floats>(entry_keys),
                      at<Indices>(entry_index), entries, at<Floats>(sink), scale, at<float>(out)});
}

void index_scores(Address q, int rows, int heads, int width, Address weights, Address keys,
                  Address first, Address visible, int entries, Address out) {
    kernels().index_scores({at<Floats>(q), rows, heads, width, at<Floats>(weights),
                            at<Floats>(keys), at<Ids>(first), at<Ids>(visible), entries,
                            at<float>(out)});
}

void hyper_pre(Address x, int rows, int streams, int width, Address fn, Address base, Address scale,
               int iterations, float eps, float norm_eps, Address out, Address post,
               Address mixing) {
    kernels().hyper_pre({at<Floats>(x), rows, streams, width, at<Floats>(fn), at<Floats>(base),
                         at<Floats>(scale), iterations, eps, norm_eps, at<float>(out),
                         at<float>(post), at<float>(mixing)});
}

void hyper_head(Address x, int rows, int streams, int width, Address fn, Address base,
                Address scale, float eps, float norm_eps, Address out) {
    kernels().hyper_head({at<Floats>(x), rows, streams, width, at<Floats>(fn), at<Floats>(base),
                          at<Floats>(scale), eps, norm_eps, at<float>(out)});
}

void hyper_post(Address output, Address x, int rows, int streams, int width, Address post,
                Address mixing, Address out) {
    kernels().hyper_post({at<Floats>(output), at<Floats>(x), rows, streams, width, at<Floats>(post),
                          at<Floats>(mixing), at<float>(out)});
}

void rms_norm(Address x, int rows, int width, Address weight, bool half_weight, float eps,
              Address out) {
    kernels().rms_norm(
        {at<Floats>(x), rows, width, at<const void>(weight), half_weight, eps, at<float>(out)});
}

void rope(Address x, int rows, int heads, int width, Address table, int half, bool inverse,
          Address out) {
    kernels().rope(
        {at<Floats>(x), rows, heads, width, at<Floats>(table), half, inverse, at<float>(out)});
}

void swiglu(Address gate, Address up, std::ptrdiff_t count, float limit, Address out) {
    kernels().swiglu({at<Floats>(gate), at<Floats>(up), count, limit, at<float>(out)});
}

void route(Address logits, int rows, int experts, Address bias, int topk, float scale, Address ids,
           Address weights) {
    if (bias == 0) check_ids(at<Ids>(ids), static_cast<std::ptrdiff_t>(rows) * topk, 0, experts);
    kernels().route({at<Floats>(logits), rows, experts, at<Floats>(bias), topk, scale,
                     at<std::int64_t>(ids), at<float>(weights)});
}

void best(Address x, int rows, int columns, Address out) {
    kernels().best({at<Floats>(x), rows, columns, at<std::int64_t>(out)});
}

void pool_rows(Address values, Address scores, Address absent, int entries, int length, int width,
               std::ptrdiff_t entry_stride, std::ptrdiff_t row_stride, Address out) {
    kernels().pool({at<Floats>(values), at<Floats>(scores), at<const bool>(absent), entries, length,
                    width, entry_stride, row_stride, at<float>(out)});
}

void select_columns(Address scores, int rows, int columns, int count, Address out) {
    select(at<Floats>(scores), rows, columns, count, at<std::int64_t>(out));
}

// One binding for the four row codecs.
template <void (*Kernels::*codec)(const RowsCall&)>
void recode_rows(Address floats, Address bytes, int rows, int width, int still) {
    (kernels().*codec)({at<float>(floats), at<std::uint8_t>(bytes), rows, width, still});
}

// Blocks of `length` stored rows of `size` bytes by their numbers, then rows behind them, as
// floats.
template <void (*Kernels::*codec)(const RowsCall&)>
void read_rows(Address floats, Address blocks, Address numbers, int count, int length,
               std::ptrdiff_t size, Address behind, int rows, int width, int still) {
    float* out = at<float>(floats);
    for (int i = 0; i < count; ++i, out += static_cast<std::ptrdiff_t>(length) * width) {
        std::uint8_t* const block = at<std::uint8_t>(blocks) + at<Ids>(numbers)[i] * length * size;
        (kernels().*codec)({out, block, length, width, still});
    }
    (kernels().*codec)({out, at<std::uint8_t>(behind), rows, width, still});
}

// The same of rows that are stored as they are.
void read_blocks(Address out, Address blocks, Address numbers, int count, int length,
                 std::ptrdiff_t size, Address behind, int rows) {
    auto* to = at<std::uint8_t>(out);
    const std::ptrdiff_t bytes = length * size;
    for (int i = 0; i < count; ++i, to += bytes)
        std::memcpy(to, at<Bytes>(blocks) + at<Ids>(numbers)[i] * bytes, bytes);
    if (rows > 0) std::memcpy(to, at<Bytes>(behind), rows * size);
}

void hadamard(Address x, int rows, int width, float scale, Address out) {
    kernels().hadamard({at<Floats>(x), rows, width, scale, at<float>(out)});
}

std::uint64_t read_bytes(Address bytes, std::ptrdiff_t count) {
    std::uint64_t sum = 0;
    kernels().read({at<Bytes>(bytes), count, &sum});
    return sum;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Compiled CPU kernels over raw addresses; kernels/native.py is their face.";
    const auto free = nb::call_guard<nb::gil_scoped_release>();

    module.def("tiers", usable_tiers, "Instruction-set tiers that run here, widest first.");
    module.def("tier", [] { return kernels().name; }, "The tier in use.");
    module.def("forced", tier_forced, "Whether the tier in use was named by force_tier.");
    module.def(
        "force_tier", use_tier,
        "Use one of tiers(), false where it is none; the bits of every result stay the same.");
    module.def("release_tier", release_tier, "Use the widest tier again.");
    bind_pool(module);
    translate<UnknownExpert>("CheckpointError");
    module.def("linear", linear, free);
    module.def("linears", linears, free);
    module.def("grouped_linear", grouped_linear, free);
    module.attr("MOST_MATRICES") = kMostMatrices;
    module.def("expert_sums", expert_sums, free);
    module.def("finish_experts", finish_experts, free);
    module.def("attend", attend, free);
    module.def("index_scores", index_scores, free);
    module.def("hyper_pre", hyper_pre, free);
    module.def("hyper_head", hyper_head, free);
    module.def("hyper_post", hyper_post, free);
    module.def("rms_norm", rms_norm, free);
    module.def("rope", rope, free);
    module.def("swiglu", swiglu, free);
    module.def("route", route, free);
    module.def("best", best, free);
    module.def("pool", pool_rows, free);
    module.def("select", select_columns, free);
    module.def("encode_fp8_rows", recode_rows<&Kernels::encode_fp8_rows>, free);
    module.def("decode_fp8_rows", recode_rows<&Kernels::decode_fp8_rows>, free);
    module.def("encode_mxfp4_rows", recode_rows<&Kernels::encode_mxfp4_rows>, free);
    module.def("decode_mxfp4_rows", recode_rows<&Kernels::decode_mxfp4_rows>, free);
    module.def("read_fp8_blocks", read_rows<&Kernels::decode_fp8_rows>, free);
    module.def("read_mxfp4_blocks", read_rows<&Kernels::decode_mxfp4_rows>, free);
    module.def("read_blocks", read_blocks, free);
    module.def("hadamard", hadamard, free);
    module.def("read", read_bytes, free);
    bind_exchange(module);

    // Workers must be gone before the interpreter unloads this library.
    nb::module_::import_("atexit").attr("register")(
        nb::cpp_function([] { pool::set_threads(1); }, free));
}
