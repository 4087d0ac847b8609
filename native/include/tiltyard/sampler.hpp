// From logits to a token: pure functions with the same bits on every machine.
//
// Weights are turned into integers before anything is added up, so that every sum is exact and no order of
// addition, no sort and no SIMD width can show. docs/numerics.md, "Sampling", is the specification.
#pragma once
#include <algorithm>
#include <array>
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

// Where the log probabilities of one row go: of the token that is chosen, and of the k likeliest.
struct RowScores {
    int k = 0;
    float* logprob = nullptr;  // null: none are wanted
    int32_t* top_tokens = nullptr;
    float* top_logprobs = nullptr;
};

class Sampler {
  public:
    Sampler(const KernelTable& kernels, int vocab);
    // Throws std::invalid_argument for a bad parameter, a NaN, or a row without a finite logit.
    int sample(const float* logits, const SamplingRow& row);
    // The same of a row that may be masked; -1 where the mask leaves none. Scores are of the logits as they
    // come, before the mask. `mask`: null for none; a masked row is changed.
    int choose(float* logits, const SamplingRow& row, const uint32_t* mask, const RowScores& scores);

  private:
    static constexpr int kBuckets = 1024;
    struct Candidate {
        float logit;
        int id;
        float weight;
        int64_t mass;
    };
    static bool ranks_before(const Candidate& a, const Candidate& b);
    const std::vector<Candidate>& ranked_bucket(float maximum, int bucket);

    int choose_unmasked(const float* logits, const SamplingRow& row, float maximum, bool clean);
    struct Cut;  // the last token kept, in the order (logit descending, id ascending)
    Cut find_cut(const float* logits, float maximum, const SamplingRow& row, int64_t all);
    Cut cut_short_list(float top_p, int k);
    bool gather_likeliest(const float* logits, float maximum, const SamplingRow& row);
    void gather(const float* logits, float lowest, float maximum, float temperature);
    void count_buckets(float maximum);
    int bucket_of(float below) const { return std::min(kBuckets - 1, (int)(below * bucket_scale_)); }
    int64_t measure_masses(const float* logits, float maximum, float temperature);
    int draw(const SamplingRow& row, int64_t total) const;
    int draw_from_all(const float* logits, const SamplingRow& row, float maximum, int64_t total);

    const KernelTable& kernels_;
    const int vocab_, blocks_;  // blocks of kRowBlock
    std::vector<float> maxima_, largest_;
    std::vector<int64_t> masses_;  // of blocks
    std::vector<int32_t> ids_;
    std::vector<float> values_, weights_;         // of the ids
    std::vector<Candidate> candidates_, ranked_;  // the tokens that are looked at, and those of one bucket
    float bucket_scale_ = 0;
    std::array<int64_t, kBuckets> bucket_mass_;
    std::array<int, kBuckets> bucket_count_;
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

// One token in one row: its log probability, its rank (1: the likeliest; by logit, then by id), and the k
// likeliest tokens.
void score_token(const KernelTable& kernels, const float* logits, int vocab, int32_t token, int k,
                 float* logprob, int32_t* rank, int32_t* top_tokens, float* top_logprobs);

}  // namespace tiltyard
