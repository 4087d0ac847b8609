#include "tiltyard/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "tiltyard/exact_math.hpp"
#include "tiltyard/philox.hpp"

namespace tiltyard {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

int64_t mass_of(float weight) { return (int64_t)((double)weight * kMassOne); }

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The mass that top_p keeps at least, of the mass `all`.
int64_t wanted_of(float top_p, int64_t all) {
    return std::max<int64_t>(1, (int64_t)std::ceil((double)top_p * (double)all));
}

// random_bits / 2^64 is the uniform number; the product's high word is floor(uniform * total)
int64_t share_of(int64_t total, const SamplingRow& row) {
    return (int64_t)((unsigned __int128)random_bits(row.seed, row.position) * (uint64_t)total >> 64);
}

float checked(float maximum) {
    if (!(maximum > -std::numeric_limits<float>::infinity()))
        refuse("no token has a finite logit: all are masked or NaN");
    return maximum;
}

float checked_maximum(const KernelTable& kernels, const float* logits, int vocab) {
    return checked(kernels.row_maximum(logits, vocab));
}

// log of the softmax's denominator, less the maximum
struct Normalizer {
    Normalizer(const KernelTable& kernels, const float* logits, int vocab)
        : Normalizer(kernels, logits, vocab, checked_maximum(kernels, logits, vocab)) {}
    Normalizer(const KernelTable& kernels, const float* logits, int vocab, float maximum) : maximum(maximum) {
        if (std::isinf(maximum)) refuse("a logit is infinite");
        log_total = exact_log(kernels.row_exp_total(logits, vocab, maximum));
    }
    float operator()(float logit) const { return (float)(((double)logit - (double)maximum) - log_total); }
    float maximum;
    double log_total;
};

// The value that at least k blocks reach: the k likeliest tokens do as well. Few others do.
float reached_by(const std::vector<float>& maxima, int k, std::vector<float>& scratch) {
    scratch = maxima;
    std::nth_element(scratch.begin(), scratch.begin() + k - 1, scratch.end(), std::greater<>());
    return scratch[k - 1];
}

// Throws std::invalid_argument naming the field.
void check_row(const SamplingRow& row) {
    if (!(row.temperature >= 0) || !std::isfinite(row.temperature))
        refuse("temperature is " + std::to_string(row.temperature) + "; it must be finite and at least 0");
    if (row.top_k < 0) refuse("top_k is " + std::to_string(row.top_k) + "; it must be at least 0 (0 = off)");
    if (!(row.top_p > 0 && row.top_p <= 1))
        refuse("top_p is " + std::to_string(row.top_p) + "; it must lie in (0, 1]");
    if (!(row.min_p >= 0 && row.min_p <= 1))
        refuse("min_p is " + std::to_string(row.min_p) + "; it must lie in [0, 1]");
}

// The k likeliest tokens, likeliest first, the lowest id first of equals; `maxima` are those of the blocks.
void find_likeliest(const KernelTable& kernels, const float* logits, int vocab,
                    const std::vector<float>& maxima, int k, int32_t* tokens) {
    if (k == 0) return;
    const auto better = [&](int a, int b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::vector<float> scratch;
    float lowest = -std::numeric_limits<float>::infinity();
    if (k <= (int)maxima.size()) lowest = reached_by(maxima, k, scratch);
    std::vector<int32_t> ids(kRowBlock);
    size_t n = 0;
    for (size_t block = 0; block < maxima.size(); block++) {
        if (!(maxima[block] >= lowest)) continue;
        const int start = (int)block * kRowBlock;
        ids.resize(n + kRowBlock);
        n += kernels.row_at_least(logits + start, std::min(kRowBlock, vocab - start), lowest, start,
                                  ids.data() + n);
    }
    ids.resize(n);
    if ((int)n < k) refuse("a logit is NaN");
    std::partial_sort_copy(ids.begin(), ids.end(), tokens, tokens + k, better);
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
      blocks_((vocab + kRowBlock - 1) / kRowBlock),
      maxima_(blocks_),
      masses_(blocks_) {}

bool Sampler::ranks_before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Collects, in order of id, the tokens whose logit is at least `lowest` and which have mass. Those are the
// first of the rank.
void Sampler::gather(const float* logits, float lowest, float maximum, float temperature) {
    size_t n = 0;
    for (int block = 0; block < blocks_; block++) {
        if (!(maxima_[block] >= lowest) || std::isinf(maxima_[block])) continue;
        const int start = block * kRowBlock;
        if (ids_.size() < n + kRowBlock) ids_.resize(2 * n + kRowBlock);
        n += kernels_.row_at_least(logits + start, std::min(kRowBlock, vocab_ - start), lowest, start,
                                   ids_.data() + n);
    }
    const size_t room = round_up((int)n, 8);
    if (values_.size() < room) values_.resize(room), weights_.resize(room);
    for (size_t i = 0; i < n; i++) values_[i] = logits[ids_[i]];
    kernels_.row_weights(values_.data(), (int)n, maximum, temperature, weights_.data());
    candidates_.clear();
    for (size_t i = 0; i < n; i++)
        if (const int64_t mass = mass_of(weights_[i]); mass > 0)
            candidates_.push_back({values_[i], ids_[i], weights_[i], mass});
}

// The mass of each block, and of all.
int64_t Sampler::measure_masses(const float* logits, float maximum, float temperature) {
    int64_t all = 0;
    for (int block = 0; block < blocks_; block++) {
        // Below -28 no weight reaches 2^-40, and what lies lower in the block cannot exceed its maximum.
        const bool none = (maxima_[block] - maximum) / temperature < -28.0f;
        const int start = block * kRowBlock;
        masses_[block] = none ? 0
                              : kernels_.row_mass(logits + start, std::min(kRowBlock, vocab_ - start),
                                                  maximum, temperature);
        all += masses_[block];
    }
    return all;
}

// Counts the candidates, and their mass, by how far their logit lies below the maximum.
void Sampler::count_buckets(float maximum) {
    float lowest = maximum;
    for (const Candidate& c : candidates_) lowest = std::min(lowest, c.logit);
    bucket_scale_ = lowest < maximum ? kBuckets / (maximum - lowest) : 0;
    bucket_mass_.fill(0), bucket_count_.fill(0);
    for (const Candidate& c : candidates_) {
        const int bucket = bucket_of(maximum - c.logit);
        bucket_mass_[bucket] += c.mass, bucket_count_[bucket]++;
    }
}

// The candidates of one bucket, in order of rank.
const std::vector<Sampler::Candidate>& Sampler::ranked_bucket(float maximum, int bucket) {
    ranked_.clear();
    for (const Candidate& c : candidates_)
        if (bucket_of(maximum - c.logit) == bucket) ranked_.push_back(c);
    std::sort(ranked_.begin(), ranked_.end(), ranks_before);
    return ranked_;
}

// The last token that top_k and top_p keep. Looks at as few tokens as it can: those within `reach` of the
// likeliest, then within more. `all`: the mass of all tokens, needed where there is no top_k.
Sampler::Cut Sampler::find_cut(const float* logits, float maximum, const SamplingRow& row, int64_t all) {
    for (float reach = 6;; reach = reach < 12 ? 12 : 1e30f) {
        const bool everything = reach > 1e29f;
        gather(logits, everything ? kNever : maximum - reach * row.temperature, maximum, row.temperature);
        count_buckets(maximum);
        Cut cut{kNever, vocab_};
        if (row.top_k > 0 && row.top_k < vocab_) {
            if ((int)candidates_.size() < row.top_k && !everything) continue;
            if ((int)candidates_.size() > row.top_k) {
                int bucket = 0, left = row.top_k;
                all = 0;
                while (left > bucket_count_[bucket])
                    left -= bucket_count_[bucket], all += bucket_mass_[bucket++];
                const auto& ranked = ranked_bucket(maximum, bucket);
                for (int i = 0; i < left; i++) all += ranked[i].mass;
                cut = {ranked[left - 1].logit, ranked[left - 1].id};
            } else {
                all = 0;
                for (const Candidate& c : candidates_) all += c.mass;
                if (!candidates_.empty() && !everything) {
                    const auto& last =
                        *std::max_element(candidates_.begin(), candidates_.end(), ranks_before);
                    cut = {last.logit, last.id};
                }
            }
        }
        if (row.top_p >= 1) return cut;
        const int64_t wanted = wanted_of(row.top_p, all);
        int64_t sum = 0;
        for (int bucket = 0; bucket < kBuckets; sum += bucket_mass_[bucket++]) {
            if (sum + bucket_mass_[bucket] < wanted) continue;
            for (const Candidate& c : ranked_bucket(maximum, bucket))
                if ((sum += c.mass) >= wanted) return {c.logit, c.id};
        }
        if (everything) return cut;  // cannot happen: all of the mass is there
    }
}

// Where top_k is so small that few tokens reach what k blocks reach, those are all that need a weight. False
// where it is not.
bool Sampler::gather_likeliest(const float* logits, float maximum, const SamplingRow& row) {
    if (row.top_k == 0 || row.top_k > blocks_) return false;
    const float lowest = reached_by(maxima_, row.top_k, largest_);
    if (std::isinf(lowest)) return false;
    gather(logits, lowest, maximum, row.temperature);
    return true;
}

// The cut among candidates of which the first k of the rank are part.
Sampler::Cut Sampler::cut_short_list(float top_p, int k) {
    ranked_ = candidates_;
    const auto end = ranked_.begin() + std::min<size_t>(k, ranked_.size());
    std::partial_sort(ranked_.begin(), end, ranked_.end(), ranks_before);
    int64_t all = 0, sum = 0;
    for (auto c = ranked_.begin(); c != end; c++) all += c->mass;
    const int64_t wanted = top_p < 1 ? wanted_of(top_p, all) : all;
    auto last = ranked_.begin();
    while ((sum += last->mass) < wanted) last++;
    return {last->logit, last->id};
}

// The first candidate, in order of id, at which the running mass exceeds the random share of `total`.
int Sampler::draw(const SamplingRow& row, int64_t total) const {
    const int64_t target = share_of(total, row);
    int64_t sum = 0;
    for (const Candidate& candidate : candidates_)
        if ((sum += candidate.mass) > target) return candidate.id;
    refuse("no token is left to draw from");  // cannot happen: the likeliest token always stays
}

// The same over all tokens, by blocks.
int Sampler::draw_from_all(const float* logits, const SamplingRow& row, float maximum, int64_t total) {
    const int64_t target = share_of(total, row);
    int64_t sum = 0;
    for (int block = 0; block < blocks_; sum += masses_[block++]) {
        if (sum + masses_[block] <= target) continue;
        const int start = block * kRowBlock, n = std::min(kRowBlock, vocab_ - start);
        weights_.resize(std::max<size_t>(weights_.size(), kRowBlock));
        values_.resize(weights_.size());
        kernels_.row_weights(logits + start, n, maximum, row.temperature, weights_.data());
        for (int i = 0; i < n; i++)
            if ((sum += mass_of(weights_[i])) > target) return start + i;
    }
    refuse("no token is left to draw from");
}

int Sampler::sample(const float* logits, const SamplingRow& row) {
    check_row(row);
    const bool clean = kernels_.row_block_maxima(logits, vocab_, maxima_.data());
    return choose_unmasked(logits, row, checked_maximum(kernels_, maxima_.data(), blocks_), clean);
}

int Sampler::choose(float* logits, const SamplingRow& row, const uint32_t* mask, const RowScores& scores) {
    check_row(row);
    const bool wants_scores = scores.logprob != nullptr;
    bool clean = true;
    std::optional<Normalizer> normalized;
    if (mask == nullptr || wants_scores) clean = kernels_.row_block_maxima(logits, vocab_, maxima_.data());
    if (wants_scores) {
        normalized.emplace(kernels_, logits, vocab_, checked_maximum(kernels_, maxima_.data(), blocks_));
        find_likeliest(kernels_, logits, vocab_, maxima_, scores.k, scores.top_tokens);
        for (int i = 0; i < scores.k; i++)
            scores.top_logprobs[i] = (*normalized)(logits[scores.top_tokens[i]]);
    }
    if (mask != nullptr) clean = kernels_.row_mask(logits, vocab_, mask, maxima_.data());
    const float maximum = kernels_.row_maximum(maxima_.data(), blocks_);
    if (mask != nullptr && maximum == kNever) return -1;
    const int token = choose_unmasked(logits, row, checked(maximum), clean);
    if (wants_scores) *scores.logprob = (*normalized)(logits[token]);
    return token;
}

// `maxima_` are those of the blocks, minus infinity for those of which nothing may be taken.
int Sampler::choose_unmasked(const float* logits, const SamplingRow& row, float maximum, bool clean) {
    if (row.temperature == 0) {
        int block = 0;  // the first that has the maximum has its first place
        while (maxima_[block] != maximum) block++;
        const int start = block * kRowBlock;
        return start + kernels_.row_find(logits + start, std::min(kRowBlock, vocab_ - start), maximum);
    }
    if (std::isinf(maximum)) refuse("a logit is infinite: cannot sample at a temperature above 0");
    if (!clean) refuse("a logit is NaN");
    const bool by_rank = row.top_k > 0 && row.top_k < vocab_;
    // A little below what min_p asks, since the logarithm here is not the contract's.
    const float lowest = maximum + row.temperature * (std::log(row.min_p) - 0.01f);
    Cut cut{kNever, vocab_};
    if (by_rank && gather_likeliest(logits, maximum, row)) {
        cut = cut_short_list(row.top_p, row.top_k);
    } else {
        const bool by_mass = row.top_p < 1 && !by_rank;
        if (!by_rank && !by_mass && row.min_p == 0)
            return draw_from_all(logits, row, maximum, measure_masses(logits, maximum, row.temperature));
        if (by_rank || by_mass)
            cut = find_cut(logits, maximum, row,
                           by_mass ? measure_masses(logits, maximum, row.temperature) : 0);
        gather(logits, std::max(cut.logit, lowest), maximum, row.temperature);
    }
    const auto dropped = [&](const Candidate& c) {
        return !cut.keeps(c.logit, c.id) || c.weight < row.min_p;
    };
    candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), dropped), candidates_.end());
    int64_t total = 0;
    for (const Candidate& c : candidates_) total += c.mass;
    return draw(row, total);
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

void log_probabilities(const KernelTable& kernels, const float* logits, int vocab, const int32_t* tokens,
                       int n, float* out) {
    for (int i = 0; i < n; i++) check_token(tokens[i], vocab);
    const Normalizer normalized(kernels, logits, vocab);
    for (int i = 0; i < n; i++) out[i] = normalized(logits[tokens[i]]);
}

namespace {

std::vector<float> block_maxima(const KernelTable& kernels, const float* logits, int vocab) {
    std::vector<float> maxima((vocab + kRowBlock - 1) / kRowBlock);
    kernels.row_block_maxima(logits, vocab, maxima.data());
    return maxima;
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
    find_likeliest(kernels, logits, vocab, block_maxima(kernels, logits, vocab), k, tokens);
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
    find_likeliest(kernels, logits, vocab, block_maxima(kernels, logits, vocab), k, top_tokens);
    for (int i = 0; i < k; i++) top_logprobs[i] = normalized(logits[top_tokens[i]]);
}

}  // namespace tiltyard
