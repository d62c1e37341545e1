// Strips of 32 rows of weights as signed bytes, for tiles.
//
// Weights take a byte each: an index of four bits of code and two of shift looks up the weight
// times up to 2^3, so that blocks of a row whose scales lie within three binades add up in one
// tile. What lies further apart takes another pass.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kStripRows = 32;
constexpr int kTileBytes = 1024;             // 16 rows of 64 bytes
constexpr int kHalfBytes = 2 * kTileBytes;   // half a group of a strip
constexpr int kGroupBytes = 2 * kHalfBytes;  // even elements, then odd ones: low and high nibbles
constexpr int kStretch = 16;                 // groups that are planned, and added up, together
constexpr int kMostPasses = 4;               // spans of up to 14 binades, four at a time

// One pass over a stretch of a strip: which blocks of a row it adds, and shifted how far. What a
// block is shifted by are the two low bits of its byte in `shifts`, less `turn`, modulo 4.
struct Pass {
    const std::uint8_t* shifts;  // of the stretch's first block
    std::ptrdiff_t stride;       // to the next row's
    int turn;
    std::int32_t base[kStripRows];                 // exponent of shift 0, over the floor
    std::uint8_t shift[kStripRows][4 * kStretch];  // where the strip's own scales don't do
    std::uint32_t mask[kStripRows][kStretch];      // 0x0f in blocks that take part
};

// What is decoded and multiplied at once: one group of one pass.
struct Item {
    const Pass* pass;
    int group;
    bool mixed;  // some block stays out
};

// The order of the work. Products of a run of items, those of one pass, add up.
struct Passes {
    Pass* pass;  // [stretches * kMostPasses]
    Item* item;  // [groups * kMostPasses]
    int* end;    // [stretches * kMostPasses] of a run's items
    int items;
    int runs;
};

// Groups of a stretch with some of these blocks.
LANES __mmask16 groups_with(__mmask64 blocks) {
    const __m512i set = _mm512_movm_epi8(blocks);
    return _mm512_test_epi32_mask(set, set);
}

LANES int least_byte(__m512i bytes) {
    const __m256i half =
        _mm256_min_epu8(_mm512_castsi512_si256(bytes), _mm512_extracti64x4_epi64(bytes, 1));
    const __m128i quarter =
        _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i words = _mm_min_epu8(quarter, _mm_srli_epi16(quarter, 8));
    return _mm_extract_epi8(_mm_minpos_epu16(words), 0);
}

LANES int greatest_byte(__m512i bytes) {
    return 255 - least_byte(_mm512_xor_si512(bytes, _mm512_set1_epi8(-1)));
}

// The scale bytes of blocks of a stretch, row by row.
struct StretchScales {
    const std::uint8_t* first;
    std::ptrdiff_t stride;
    __mmask64 present;

    LANES __m512i row(int i) const { return _mm512_maskz_loadu_epi8(present, first + i * stride); }
};

// One pass over the blocks of a row: returns those that it takes.
LANES __mmask64 take_pass(Pass& to, int row, __m512i scales, int floor, __mmask64 left) {
    const int least = least_byte(_mm512_mask_blend_epi8(left, _mm512_set1_epi8(-1), scales));
    const __m512i over = _mm512_sub_epi8(scales, _mm512_set1_epi8(static_cast<char>(least)));
    const __mmask64 taken = _mm512_mask_cmple_epu8_mask(left, over, _mm512_set1_epi8(3));
    _mm512_storeu_si512(to.shift[row], _mm512_maskz_mov_epi8(taken, over));
    _mm512_storeu_si512(to.mask[row], _mm512_maskz_set1_epi8(taken, 15));
    to.base[row] = least - floor;
    return taken;
}

// Most stretches take one pass that needs no plan: all blocks lie within three binades.
bool plan_whole(const StretchScales& scales, int floor, Pass& to) {
    __m512i least = _mm512_set1_epi8(-1), most = _mm512_setzero_si512();
    for (int i = 0; i < kStripRows; ++i) {
        const __m512i bytes = scales.row(i);
        least = _mm512_mask_min_epu8(least, scales.present, least, bytes);
        most = _mm512_max_epu8(most, bytes);
    }
    const int low = least_byte(least);
    if (low < floor || greatest_byte(most) - low > 3) return false;
    to.shifts = scales.first;
    to.stride = scales.stride;
    to.turn = low & 3;
    for (int i = 0; i < kStripRows; ++i) to.base[i] = low - floor;
    return true;
}

// One pass over what is `left` of each row; returns whether something stays.
bool plan_part(const StretchScales& scales, int floor, __mmask64 (&left)[kStripRows], Pass& to,
               unsigned& some, unsigned& mixed) {
    __mmask64 any = 0, out = 0, more = 0;
    for (int i = 0; i < kStripRows; ++i) {
        const __mmask64 taken = take_pass(to, i, scales.row(i), floor, left[i]);
        left[i] &= ~taken;
        any |= taken;
        out |= ~taken;
        more |= left[i];
    }
    to.shifts = to.shift[0];
    to.stride = sizeof to.shift[0];
    to.turn = 0;
    some = groups_with(any);
    mixed = groups_with(out);
    return more != 0;
}

void keep_run(Passes& to, int first, int groups, unsigned some, unsigned mixed) {
    for (int g = 0; g < kStretch && first + g < groups; ++g)
        if ((some >> g & 1) != 0)
            to.item[to.items++] = {to.pass + to.runs, first + g, (mixed >> g & 1) != 0};
    if (some != 0) to.end[to.runs++] = to.items;
}

