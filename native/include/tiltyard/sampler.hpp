// From logits to a token: pure functions with the same bits on every machine.
//
// Weights are turned into integers before anything is added up, so that every sum is exact and no order of
// addition, no sort and no SIMD width can show. docs/numerics.md, "Sampling", is the specification.
#pragma once
#include <cstdint>
#include <vector>

#include "tiltyard/kernels.hpp"

namespace tiltyard {

struct SamplingRow {
    float temperature;  // 0: the highest logit, lowest id on ties
    int top_k;          // 0: off
    float top_p;        // 1: off
    float min_p;        // 0: off
    uint64_t seed, position;
};

class Sampler {
  public:
    Sampler(const KernelTable& kernels, int vocab);
    // Throws std::invalid_argument for a bad parameter, a NaN, or a row without a finite logit.
    int sample(const float* logits, const SamplingRow& row);

  private:
    struct Cut;                  // the last token kept, in the order (logit descending, id ascending)
    int64_t mass(int id) const;  // floor(weight * 2^40)
    template <class Enough>
    void keep_likeliest(Enough enough);
    int64_t kept_mass() const;
    void drop_below(const Cut& cut, const float* logits, float least);
    void fill_buckets();
    std::vector<int> ranked_bucket(const float* logits, int bucket) const;
    void keep_top_k(const float* logits, int k);
    void keep_top_p(const float* logits, float top_p, int64_t total, bool narrowed);
    int draw_of_all(int64_t target) const;
    [[noreturn]] void refuse_nan(const float* logits) const;

    const KernelTable& kernels_;
    const int vocab_;
    std::vector<float> scaled_, weights_;
    std::vector<int64_t> block_mass_;
    std::vector<int32_t> kept_;  // ascending; the first `count_` count
    int count_ = 0;
    std::vector<int64_t> bucket_mass_;
    std::vector<int> bucket_count_;
};

// repetition over all `tokens` (distinct), presence and frequency over those with output_counts > 0; as vLLM
// does it
void apply_penalties(float* row, int vocab, const int32_t* tokens, const int32_t* output_counts, int n,
                     float repetition, float presence, float frequency);
void add_bias(float* row, int vocab, const int32_t* tokens, const float* values, int n);

// of the softmax at temperature 1
void log_probabilities(const KernelTable& kernels, const float* logits, int vocab, const int32_t* tokens,
                       int n, float* out);
void top_log_probabilities(const KernelTable& kernels, const float* logits, int vocab, int k, int32_t* tokens,
                           float* out);

}  // namespace tiltyard
