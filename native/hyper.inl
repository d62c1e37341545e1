// Hyper-connections: mixing the residual streams into a sub-layer's input and its output back.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kMaxStreams = 8;

// One row's projection onto the mixing coefficients, scaled by the inverse RMS of all streams.
struct Projection {
    float value[kMaxStreams * (2 + kMaxStreams)];
};

// A task's rows; also the rows that share one pass over `fn`.
constexpr int kHyperRows = 16;

template <class Function>
void each_projected(const float* streams, int rows, int inner, const float* fn, int outputs,
                    float norm_eps, const Function& function) {
    const double worth = static_cast<double>(rows) * inner * outputs;
    pool::loop(ceil_div(rows, kHyperRows), worth, [&](int block) {
        const int begin = block * kHyperRows;
        const int count = rows - begin < kHyperRows ? rows - begin : kHyperRows;
        const float* x[kHyperRows];
        Projection projected[kHyperRows];
        for (int r = 0; r < count; ++r)
            x[r] = streams + static_cast<std::ptrdiff_t>(begin + r) * inner;
        product(F32Weights{fn, inner}, 0, outputs, x, count, inner, 1, projected[0].value,
                sizeof(Projection) / sizeof(float));
        for (int r = 0; r < count; ++r) {
            const Lanes scale = splat(inverse_rms(x[r], inner, norm_eps));
            each(projected[r].value, outputs, [&](Lanes a) { return a * scale; });
            function(begin + r, projected[r].value);
        }
    });
}

LANES void affine(float* x, int count, float scale, const float* base) {
    for (int i = 0; i < count; ++i) x[i] = x[i] * scale + base[i];
}

// out[i] = sum over s of weights[s] * streams[s, i], ascending.
void mix(const float* weights, const float* streams, int count, int width, float* out) {
    for (int i = 0; i < width; i += 16) {
        const int part = width - i < 16 ? width - i : 16;
        Lanes sum = splat(weights[0]) * load_part(streams + i, part);
        for (int s = 1; s < count; ++s)
            sum = sum + splat(weights[s]) *
                            load_part(streams + static_cast<std::ptrdiff_t>(s) * width + i, part);
        store_part(out + i, sum, part);
    }
}

// Softmax over k, then Sinkhorn: `iterations` column normalisations with row ones between them.
template <int S>
LANES void balance(float* mixing, int streams, int iterations, float eps) {
    const int count = S > 0 ? S : streams;
    const auto c = [&](int j, int k) -> float& { return mixing[j * count + k]; };
    for (int j = 0; j < count; ++j) {
        const float top = largest(&c(j, 0), count, -__builtin_inff());
        for (int k = 0; k < count; ++k) c(j, k) -= top;
    }
    each(mixing, count * count, [](Lanes a) { return exp(a); });
    float total[kMaxStreams];
    const auto rows = [&](float floor) {
        for (int j = 0; j < count; ++j) total[j] = c(j, 0);
        for (int k = 1; k < count; ++k)
            for (int j = 0; j < count; ++j) total[j] += c(j, k);
        for (int j = 0; j < count; ++j) total[j] += floor;
        for (int j = 0; j < count; ++j)
            for (int k = 0; k < count; ++k) c(j, k) /= total[j];
    };
    const auto columns = [&] {
        for (int k = 0; k < count; ++k) total[k] = c(0, k);
        for (int j = 1; j < count; ++j)
            for (int k = 0; k < count; ++k) total[k] += c(j, k);
        for (int k = 0; k < count; ++k) total[k] += eps;
        for (int j = 0; j < count; ++j)
            for (int k = 0; k < count; ++k) c(j, k) /= total[k];
    };
    rows(0.0f);
    for (int i = 0; i < count * count; ++i) mixing[i] += eps;
    columns();
    for (int i = 1; i < iterations; ++i) {
        rows(eps);
        columns();
    }
}

void hyper_pre(const HyperPreCall& call) {
    const int count = call.streams, inner = count * call.width;
    const int outputs = count * (2 + count);
    each_projected(call.x, call.rows, inner, call.fn, outputs, call.norm_eps,
                   [&](int row, float* m) {
                       const std::ptrdiff_t r = row;
                       affine(m, count, call.scale[0], call.base);
                       affine(m + count, count, call.scale[1], call.base + count);
                       affine(m + 2 * count, count * count, call.scale[2], call.base + 2 * count);
                       each(m, 2 * count, [](Lanes a) { return sigmoid(a); });
                       for (int s = 0; s < count; ++s) m[s] += call.eps;
                       for (int s = 0; s < count; ++s)
                           call.post[r * count + s] = 2.0f * m[count + s];
                       float* const mixing = m + 2 * count;
                       if (count == 4) {
                           balance<4>(mixing, count, call.iterations, call.eps);
                       } else {
                           balance<0>(mixing, count, call.iterations, call.eps);
                       }
                       __builtin_memcpy(call.mixing + r * count * count, mixing,
                                        count * count * sizeof(float));
                       mix(m, call.x + r * inner, count, call.width, call.out + r * call.width);
                   });
}

void hyper_head(const HyperHeadCall& call) {
    const int count = call.streams, inner = count * call.width;
    each_projected(call.x, call.rows, inner, call.fn, count, call.norm_eps, [&](int row, float* m) {
        const std::ptrdiff_t r = row;
        affine(m, count, call.scale[0], call.base);
        each(m, count, [](Lanes a) { return sigmoid(a); });
        for (int s = 0; s < count; ++s) m[s] += call.eps;
        mix(m, call.x + r * inner, count, call.width, call.out + r * call.width);
    });
}

void hyper_post(const HyperPostCall& call) {
    const int count = call.streams, width = call.width;
    each_row(call.rows, static_cast<std::ptrdiff_t>(count) * count * width, [&](int row) {
        const std::ptrdiff_t r = row, inner = static_cast<std::ptrdiff_t>(count) * width;
        const float* x = call.x + r * inner;
        const float* y = call.output + r * width;
        const float* post = call.post + r * count;
        const float* mixing = call.mixing + r * count * count;
        for (int i = 0; i < width; i += 16) {
            const int part = width - i < 16 ? width - i : 16;
            const Lanes output = load_part(y + i, part);
            Lanes streams[kMaxStreams];
            for (int j = 0; j < count; ++j)
                streams[j] = load_part(x + static_cast<std::ptrdiff_t>(j) * width + i, part);
            for (int k = 0; k < count; ++k) {
                Lanes sum = splat(post[k]) * output;
                for (int j = 0; j < count; ++j)
                    sum = sum + splat(mixing[j * count + k]) * streams[j];
                store_part(call.out + r * inner + static_cast<std::ptrdiff_t>(k) * width + i, sum,
                           part);
            }
        }
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
