// Sampling for Python: what the model's binding and the module's own functions share.
#pragma once
#include <functional>
#include <tuple>

#include "arrays.hpp"
#include "tiltyard/sampler.hpp"

namespace tiltyard {

// How each row of logits is sampled.
struct RowSettings {
    Floats temperature;
    Ids top_k;
    Floats top_p, min_p;
    Array<const uint64_t, 1> seeds;
    Array<const int64_t, 1> positions;

    void check(size_t rows) const {
        check_length("temperature", temperature.size(), rows);
        check_length("top_k", top_k.size(), rows);
        check_length("top_p", top_p.size(), rows);
        check_length("min_p", min_p.size(), rows);
        check_length("seeds", seeds.size(), rows);
        check_length("positions", positions.size(), rows);
    }
    SamplingRow row(size_t r) const {
        return {temperature.data()[r], top_k.data()[r], top_p.data()[r],
                min_p.data()[r],       seeds.data()[r], (uint64_t)positions.data()[r]};
    }
};

using Choices = std::tuple<Array<int32_t, 1>, Array<float, 1>, Array<int32_t, 2>, Array<float, 2>>;
using RowJob = std::function<void(int, int)>;             // (row, thread)
using ForRows = std::function<void(int, const RowJob&)>;  // runs the job for each row

// Tokens and log probabilities of each row; `for_rows` uses threads below `threads`.
Choices choose(const KernelTable& kernels, int threads, const ForRows& for_rows, Array<float, 2> logits,
               const RowSettings& settings, Ids masked, Array<const uint32_t, 2> masks, Ids top);

// Adds the functions that need no model.
void bind_sampling(nb::module_& m);

}  // namespace tiltyard

#define TILTYARD_CHOOSE_ARGUMENTS                                                                        \
    "logits"_a.noconvert(), "temperature"_a.noconvert(), "top_k"_a.noconvert(), "top_p"_a.noconvert(),   \
        "min_p"_a.noconvert(), "seeds"_a.noconvert(), "positions"_a.noconvert(), "masked"_a.noconvert(), \
        "masks"_a.noconvert(), "top"_a.noconvert()
