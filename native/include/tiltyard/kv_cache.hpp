// Keys and values in fixed blocks of 32 tokens. A block holds every layer, so copying or spilling one is one
// copy.
#pragma once
#include "tiltyard/kernels.hpp"
#include "tiltyard/mapped_memory.hpp"

namespace tiltyard {

class KvCache {
  public:
    KvCache() = default;
    // Lazily committed: a block costs memory once it is written. Throws std::bad_alloc when address space
    // runs out.
    KvCache(int blocks, int layers, int kv_heads, int head_dim, KvPrecision precision);

    static size_t part_bytes(int head_dim, KvPrecision precision);
    static size_t block_bytes(int layers, int kv_heads, int head_dim, KvPrecision precision);

    int blocks() const { return blocks_; }
    KvPrecision precision() const { return precision_; }
    size_t part_bytes() const { return part_bytes_; }  // keys (or values) of one layer and head in one block
    size_t block_bytes() const { return block_bytes_; }
    uint8_t* block(int i) const { return memory_.data() + (size_t)i * block_bytes_; }
    // offset in a block of the keys of one layer and head; its values follow `part_bytes` later
    size_t offset(int layer, int head) const { return ((size_t)layer * heads_ + head) * 2 * part_bytes_; }

  private:
    MappedMemory memory_;
    int blocks_ = 0, heads_ = 0;
    KvPrecision precision_ = KvPrecision::f16;
    size_t part_bytes_ = 0, block_bytes_ = 0;
};

}  // namespace tiltyard
