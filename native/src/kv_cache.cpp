#include "tiltyard/kv_cache.hpp"

#include <limits>
#include <new>

namespace tiltyard {

size_t KvCache::part_bytes(int head_dim, KvPrecision precision) {
    const size_t values = (size_t)head_dim * kBlockTokens;
    return precision == KvPrecision::f16 ? values * 2 : values + kBlockTokens * sizeof(float);
}

size_t KvCache::block_bytes(int layers, int kv_heads, int head_dim, KvPrecision precision) {
    return (size_t)layers * kv_heads * 2 * part_bytes(head_dim, precision);
}

KvCache::KvCache(int blocks, int layers, int kv_heads, int head_dim, KvPrecision precision)
    : blocks_(blocks),
      heads_(kv_heads),
      precision_(precision),
      part_bytes_(part_bytes(head_dim, precision)),
      block_bytes_(block_bytes(layers, kv_heads, head_dim, precision)) {
    if ((size_t)blocks > std::numeric_limits<ptrdiff_t>::max() / block_bytes_) throw std::bad_alloc();
    memory_ = MappedMemory((size_t)blocks * block_bytes_);
}

}  // namespace tiltyard
