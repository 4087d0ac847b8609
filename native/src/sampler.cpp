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

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

int64_t mass_of(float weight) { return (int64_t)((double)weight * kMassOne); }

float checked(float maximum) {
    if (!(maximum > -std::numeric_limits<float>::infinity()))
        refuse("no token has a finite logit: all are masked or NaN");
    return maximum;
}

float checked_maximum(const KernelTable& kernels, const float* logits, int vocab) {
    return checked(kernels.row_maximum(logits, vocab));
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
      scaled_(round_up(vocab, 8)),
      weights_(round_up(vocab, 8)),
      maxima_(blocks_),
      masses_(blocks_) {}

// Sorts the first `end` of `ids_` only as far as it takes to find the n-th (from 0) by (logit descending, id
// ascending).
void Sampler::split_at(const float* logits, int begin, int n, int end) {
    std::nth_element(ids_.begin() + begin, ids_.begin() + n, ids_.begin() + end, [&](int a, int b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
}

int64_t Sampler::mass_between(int begin, int end) const {
    int64_t sum = 0;
    for (int i = begin; i < end; i++) sum += mass_of(weights_[ids_[i]]);
    return sum;
}

// Fills `ids_`, in order of id, with the tokens whose logit is at least `lowest` and which have mass. Those
// are the first of the rank.
void Sampler::gather(const float* logits, float lowest) {
    ids_.clear();
    for (int block = 0; block < blocks_; block++) {
        if (!(maxima_[block] >= lowest)) continue;
        const int end = std::min(vocab_, (block + 1) * kRowBlock);
        for (int i = block * kRowBlock; i < end; i++)
            if (logits[i] >= lowest && mass_of(weights_[i]) > 0) ids_.push_back(i);
    }
}

// The last token that top_k and top_p keep. Looks at as few tokens as it can: those within `reach` of the
// likeliest, then within more.
Sampler::Cut Sampler::find_cut(const float* logits, float maximum, const SamplingRow& row, int64_t all) {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (float reach = 6;; reach = reach < 12 ? 12 : reach < 24 ? 24 : 1e30f) {
        const bool everything = reach > 1e29f;
        gather(logits, everything ? kNever : maximum - reach * row.temperature);
        int kept = (int)ids_.size();
        if (row.top_k > 0 && row.top_k < vocab_) {
            if (kept < row.top_k && !everything) continue;
            if (kept > row.top_k) split_at(logits, 0, row.top_k, kept), kept = row.top_k;
            all = mass_between(0, kept);
        }
        int last = kept - 1;
        if (row.top_p < 1) {
            const int64_t wanted = std::max<int64_t>(1, (int64_t)std::ceil((double)row.top_p * (double)all));
            if (!everything && mass_between(0, kept) < wanted) continue;
            // The shortest prefix of mass `wanted` ends in [begin, end); `before` is the mass in front of
            // begin.
            int begin = 0, end = kept;
            int64_t before = 0;
            while (end - begin > 1) {
                const int middle = begin + (end - begin) / 2;
                split_at(logits, begin, middle, end);
                const int64_t upper = mass_between(begin, middle);
                if (before + upper >= wanted)
                    end = middle;
                else
                    before += upper, begin = middle;
            }
            last = begin;
        } else if (kept == (int)ids_.size() && everything) {
            last = -1;  // no more than top_k tokens have mass: all stay
        } else {
            split_at(logits, 0, last, kept);
        }
        if (last < 0) return {kNever, vocab_};
        return {logits[ids_[last]], ids_[last]};
    }
}

// The first token, in order of id, at which the running mass of `ids_` exceeds `target`.
int Sampler::draw(const SamplingRow& row, int64_t total) const {
    const int64_t target =
        (int64_t)((unsigned __int128)random_bits(row.seed, row.position) * (uint64_t)total >> 64);
    int64_t sum = 0;
    for (const int id : ids_)
        if ((sum += mass_of(weights_[id])) > target) return id;
    refuse("no token is left to draw from");  // cannot happen: the likeliest token always stays
}

// The same over all tokens, by blocks.
int Sampler::draw_from_all(const SamplingRow& row, int64_t total) const {
    const int64_t target =
        (int64_t)((unsigned __int128)random_bits(row.seed, row.position) * (uint64_t)total >> 64);
    int64_t sum = 0;
    for (int block = 0; block < blocks_; sum += masses_[block++]) {
        if (sum + masses_[block] <= target) continue;
        for (int i = block * kRowBlock; i < vocab_; i++)
            if ((sum += mass_of(weights_[i])) > target) return i;
    }
    refuse("no token is left to draw from");
}

int Sampler::sample(const float* logits, const SamplingRow& row) {
    if (!(row.temperature >= 0) || !std::isfinite(row.temperature))
        refuse("temperature is " + std::to_string(row.temperature) + "; it must be finite and at least 0");
    if (row.top_k < 0) refuse("top_k is " + std::to_string(row.top_k) + "; it must be at least 0 (0 = off)");
    if (!(row.top_p > 0 && row.top_p <= 1))
        refuse("top_p is " + std::to_string(row.top_p) + "; it must lie in (0, 1]");
    if (!(row.min_p >= 0 && row.min_p <= 1))
        refuse("min_p is " + std::to_string(row.min_p) + "; it must lie in [0, 1]");

    kernels_.row_block_maxima(logits, vocab_, maxima_.data());
    const float maximum = checked_maximum(kernels_, maxima_.data(), blocks_);
    if (row.temperature == 0) {
        int block = 0;  // the first that has the maximum has its first place
        while (maxima_[block] != maximum) block++;
        const int start = block * kRowBlock;
        return start + kernels_.row_find(logits + start, std::min(kRowBlock, vocab_ - start), maximum);
    }
    if (std::isinf(maximum)) refuse("a logit is infinite: cannot sample at a temperature above 0");

    kernels_.row_weights(logits, vocab_, maximum, row.temperature, scaled_.data(), weights_.data());
    kernels_.row_block_masses(weights_.data(), vocab_, masses_.data());
    int64_t all = 0;
    for (int block = 0; block < blocks_; block++) {
        if (masses_[block] < 0) refuse("a logit is NaN");
        all += masses_[block];
    }
    const bool cuts = (row.top_k > 0 && row.top_k < vocab_) || row.top_p < 1;
    if (!cuts && row.min_p == 0) return draw_from_all(row, all);
    // A little below what min_p asks, since the logarithm here is not the contract's.
    const float lowest = maximum + row.temperature * (std::log(row.min_p) - 0.01f);
    const Cut cut =
        cuts ? find_cut(logits, maximum, row, all) : Cut{-std::numeric_limits<float>::infinity(), vocab_};
    gather(logits, std::max(cut.logit, lowest));
    const auto dropped = [&](int id) { return !cut.keeps(logits[id], id) || weights_[id] < row.min_p; };
    ids_.erase(std::remove_if(ids_.begin(), ids_.end(), dropped), ids_.end());
    return draw(row, mass_between(0, (int)ids_.size()));
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
void find_likeliest(const KernelTable& kernels, const float* logits, int vocab, int k, int32_t* tokens) {
    if (k == 0) return;
    std::vector<float> maxima((vocab + kRowBlock - 1) / kRowBlock);
    kernels.row_block_maxima(logits, vocab, maxima.data());
    const auto better = [&](int a, int b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::vector<int> best;  // a heap with the worst of the best on top
    best.reserve(k);
    float worst = 0;
    for (int i = 0; i < vocab; i++) {
        if ((int)best.size() == k) {
            if (i % kRowBlock == 0 && !(maxima[i / kRowBlock] > worst)) {
                i += kRowBlock - 1;
                continue;
            }
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
    find_likeliest(kernels, logits, vocab, k, tokens);
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
    find_likeliest(kernels, logits, vocab, k, top_tokens);
    for (int i = 0; i < k; i++) top_logprobs[i] = normalized(logits[top_tokens[i]]);
}

}  // namespace tiltyard
