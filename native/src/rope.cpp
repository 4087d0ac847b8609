#include "tiltyard/rope.hpp"

#include "tiltyard/exact_math.hpp"

namespace tiltyard {

RopeTable::RopeTable(int dimensions, double base) : frequency_(dimensions / 2) {
    const double log_base = exact_log(base);
    for (int i = 0; i < pairs(); i++) frequency_[i] = exact_exp(-(2.0 * i / dimensions) * log_base);
}

void RopeTable::cover(int positions) {
    if (positions <= rows_) return;
    positions = (positions + 511) / 512 * 512;
    table_.resize((size_t)positions * pairs() * 2);
    for (; rows_ < positions; rows_++)
        for (int i = 0; i < pairs(); i++) {
            double sine, cosine;
            exact_sincos(rows_ * frequency_[i], &sine, &cosine);
            float* row = table_.data() + (size_t)rows_ * pairs() * 2;
            row[i] = (float)cosine, row[pairs() + i] = (float)sine;
        }
}

}  // namespace tiltyard
