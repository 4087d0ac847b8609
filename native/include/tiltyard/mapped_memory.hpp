// Anonymous pages that read as zero and cost nothing until they are touched.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tiltyard {

class MappedMemory {
  public:
    MappedMemory() = default;
    // `slack` readable bytes follow: kernels prefetch a little past the end. Huge pages are asked for, not
    // required.
    explicit MappedMemory(size_t bytes, size_t slack = 8192);
    ~MappedMemory();
    MappedMemory(MappedMemory&& other) noexcept;
    MappedMemory& operator=(MappedMemory&& other) noexcept;
    MappedMemory(const MappedMemory&) = delete;
    MappedMemory& operator=(const MappedMemory&) = delete;

    uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    void release();
    uint8_t* base_ = nullptr;
    size_t mapped_ = 0;
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace tiltyard
