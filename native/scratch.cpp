// Memory by thread, and the first touch of new memory.

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "pool.hpp"

namespace deskside::pool {
namespace {

std::atomic<long> growths{0};

struct Buffer {
    void* memory = nullptr;
    std::size_t bytes = 0;
    ~Buffer() { std::free(memory); }
};

}  // namespace

void* scratch(Slot slot, std::size_t bytes) {
    thread_local Buffer buffers[static_cast<int>(Slot::kCount)];
    Buffer& buffer = buffers[static_cast<int>(slot)];
    if (buffer.bytes < bytes) {
        constexpr std::size_t kPage = 4096;
        const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
        void* const memory = std::aligned_alloc(64, size);
        if (memory == nullptr) throw std::bad_alloc();
        std::free(buffer.memory);
        buffer.memory = memory;
        buffer.bytes = size;
        growths.fetch_add(1);
    }
    return buffer.memory;
}

long scratch_growths() { return growths.load(); }

void touch(unsigned char* memory, std::size_t bytes) {
    constexpr std::size_t kPart = 2u << 20;  // a huge page
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto parts = [&](int part) {
        const std::size_t first = part * kPart;
        const std::size_t last = first + kPart < bytes ? first + kPart : bytes;
        for (std::size_t at = first; at < last; at += page)
            *static_cast<volatile unsigned char*>(memory + at) = 0;
    };
    const std::size_t count = (bytes + kPart - 1) / kPart;
    loop(static_cast<int>(count), static_cast<double>(bytes), parts);
}

}  // namespace deskside::pool
