// Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864): one table for all layers.
#pragma once
#include <cstddef>
#include <vector>

namespace tiltyard {

class RopeTable {
  public:
    RopeTable() = default;
    // angle(position, i) = position * base^(-2i / dimensions), rounded to float only after cos and sin
    RopeTable(int positions, int dimensions, double base);
    int pairs() const { return pairs_; }
    const float* cosine(int position) const { return table_.data() + (size_t)position * pairs_ * 2; }
    const float* sine(int position) const { return cosine(position) + pairs_; }

  private:
    int pairs_ = 0;
    std::vector<float> table_;  // [position][cos of pairs, sin of pairs]
};

}  // namespace tiltyard
