// Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864): a table for the layers that
// share one.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace tiltyard {

// How fast each pair turns, in radians a position, and what multiplies sine and cosine (YaRN). Scaled
// frequencies are made in Python (src/tiltyard/kernels/rope.py), from additions, products and quotients
// alone.
struct RopeFrequencies {
    std::vector<double> frequency;
    double amplitude = 1;
};

// base^(-2i / dimensions): no scaling
RopeFrequencies plain_frequencies(int dimensions, double base);

class RopeTable {
  public:
    RopeTable() = default;
    // angle(position, i) = position * frequency[i], rounded to float only after cos and sin
    explicit RopeTable(RopeFrequencies frequencies) : f_(std::move(frequencies)) {}
    void divide(const std::vector<float>& factors);  // Llama 3: frequency[i] / factors[i]
    void cover(int positions);  // compute the rows below `positions` that are not there yet
    int pairs() const { return (int)f_.frequency.size(); }
    const float* cosine(int position) const { return table_.data() + (size_t)position * pairs() * 2; }
    const float* sine(int position) const { return cosine(position) + pairs(); }

  private:
    int rows_ = 0;
    RopeFrequencies f_;
    std::vector<float> table_;  // [position][cos of pairs, sin of pairs]
};

}  // namespace tiltyard