// Plans the passes over one stretch of a strip.
void plan_stretch(const WeightRows& w, int first, int groups, Passes& to) {
    const std::ptrdiff_t blocks = w.inner / 32;
    const std::ptrdiff_t count = blocks - 4 * first;
    const __mmask64 present = count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
    const StretchScales scales = {w.scales + 4 * first, blocks, present};
    if (count % 4 == 0 && plan_whole(scales, w.floor, to.pass[to.runs]))
        return keep_run(to, first, groups, ~0u, 0);
    const __m512i floor = _mm512_set1_epi8(static_cast<char>(w.floor));
    __mmask64 left[kStripRows];
    for (int i = 0; i < kStripRows; ++i)
        left[i] = _mm512_mask_cmpge_epu8_mask(present, scales.row(i), floor);
    bool more = true;
    for (int number = 0; more && number < kMostPasses; ++number) {
        unsigned some = 0, mixed = 0;
        more = plan_part(scales, w.floor, left, to.pass[to.runs], some, mixed);
        keep_run(to, first, groups, some, mixed);
    }
}

void plan_passes(const WeightRows& w, int groups, Passes& to) {
    to.items = to.runs = 0;
    for (int first = 0; first < groups; first += kStretch) plan_stretch(w, first, groups, to);
}

// Weights as integers times two to the power of 0 to 3: four bits of code, two of shift and turn.
LANES __m512i shifted_weights(int turn) {
    const __m512i once = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m512i twice = _mm512_add_epi8(once, once);
    const __m512i four = _mm512_add_epi8(twice, twice);
    const __m512i eight = _mm512_add_epi8(four, four);
    const __m512i low = _mm512_mask_blend_epi64(0x0c, once, twice);
    const __m512i high = _mm512_mask_blend_epi64(0xc0, four, eight);
    const __m512i straight = _mm512_mask_blend_epi64(0xf0, low, high);
    const __m512i quarters = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutexvar_epi64(_mm512_sub_epi64(quarters, _mm512_set1_epi64(2 * turn)),
                                    straight);
}

// For each byte of a group, where in 64 bits with the bytes of its four blocks, twice, the two low
// bits of its own block's start, less 4: they land above a nibble of code.
LANES __m512i bits_of_blocks() {
    const __m512i first =
        _mm512_setr_epi32(60, 60, 60, 60, 4, 4, 4, 4, 12, 12, 12, 12, 20, 20, 20, 20);
    return _mm512_mullo_epi32(first, _mm512_set1_epi32(0x01010101));
}

// A constant that stays in its register: the compiler would make it anew for every row.
LANES __m512i kept(__m512i constant) {
    asm("" : "+v"(constant));
    return constant;
}

// The mask of a group: a byte of `mask` for each of four blocks. A block that stays out has no
// shift either, so its index is 0, and so is its weight.
LANES __m512i taking_part(std::uint32_t mask) {
    const __m512i block = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i bytes = _mm512_mullo_epi32(block, _mm512_set1_epi32(0x01010101));
    return _mm512_shuffle_epi8(_mm512_set1_epi32(static_cast<int>(mask)), bytes);
}

// The bytes of rows [kBegin, kEnd) of one group of a strip, as a pass takes them.
template <bool kSome, int kBegin, int kEnd>
LANES void decode_rows(const WeightRows& w, int group, const Pass& pass, std::int8_t* out) {
    const std::ptrdiff_t stride = w.inner / 2;
    const __m512i table = kept(shifted_weights(pass.turn)), nibble = kept(_mm512_set1_epi8(15));
    const __m512i bits = kept(bits_of_blocks());
    const int left = static_cast<int>(stride) - group * 64, column = group % kStretch;
    const __mmask64 present = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const std::uint8_t* codes = w.codes + group * 64 + kBegin * stride;
    const std::uint8_t* shifts = pass.shifts + kBegin * pass.stride + 4 * column;
    const std::uint8_t* next = w.next_codes + group * 64 + kBegin * stride;
    // Of the next strip's scales, which are planned all at once, 64 bytes for 16 rows of a group.
    const std::uint8_t* const scales = w.next_scales + group * 128;
    _mm_prefetch(reinterpret_cast<const char*>(scales + kBegin * 4), _MM_HINT_T1);
#pragma GCC unroll 16
    for (int i = kBegin; i < kEnd; ++i, codes += stride, next += stride, shifts += pass.stride) {
        const __m512i code =
            kSome ? _mm512_maskz_loadu_epi8(present, codes) : _mm512_loadu_si512(codes);
        // The next strip into the second cache.
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        std::uint32_t four;
        __builtin_memcpy(&four, shifts, sizeof four);
        const __m512i shift =
            _mm512_multishift_epi64_epi8(bits, _mm512_set1_epi32(static_cast<int>(four)));
        const __m512i mask = kSome ? taking_part(pass.mask[i][column]) : nibble;
        const __m512i even = _mm512_ternarylogic_epi32(mask, code, shift, 0xca);
        const __m512i odd =
            _mm512_ternarylogic_epi32(mask, _mm512_srli_epi16(code, 4), shift, 0xca);
        _mm512_store_si512(out + i * 64, _mm512_permutexvar_epi8(even, table));
        _mm512_store_si512(out + kHalfBytes + i * 64, _mm512_permutexvar_epi8(odd, table));
    }
}

template <int kBegin, int kEnd>
LANES void decode_item(const WeightRows& w, const Item& item, std::int8_t* out) {
    if (item.mixed)
        decode_rows<true, kBegin, kEnd>(w, item.group, *item.pass, out);
    else
        decode_rows<false, kBegin, kEnd>(w, item.group, *item.pass, out);
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
