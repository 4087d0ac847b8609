#include "tiltyard/rope.hpp"

#include "tiltyard/exact_math.hpp"

namespace tiltyard {

RopeFrequencies plain_frequencies(int dimensions, double base) {
    RopeFrequencies plain;
    const double log_base = exact_log(base);
    for (int i = 0; i < dimensions / 2; i++)
        plain.frequency.push_back(exact_exp(-(2.0 * i / dimensions) * log_base));
    return plain;
}

void RopeTable::divide(const std::vector<float>& factors) {
    for (int i = 0; i < pairs(); i++) f_.frequency[i] /= factors[i];
}

void RopeTable::cover(int positions) {
    if (positions <= rows_) return;
    positions = (positions + 511) / 512 * 512;
    table_.resize((size_t)positions * pairs() * 2);
    for (; rows_ < positions; rows_++)
        for (int i = 0; i < pairs(); i++) {
            double sine, cosine;
            exact_sincos(rows_ * f_.frequency[i], &sine, &cosine);
            float* row = table_.data() + (size_t)rows_ * pairs() * 2;
            row[i] = (float)(cosine * f_.amplitude), row[pairs() + i] = (float)(sine * f_.amplitude);
        }
}

}  // namespace tiltyard
