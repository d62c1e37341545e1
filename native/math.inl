// Elementary functions over lanes: one sequence of IEEE float32 operations, the same in every tier.

namespace deskside::DESKSIDE_TIER {
namespace {

// e^x within 2 ulp; 0 below -104, infinity above 88.73, NaN for NaN.
LANES Lanes exp(Lanes x) {
    const Lanes shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    x = at_most(at_least(x, splat(-105.0f)), splat(89.0f));
    const Lanes magic = fma(x, splat(1.44269504f), shift);
    const Lanes n = magic - shift;
    Lanes r = fma(n, splat(-0.693147182f), x);
    r = fma(n, splat(1.90465421e-9f), r);
    Lanes p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + splat(1.0f);
    return scale_by_power(p, magic);
}

// log(1 + t) for t in [0, 1], as 2 atanh(t / (2 + t)).
LANES Lanes log1p(Lanes t) {
    const Lanes s = t / (splat(2.0f) + t);
    const Lanes square = s * s;
    Lanes p = splat(1.0f / 17);
    p = fma(p, square, splat(1.0f / 15));
    p = fma(p, square, splat(1.0f / 13));
    p = fma(p, square, splat(1.0f / 11));
    p = fma(p, square, splat(1.0f / 9));
    p = fma(p, square, splat(1.0f / 7));
    p = fma(p, square, splat(1.0f / 5));
    p = fma(p, square, splat(1.0f / 3));
    const Lanes twice = s + s;
    return fma(p * square, twice, twice);
}

// log(1 + e^x) without overflow.
LANES Lanes softplus(Lanes x) { return at_least(x, zero()) + log1p(exp(at_most(x, zero() - x))); }

LANES Lanes sigmoid(Lanes x) { return splat(1.0f) / (splat(1.0f) + exp(zero() - x)); }

LANES Lanes silu(Lanes x) { return x / (splat(1.0f) + exp(zero() - x)); }

LANES Lanes swiglu(Lanes gate, Lanes up, float limit) {
    return silu(at_most(gate, splat(limit))) * at_least(at_most(up, splat(limit)), splat(-limit));
}

// x[i] = function(x[i]), i in [0, count).
template <class Function>
LANES void each(float* x, int count, const Function& function) {
    int i = 0;
    for (; i + 16 <= count; i += 16) store(x + i, function(load(x + i)));
    if (i < count) store_part(x + i, function(load_part(x + i, count - i)), count - i);
}

LANES float largest(const float* x, int count, float least) {
    float top = least;
    for (int i = 0; i < count; ++i) top = x[i] > top ? x[i] : top;
    return top;
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
