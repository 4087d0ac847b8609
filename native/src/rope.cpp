#include "tiltyard/rope.hpp"

#include "tiltyard/exact_math.hpp"

namespace tiltyard {

RopeTable::RopeTable(int positions, int dimensions, double base) : pairs_(dimensions / 2) {
    table_.resize((size_t)positions * pairs_ * 2);
    std::vector<double> frequency(pairs_);
    const double log_base = exact_log(base);
    for (int i = 0; i < pairs_; i++) frequency[i] = exact_exp(-(2.0 * i / dimensions) * log_base);
    for (int p = 0; p < positions; p++)
        for (int i = 0; i < pairs_; i++) {
            double sine, cosine;
            exact_sincos(p * frequency[i], &sine, &cosine);
            float* row = table_.data() + (size_t)p * pairs_ * 2;
            row[i] = (float)cosine, row[pairs_ + i] = (float)sine;
        }
}

}  // namespace tiltyard
