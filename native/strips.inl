// A strip of weights times panels of eight vectors, by AMX tiles of signed bytes: exact sums.
//
// A tile product adds 16 rows of weights times a panel over half a group. Vectors have exponents of
// their own for each group, so products are shifted, and add up in 32 bits over a stretch: a group
// is below 2^21, a stretch below 2^25, which leaves room for six binades. A group in which some
// vector lies further away adds to the 64-bit totals by itself.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kPanelRows = 8;
constexpr int kPanelBytes = 2 * kTileBytes;  // a group of a panel: even elements, then odd ones
constexpr int kStripSums = kStripRows * kPanelRows;
constexpr int kMostOver = 6;
constexpr long kMostSum = 128L * 12 * 8 * kGroup;  // bytes of a vector and of weights
static_assert((kMostSum << kMostOver) * kStretch < 1L << 31);

// How a group's products of a panel are shifted.
struct alignas(64) PanelStep {
    std::int32_t over[2 * kPanelRows];  // beyond the stretch's, of a vector's low and high bytes
    bool wide;                          // some lie outside of 32 bits
};

// What all rows of a strip are multiplied with.
struct Panels {
    const std::int8_t* tiles;   // [panels, groups, 2, 16, 8, 2, 4]
    const PanelStep* steps;     // [panels, groups]
    const std::int64_t* least;  // [panels, stretches, 8]: what sums of a stretch are shifted by
    int count;
    int groups;
};

// Memory of one thread for one strip.
struct Strip {
    static constexpr int kAhead = 2;  // items that are decoded before they are multiplied

    Passes passes;
    std::int8_t* weights;   // [kAhead + 1, kGroupBytes]
    std::int32_t* product;  // [2, 32 rows, 8 vectors, low and high]
    std::int32_t* sum;      // [panels, 32 rows, 8 vectors, low and high], of one run
    std::int64_t* total;    // [panels, 32 rows, 8 vectors]
};

Strip carve_strip(int groups, int panels) {
    const std::ptrdiff_t runs = ceil_div(groups, kStretch) * kMostPasses;
    const std::ptrdiff_t items = static_cast<std::ptrdiff_t>(groups) * kMostPasses;
    const std::ptrdiff_t sums = static_cast<std::ptrdiff_t>(panels) * kStripSums;
    const std::size_t bytes = runs * (sizeof(Pass) + sizeof(int)) + items * sizeof(Item) +
                              (Strip::kAhead + 1) * kGroupBytes + 2 * kHalfBytes + sums * 16 +
                              8 * 64;
    char* memory = static_cast<char*>(pool::scratch(pool::Slot::kStrip, bytes));
    const Passes passes = {carve<Pass>(memory, runs), carve<Item>(memory, items),
                           carve<int>(memory, runs), 0, 0};
    return {passes, carve<std::int8_t>(memory, (Strip::kAhead + 1) * kGroupBytes),
            carve<std::int32_t>(memory, 2 * kHalfBytes / 4), carve<std::int32_t>(memory, 2 * sums),
            carve<std::int64_t>(memory, sums)};
}

// The compiler knows of no memory behind a tile: what it reads must be written before, and what it
// writes read after.
LANES void tile_fence() { asm volatile("" ::: "memory"); }

// Adds half a group. Tile numbers must be literals: 0 and 1 hold weights, 2 a panel, 4 and 5 the
// sums of even steps, 6 and 7 of odd ones.
LANES void multiply_half(const std::int8_t* weights, const std::int8_t* panel, bool odd_step) {
    tile_fence();
    _tile_loadd(0, weights, 64);
    _tile_loadd(2, panel, 64);
    if (odd_step)
        _tile_dpbssd(6, 0, 2);
    else
        _tile_dpbssd(4, 0, 2);
    _tile_loadd(1, weights + kTileBytes, 64);
    if (odd_step)
        _tile_dpbssd(7, 1, 2);
    else
        _tile_dpbssd(5, 1, 2);
}

LANES void clear_tiles(bool odd_step) {
    if (odd_step) {
        _tile_zero(6);
        _tile_zero(7);
    } else {
        _tile_zero(4);
        _tile_zero(5);
    }
}

LANES void store_tiles(std::int32_t* product, bool odd_step) {
    tile_fence();
    if (odd_step) {
        _tile_stored(6, product, 64);
        _tile_stored(7, product + kTileBytes / 4, 64);
    } else {
        _tile_stored(4, product, 64);
        _tile_stored(5, product + kTileBytes / 4, 64);
    }
    tile_fence();
}

// sum += product, shifted.
LANES void add_narrow(const std::int32_t* product, const std::int32_t* over, std::int32_t* sum) {
    const __m512i by = _mm512_load_si512(over);
#pragma GCC unroll 32
    for (int i = 0; i < kStripRows; ++i) {
        const __m512i shifted = _mm512_sllv_epi32(_mm512_load_si512(product + 16 * i), by);
        _mm512_store_si512(sum + 16 * i,
                           _mm512_add_epi32(_mm512_load_si512(sum + 16 * i), shifted));
    }
}

