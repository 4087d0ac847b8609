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

constexpr double kMassOne = 1099511627776.0;            // 2^40: what the likeliest token weighs
constexpr float kLeastWeight = 9.094947017729282e-13f;  // 2^-40: below it a token has no mass
constexpr int kBuckets = 2048;                          // of 1/64 nat each; mass reaches zero after 28 nats
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
      block_mass_((vocab + kMassBlock - 1) / kMassBlock) {}

int64_t Sampler::mass(int id) const { return (int64_t)((double)weights_[id] * kMassOne); }

// Fills `kept_` with all tokens that have mass, or with the likeliest ones only, if they are `enough`: a set
// that holds with each token all those of higher rank.
template <class Enough>
void Sampler::keep_likeliest(Enough enough) {
    kept_.resize(vocab_);
    for (const float nats : {2.0f, 4.0f, 8.0f, 16.0f}) {
        count_ = kernels_.row_at_least(scaled_.data(), vocab_, -nats, kept_.data());
        if (enough()) return;
    }
    count_ = kernels_.row_at_least(weights_.data(), vocab_, kLeastWeight, kept_.data());
}

int64_t Sampler::kept_mass() const {
    int64_t sum = 0;
    for (int i = 0; i < count_; i++) sum += mass(kept_[i]);
    return sum;
}

// Keeps what stands before `cut` in the rank, and is at least as likely as `least`.
void Sampler::drop_below(const Cut& cut, const float* logits, float least) {
    int count = 0;
    for (int i = 0; i < count_; i++) {
        const int id = kept_[i];
        if (cut.keeps(logits[id], id) && weights_[id] >= least) kept_[count++] = id;
    }
    count_ = count;
}

void Sampler::fill_buckets() {
    bucket_mass_.assign(kBuckets, 0), bucket_count_.assign(kBuckets, 0);
    for (int i = 0; i < count_; i++) {
        const int bucket = bucket_of(scaled_[kept_[i]]);
        bucket_mass_[bucket] += mass(kept_[i]), bucket_count_[bucket]++;
    }
}

// The kept tokens of a bucket in order of (logit descending, id ascending).
std::vector<int> Sampler::ranked_bucket(const float* logits, int bucket) const {
    std::vector<int> ids;
    for (int i = 0; i < count_; i++)
        if (bucket_of(scaled_[kept_[i]]) == bucket) ids.push_back(kept_[i]);
    std::sort(ids.begin(), ids.end(),
              [&](int a, int b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    return ids;
}

void Sampler::keep_top_k(const float* logits, int k) {
    keep_likeliest([&] { return count_ >= k; });
    if (count_ <= k) return;
    fill_buckets();
    int before = 0;
    for (int bucket = 0; bucket < kBuckets; before += bucket_count_[bucket++])
        if (before + bucket_count_[bucket] >= k) {
            const int id = ranked_bucket(logits, bucket)[k - before - 1];
            return drop_below({logits[id], id}, logits, 0);
        }
}

// The shortest prefix of the rank whose mass reaches top_p of `total`, which is that of all that may be kept.
void Sampler::keep_top_p(const float* logits, float top_p, int64_t total, bool narrowed) {
    const int64_t wanted = std::max<int64_t>(1, (int64_t)std::ceil((double)top_p * (double)total));
    if (!narrowed) keep_likeliest([&] { return kept_mass() >= wanted; });
    fill_buckets();
    int64_t sum = 0;
    for (int bucket = 0; bucket < kBuckets; sum += bucket_mass_[bucket++])
        if (sum + bucket_mass_[bucket] >= wanted) {
            for (int id : ranked_bucket(logits, bucket))
                if ((sum += mass(id)) >= wanted) return drop_below({logits[id], id}, logits, 0);
        }
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

    kernels_.row_weights(logits, vocab_, maximum, row.temperature, scaled_.data(), weights_.data(),
                         block_mass_.data());
    int64_t total = 0;
    for (const int64_t part : block_mass_) {
        if (part < 0) refuse_nan(logits);
        total += part;
    }
    // random_bits / 2^64 is the uniform number; the product's high word is floor(uniform * total)
    const auto target = [&](int64_t all) {
        return (int64_t)((unsigned __int128)random_bits(row.seed, row.position) * (uint64_t)all >> 64);
    };
    const bool by_rank = row.top_k > 0 && row.top_k < vocab_;
    if (!by_rank && row.top_p == 1 && row.min_p == 0) return draw_of_all(target(total));
    if (by_rank) keep_top_k(logits, row.top_k);
    if (row.top_p < 1) keep_top_p(logits, row.top_p, by_rank ? kept_mass() : total, by_rank);
    if (!by_rank && row.top_p == 1) {
        kept_.resize(vocab_);
        count_ = kernels_.row_at_least(weights_.data(), vocab_, row.min_p, kept_.data());
    } else if (row.min_p > 0) {
        drop_below({-std::numeric_limits<float>::infinity(), vocab_}, logits, row.min_p);
    }
    const int64_t wanted = target(kept_mass());
    int64_t sum = 0;
    for (int i = 0; i < count_; i++)
        if ((sum += mass(kept_[i])) > wanted) return kept_[i];
    refuse("no token is left to draw from");  // cannot happen: the likeliest token always stays
}

// The token, in order of id, at which the running mass of all tokens exceeds `target`.
int Sampler::draw_of_all(int64_t target) const {
    int64_t sum = 0;
    size_t block = 0;
    while (sum + block_mass_[block] <= target) sum += block_mass_[block++];
    int id = (int)block * kMassBlock;
    while ((sum += mass(id)) <= target) id++;
    return id;
}

void Sampler::refuse_nan(const float* logits) const {
    int id = 0;
    while (!std::isnan(logits[id])) id++;
    refuse("logit " + std::to_string(id) + " is NaN");
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

void top_log_probabilities(const KernelTable& kernels, const float* logits, int vocab, int k, int32_t* tokens,
                           float* out) {
    if (k < 0 || k > vocab)
        refuse("k is " + std::to_string(k) + "; the vocabulary has " + std::to_string(vocab));
    if (k == 0) return;
    const Normalizer normalized(kernels, logits, vocab);
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
    for (int i = 0; i < k; i++) tokens[i] = best[i], out[i] = normalized(logits[best[i]]);
}

}  // namespace tiltyard
