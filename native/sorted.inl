// Rows sorted by expert, so that all rows of an expert share one decode of its weights.

namespace deskside::DESKSIDE_TIER {
namespace {

// Rows that share one round: bounds the memory between the phases.
constexpr int kMoeRows = 512;

struct Routed {
    int experts;        // with at least one row here
    const int* expert;  // [experts]
    const int* begin;   // [experts + 1] into the sorted pairs
    const int* pair;    // sorted pairs: row * topk + slot
    const int* place;   // [rows * topk] where a pair was sorted to; -1 for a skipped one
    int pairs;
};

template <class T>
T* carve(char*& memory, std::ptrdiff_t count) {
    T* const taken = reinterpret_cast<T*>(memory);
    memory += (count * static_cast<std::ptrdiff_t>(sizeof(T)) + 63) / 64 * 64;
    return taken;
}

Routed sort_by_expert(const std::int64_t* ids, int rows, int topk, int experts, char*& memory) {
    const int all = rows * topk;
    int* const expert = carve<int>(memory, experts);
    int* const begin = carve<int>(memory, experts + 1);
    int* const next = carve<int>(memory, experts + 1);
    int* const pair = carve<int>(memory, all);
    int* const place = carve<int>(memory, all);
    for (int e = 0; e <= experts; ++e) next[e] = 0;
    for (int i = 0; i < all; ++i)
        if (ids[i] >= 0) ++next[ids[i] + 1];
    for (int e = 0; e < experts; ++e) next[e + 1] += next[e];
    int found = 0;
    for (int e = 0; e < experts; ++e) {
        if (next[e + 1] == next[e]) continue;
        expert[found] = e;
        begin[found++] = next[e];
    }
    begin[found] = next[experts];
    for (int i = 0; i < all; ++i) {
        place[i] = ids[i] >= 0 ? next[ids[i]]++ : -1;
        if (place[i] >= 0) pair[place[i]] = i;
    }
    return {found, expert, begin, pair, place, begin[found]};
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
