// Routing of rows to experts, and the pooling of raw rows into compressed entries.

namespace deskside::DESKSIDE_TIER {
namespace {

LANES Lanes affinity(Lanes logits) { return root(softplus(logits)); }

// weights[k] = scores[ids[k]] / their sum, ascending in k, * scale.
void weigh_experts(const float* scores, const std::int64_t* ids, int topk, float scale,
                   float* weights) {
    float total = scores[ids[0]];
    for (int k = 1; k < topk; ++k) total += scores[ids[k]];
    for (int k = 0; k < topk; ++k) weights[k] = scores[ids[k]] / total * scale;
}

// The largest first, NaN above all numbers, ties to the lower index.
void best_experts(float* biased, int experts, int topk, std::int64_t* ids) {
    for (int k = 0; k < topk; ++k) {
        int best = -1;
        for (int e = 0; e < experts; ++e) {
            if (biased[e] == -__builtin_inff()) continue;  // taken
            const bool nan = biased[e] != biased[e];
            if (best < 0 || biased[e] > biased[best] || (nan && biased[best] == biased[best]))
                best = e;
        }
        if (best < 0) best = k;
        ids[k] = best;
        biased[best] = -__builtin_inff();
    }
}

void route(const RouteCall& call) {
    each_row(call.rows, static_cast<std::ptrdiff_t>(call.experts) * (16 + call.topk), [&](int row) {
        const std::ptrdiff_t r = row;
        const int padded = (call.experts + 15) / 16 * 16;
        float* const scores =
            static_cast<float*>(pool::scratch(pool::Slot::kTile, 2 * padded * sizeof(float)));
        float* const biased = scores + padded;
        __builtin_memcpy(scores, call.logits + r * call.experts, call.experts * sizeof(float));
        each(scores, call.experts, [](Lanes a) { return affinity(a); });
        std::int64_t* const ids = call.ids + r * call.topk;
        if (call.bias != nullptr) {
            for (int e = 0; e < call.experts; ++e) biased[e] = scores[e] + call.bias[e];
            best_experts(biased, call.experts, call.topk, ids);
        }
        weigh_experts(scores, ids, call.topk, call.scale, call.weights + r * call.topk);
    });
}

void pool_rows(const PoolCall& call) {
    const std::ptrdiff_t width = call.width, length = call.length;
    each_row(call.entries, width * length * 8, [&](int entry) {
        const std::ptrdiff_t first = entry * call.entry_stride;
        const bool* absent = call.absent + entry * length;
        for (int i = 0; i < call.width; i += 16) {
            const int part = call.width - i < 16 ? call.width - i : 16;
            const auto at = [&](const float* rows, int j) {
                return load_part(rows + first + j * call.row_stride + i, part);
            };
            Lanes top = splat(-__builtin_inff());
            for (int j = 0; j < call.length; ++j)
                if (!absent[j]) top = at_least(top, at(call.scores, j));
            Lanes total = zero(), sum = zero();
            for (int j = 0; j < call.length; ++j) {
                if (absent[j]) continue;
                const Lanes weight = exp(at(call.scores, j) - top);
                total = total + weight;
                sum = fma(weight, at(call.values, j), sum);
            }
            store_part(call.out + entry * width + i, sum / total, part);
        }
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
