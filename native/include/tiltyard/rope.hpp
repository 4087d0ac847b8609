// Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864): one table for all layers.
#pragma once
#include <cstddef>
#include <vector>

namespace tiltyard {

class RopeTable {
  public:
    RopeTable() = default;
    // angle(position, i) = position * base^(-2i / dimensions), rounded to float only after cos and sin
    RopeTable(int dimensions, double base);
    void cover(int positions);  // compute the rows below `positions` that are not there yet
    int pairs() const { return (int)frequency_.size(); }
    const float* cosine(int position) const { return table_.data() + (size_t)position * pairs() * 2; }
    const float* sine(int position) const { return cosine(position) + pairs(); }

  private:
    int rows_ = 0;
    std::vector<double> frequency_;
    std::vector<float> table_;  // [position][cos of pairs, sin of pairs]
};

}  // namespace tiltyard
