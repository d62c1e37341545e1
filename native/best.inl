// The greedy choice of a token.

namespace deskside::DESKSIDE_TIER {
namespace {

// Zero, or NaN where a number is none: what is not finite, minus itself, is NaN.
float doubt(const float* x, int count) {
    Lanes total = zero();
    for (int i = 0; i < count; i += 16) {
        const Lanes a = load_part(x + i, count - i < 16 ? count - i : 16);
        total = total + (a - a);
    }
    return sum(total);
}

// Of at least one number, all of them finite.
float highest(const float* x, int count) {
    alignas(64) float tops[16];
    Lanes top = splat(x[0]);
    int i = 0;
    for (; i + 16 <= count; i += 16) top = at_least(top, load(x + i));
    store(tops, top);
    return largest(x + i, count - i, largest(tops, 16, x[0]));
}

void best(const BestCall& call) {
    each_row(call.rows, call.columns, [&](int row) {
        const float* const x = call.x + static_cast<std::ptrdiff_t>(row) * call.columns;
        std::int64_t place = -1;
        if (doubt(x, call.columns) == 0.0f) {
            const float top = highest(x, call.columns);
            do ++place;
            while (x[place] != top);
        }
        call.out[row] = place;
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