// total += low + 256 * high, shifted by a vector's `power` and a row's base.
void add_wide(const std::int32_t* both, __m512i power, const std::int32_t* base,
              std::int64_t* total) {
    for (int i = 0; i < kStripRows; ++i) {
        const __m512i pair = _mm512_load_si512(both + 16 * i);
        const __m512i low = _mm512_srai_epi64(_mm512_slli_epi64(pair, 32), 32);
        const __m512i high = _mm512_slli_epi64(_mm512_srai_epi64(pair, 32), 8);
        const __m512i by = _mm512_add_epi64(power, _mm512_set1_epi64(base[i]));
        const __m512i sum = _mm512_sllv_epi64(_mm512_add_epi64(low, high), by);
        _mm512_store_si512(total + 8 * i, _mm512_add_epi64(_mm512_load_si512(total + 8 * i), sum));
    }
}

struct [[gnu::packed]] TileShapes {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// One strip of weights and the panels that it is multiplied with, a step for each item and panel. A
// step decodes for a later one, and stores and adds what the two before it have multiplied, so that
// nothing waits for a tile.
struct StripProduct {
    WeightRows w;
    const Panels& x;
    Strip strip;

    struct Step {
        const Item* item;
        int panel;
        std::int32_t* product;
    };

    std::int8_t* weights(int item) const {
        return strip.weights + item % (Strip::kAhead + 1) * kGroupBytes;
    }

    template <int kBegin, int kEnd>
    LANES void decode(int item) const {
        if (item < strip.passes.items)
            decode_item<kBegin, kEnd>(w, strip.passes.item[item], weights(item));
    }

    LANES void multiply(int item, int panel, bool odd_step) const {
        const std::ptrdiff_t part =
            static_cast<std::ptrdiff_t>(panel) * x.groups + strip.passes.item[item].group;
        const std::int8_t* const left = weights(item);
        const std::int8_t* const right = x.tiles + part * kPanelBytes;
        clear_tiles(odd_step);
        multiply_half(left, right, odd_step);
        if (panel == 0) decode<0, 16>(item + Strip::kAhead);
        multiply_half(left + kHalfBytes, right + kTileBytes, odd_step);
        if (panel == 0) decode<16, 32>(item + Strip::kAhead);
    }

    __m512i least(int panel, int group) const {
        const std::ptrdiff_t stretches = ceil_div(x.groups, kStretch);
        return _mm512_load_si512(x.least + (panel * stretches + group / kStretch) * kPanelRows);
    }

    LANES void add(const Step& step) const {
        const int group = step.item->group;
        const PanelStep& how = x.steps[static_cast<std::ptrdiff_t>(step.panel) * x.groups + group];
        if (!how.wide)
            return add_narrow(step.product, how.over, strip.sum + step.panel * 2 * kStripSums);
        const __m512i over = _mm512_srai_epi64(_mm512_load_si512(how.over), 32);
        add_wide(step.product, _mm512_add_epi64(least(step.panel, group), over),
                 step.item->pass->base, strip.total + step.panel * kStripSums);
    }

    // Adds the products of a run of items to the totals.
    void add_run(int begin, int end) const {
        const Item* const items = strip.passes.item;
        __builtin_memset(strip.sum, 0, static_cast<std::size_t>(x.count) * kStripSums * 8);
        Step last = {}, before = {};
        bool odd_step = false;
        for (int item = begin; item < end; ++item)
            for (int panel = 0; panel < x.count; ++panel, odd_step = !odd_step) {
                std::int32_t* const product = strip.product + (odd_step ? kHalfBytes / 4 : 0);
                if (odd_step)
                    multiply(item, panel, true);
                else
                    multiply(item, panel, false);
                // The product before last must be added before its memory is stored to again.
                if (before.item != nullptr) add(before);
                if (last.item != nullptr) store_tiles(last.product, !odd_step);
                before = last;
                last = {items + item, panel, product};
            }
        if (before.item != nullptr) add(before);
        store_tiles(last.product, !odd_step);
        add(last);
        for (int panel = 0; panel < x.count; ++panel)
            add_wide(strip.sum + panel * 2 * kStripSums, least(panel, items[begin].group),
                     items[begin].pass->base, strip.total + panel * kStripSums);
    }

    void run() {
        plan_passes(w, x.groups, strip.passes);
        __builtin_memset(strip.total, 0, static_cast<std::size_t>(x.count) * kStripSums * 8);
        decode<0, 32>(0);
        decode<0, 32>(1);
        for (int run = 0, begin = 0; run < strip.passes.runs; begin = strip.passes.end[run++])
            add_run(begin, strip.passes.end[run]);
    }
};

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
