// A plain read of memory: what a kernel that streams weights is measured against.

namespace deskside::DESKSIDE_TIER {
namespace {

constexpr int kReadBlock = 1 << 18;

typedef std::uint64_t Cell __attribute__((vector_size(64), aligned(1)));

std::uint64_t read_block(const std::uint8_t* bytes, int count) {
    Cell total[4] = {};
    int i = 0;
    for (; i + 256 <= count; i += 256) {
        __builtin_prefetch(bytes + i + 8192);
        __builtin_prefetch(bytes + i + 8192 + 64);
        __builtin_prefetch(bytes + i + 8192 + 128);
        __builtin_prefetch(bytes + i + 8192 + 192);
        for (int j = 0; j < 4; ++j) total[j] += *reinterpret_cast<const Cell*>(bytes + i + 64 * j);
    }
    const Cell all = total[0] + total[1] + total[2] + total[3];
    std::uint64_t sum = 0;
    for (int j = 0; j < 8; ++j) sum += all[j];
    for (; i < count; ++i) sum += bytes[i];
    return sum;
}

void read(const ReadCall& call) {
    pool::loop(ceil_div(call.count, kReadBlock), 1e9, [&](int block) {
        const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(block) * kReadBlock;
        const std::ptrdiff_t left = call.count - first;
        const int count = left < kReadBlock ? static_cast<int>(left) : kReadBlock;
        __atomic_fetch_add(call.sum, read_block(call.bytes + first, count), __ATOMIC_RELAXED);
    });
}

}  // namespace
}  // namespace deskside::DESKSIDE_TIER
