#include "tiltyard/mapped_memory.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace tiltyard {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

MappedMemory::MappedMemory(size_t bytes, size_t slack) : size_(bytes) {
    mapped_ = (bytes + slack + 2 * kHugePage - 1) / kHugePage * kHugePage;  // room to align the start
    void* base =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        mapped_ = 0;
        throw std::bad_alloc();
    }
    base_ = static_cast<uint8_t*>(base);
    data_ = base_ + (kHugePage - reinterpret_cast<uintptr_t>(base_) % kHugePage) % kHugePage;
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(data_, bytes, MADV_HUGEPAGE);  // advice: failure changes only speed
#endif
}

MappedMemory::~MappedMemory() { release(); }

MappedMemory::MappedMemory(MappedMemory&& other) noexcept { *this = std::move(other); }

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
    if (this != &other) {
        release();
        base_ = std::exchange(other.base_, nullptr);
        mapped_ = std::exchange(other.mapped_, 0);
        data_ = std::exchange(other.data_, nullptr);
        size_ = std::exchange(other.size_, 0);
    }
    return *this;
}

void MappedMemory::release() {
    if (base_) munmap(base_, mapped_);
    base_ = data_ = nullptr;
}

}  // namespace tiltyard
