#include "tiltyard/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "tiltyard/exact_math.hpp"
#include "tiltyard/philox.hpp"

namespace tiltyard {

namespace {

constexpr double kMassOne = 1099511627776.0;  // 2^40: what the likeliest token weighs
constexpr int kBuckets = 2048;                // of 1/64 nat each; mass reaches zero after 28 nats
constexpr float kBucketsPerNat = 64.0f;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

int bucket_of(float scaled) { return std::min(kBuckets - 1, (int)(-scaled * kBucketsPerNat)); }

float checked_maximum(const KernelTable& kernels, const float* logits, int vocab) {
    const float maximum = kernels.row_maximum(logits, vocab);
    if (!(maximum > -std::numeric_limits<float>::infinity()))
        refuse("no token has a finite logit: all are masked or NaN");
    return maximum;
}

}  // namespace

struct Sampler::Cut {
    float logit;
    int id;
    bool keeps(float other, int other_id) const {
        return other > logit || (other == logit && other_id <= id);
    }
};

Sampler::Sampler(const KernelTable& kernels, int vocab)
    : kernels_(kernels),
      vocab_(vocab),
      scaled_(round_up(vocab, 8)),
      weights_(round_up(vocab, 8)),
      mass_(vocab) {}

// The tokens of a bucket in order of (logit descending, id ascending); those without mass cannot be drawn.
std::vector<int> Sampler::ranked_bucket(const float* logits, int bucket) const {
    std::vector<int> ids;
    for (int i = 0; i < vocab_; i++)
        if (mass_[i] > 0 && bucket_of(scaled_[i]) == bucket) ids.push_back(i);
    std::sort(ids.begin(), ids.end(),
              [&](int a, int b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    return ids;
}

Sampler::Cut Sampler::top_k_cut(const float* logits, int k) const {
    int before = 0;
    for (int bucket = 0; bucket < kBuckets; before += bucket_count_[bucket++])
        if (before + bucket_count_[bucket] >= k) {
            const int id = ranked_bucket(logits, bucket)[k - before - 1];
            return {logits[id], id};
        }
    return {-std::numeric_limits<float>::infinity(), vocab_};  // fewer than k tokens have mass
}

// The shortest prefix whose mass reaches top_p of what `before` keeps.
Sampler::Cut Sampler::top_p_cut(const float* logits, float top_p, const Cut& before) const {
    int64_t kept = 0;
    for (int i = 0; i < vocab_; i++)
        if (before.keeps(logits[i], i)) kept += mass_[i];
    const int64_t wanted = std::max<int64_t>(1, (int64_t)std::ceil((double)top_p * (double)kept));
    int64_t sum = 0;
    for (int bucket = 0; bucket < kBuckets; sum += bucket_mass_[bucket++])
        if (sum + bucket_mass_[bucket] >= wanted) {
            for (int id : ranked_bucket(logits, bucket))
                if ((sum += mass_[id]) >= wanted) return {logits[id], id};
        }
    return before;
}

int Sampler::sample(const float* logits, const SamplingRow& row) {
    if (!(row.temperature >= 0) || !std::isfinite(row.temperature))
        refuse("temperature is " + std::to_string(row.temperature) + "; it must be finite and at least 0");
    if (row.top_k < 0) refuse("top_k is " + std::to_string(row.top_k) + "; it must be at least 0 (0 = off)");
    if (!(row.top_p > 0 && row.top_p <= 1))
        refuse("top_p is " + std::to_string(row.top_p) + "; it must lie in (0, 1]");
    if (!(row.min_p >= 0 && row.min_p <= 1))
        refuse("min_p is " + std::to_string(row.min_p) + "; it must lie in [0, 1]");

    const float maximum = checked_maximum(kernels_, logits, vocab_);
    if (row.temperature == 0) return kernels_.row_find(logits, vocab_, maximum);
    if (std::isinf(maximum)) refuse("a logit is infinite: cannot sample at a temperature above 0");

    kernels_.row_weights(logits, vocab_, maximum, row.temperature, scaled_.data(), weights_.data());
    for (int i = 0; i < vocab_; i++) {
        if (!(weights_[i] <= 1.0f)) refuse("logit " + std::to_string(i) + " is NaN");
        mass_[i] = (int64_t)((double)weights_[i] * kMassOne);
    }
    Cut cut{-std::numeric_limits<float>::infinity(), vocab_};
    const bool by_rank = row.top_k > 0 && row.top_k < vocab_;
    if (by_rank || row.top_p < 1) {
        bucket_mass_.assign(kBuckets, 0), bucket_count_.assign(kBuckets, 0);
        for (int i = 0; i < vocab_; i++)
            if (mass_[i] > 0) {
                const int bucket = bucket_of(scaled_[i]);
                bucket_mass_[bucket] += mass_[i], bucket_count_[bucket]++;
            }
        if (by_rank) cut = top_k_cut(logits, row.top_k);
        if (row.top_p < 1) cut = top_p_cut(logits, row.top_p, cut);
    }
    int64_t total = 0;
    for (int i = 0; i < vocab_; i++) {
        if (!cut.keeps(logits[i], i) || weights_[i] < row.min_p) mass_[i] = 0;
        total += mass_[i];
    }
    // random_bits / 2^64 is the uniform number; the product's high word is floor(uniform * total)
    const auto target =
        (int64_t)((unsigned __int128)random_bits(row.seed, row.position) * (uint64_t)total >> 64);
    int64_t sum = 0;
    for (int i = 0; i < vocab_; i++)
        if ((sum += mass_[i]) > target) return i;
    refuse("no token is left to draw from");  // cannot happen: the likeliest token always stays
}

namespace {
void check_token(int32_t token, int vocab) {
    if (token < 0 || token >= vocab)
        refuse("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab));
}
}  // namespace

void apply_penalties(float* row, int vocab, const int32_t* tokens, const int32_t* output_counts, int n,
                     float repetition, float presence, float frequency) {
    if (!(repetition > 0) || !std::isfinite(repetition)) refuse("repetition must be finite and above 0");
    if (!std::isfinite(presence) || !std::isfinite(frequency))
        refuse("presence and frequency must be finite");
    for (int i = 0; i < n; i++) {
        check_token(tokens[i], vocab);
        if (output_counts[i] < 0) refuse("output_counts[" + std::to_string(i) + "] is negative");
    }
    for (int i = 0; i < n; i++) {
        float x = row[tokens[i]];
        x = x > 0 ? x / repetition : x * repetition;
        x = x - frequency * (float)output_counts[i];
        row[tokens[i]] = output_counts[i] > 0 ? x - presence : x;
    }
}

void add_bias(float* row, int vocab, const int32_t* tokens, const float* values, int n) {
    for (int i = 0; i < n; i++) check_token(tokens[i], vocab);
    for (int i = 0; i < n; i++) row[tokens[i]] = row[tokens[i]] + values[i];
}

void apply_mask(float* row, int vocab, const uint32_t* mask) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (int start = 0; start < vocab; start += 32) {
        const uint32_t bits = mask[start / 32];
        if (bits == 0xffffffffu) continue;
        const int n = std::min(32, vocab - start);
        for (int i = 0; i < n; i++) row[start + i] = bits >> i & 1 ? row[start + i] : kNever;
    }
}

namespace {

// log of the softmax's denominator, less the maximum
struct Normalizer {
    Normalizer(const KernelTable& kernels, const float* logits, int vocab)
        : maximum(checked_maximum(kernels, logits, vocab)) {
        if (std::isinf(maximum)) refuse("a logit is infinite");
        log_total = exact_log(kernels.row_exp_total(logits, vocab, maximum));
    }
    float operator()(float logit) const { return (float)(((double)logit - (double)maximum) - log_total); }
    float maximum;
    double log_total;
};

}  // namespace

void log_probabilities(const KernelTable& kernels, const float* logits, int vocab, const int32_t* tokens,
                       int n, float* out) {
    for (int i = 0; i < n; i++) check_token(tokens[i], vocab);
    const Normalizer normalized(kernels, logits, vocab);
    for (int i = 0; i < n; i++) out[i] = normalized(logits[tokens[i]]);
}

namespace {

// The k likeliest tokens, likeliest first, the lowest id first of equals.
void find_likeliest(const float* logits, int vocab, int k, int32_t* tokens) {
    if (k == 0) return;
    const auto better = [&](int a, int b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::vector<int> best;  // a heap with the worst of the best on top
    best.reserve(k);
    float worst = 0;
    for (int i = 0; i < vocab; i++) {
        if ((int)best.size() == k) {
            if (!(logits[i] > worst)) continue;  // equal: the earlier id stays
            std::pop_heap(best.begin(), best.end(), better), best.pop_back();
        }
        best.push_back(i);
        std::push_heap(best.begin(), best.end(), better);
        worst = logits[best.front()];
    }
    std::sort(best.begin(), best.end(), better);
    for (int i = 0; i < k; i++) tokens[i] = best[i];
}

void check_k(int k, int vocab) {
    if (k < 0 || k > vocab)
        refuse("k is " + std::to_string(k) + "; the vocabulary has " + std::to_string(vocab));
}

}  // namespace

void top_log_probabilities(const KernelTable& kernels, const float* logits, int vocab, int k, int32_t* tokens,
                           float* out) {
    check_k(k, vocab);
    if (k == 0) return;
    const Normalizer normalized(kernels, logits, vocab);
    find_likeliest(logits, vocab, k, tokens);
    for (int i = 0; i < k; i++) out[i] = normalized(logits[tokens[i]]);
}

void score_token(const KernelTable& kernels, const float* logits, int vocab, int32_t token, int k,
                 float* logprob, int32_t* rank, int32_t* top_tokens, float* top_logprobs) {
    check_token(token, vocab);
    check_k(k, vocab);
    const Normalizer normalized(kernels, logits, vocab);
    const float own = logits[token];
    int before = 0;
    for (int i = 0; i < token; i++) before += logits[i] >= own;
    for (int i = token + 1; i < vocab; i++) before += logits[i] > own;
    *rank = before + 1;
    *logprob = normalized(own);
    find_likeliest(logits, vocab, k, top_tokens);
    for (int i = 0; i < k; i++) top_logprobs[i] = normalized(logits[top_tokens[i]]);
}

}  // namespace tiltyard
