// Rows of logits to tokens, penalties, scores: the functions of the module that need no model.
#include "sampling.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <vector>

#include "tiltyard/isa.hpp"
#include "tiltyard/philox.hpp"

using namespace nanobind::literals;

namespace tiltyard {

namespace {

[[noreturn]] void refuse_row(size_t row, const std::string& reason) {
    refuse("row " + std::to_string(row) + ": " + reason);
}

Array<int32_t, 1> sample_rows(Array<const float, 2> logits, Floats temperature, Ids top_k, Floats top_p,
                              Floats min_p, Array<const uint64_t, 1> seeds, Array<const int64_t, 1> positions,
                              const std::string& isa) {
    const size_t rows = logits.shape(0);
    const int vocab = size_of(logits.shape(1), "logits");
    const RowSettings settings{temperature, top_k, top_p, min_p, seeds, positions};
    settings.check(rows);
    auto tokens = std::make_unique<int32_t[]>(rows);
    {
        nb::gil_scoped_release release;
        Sampler sampler(kernels_for(isa), vocab);
        for (size_t r = 0; r < rows; r++) try {
                tokens[r] = sampler.sample(logits.data() + r * vocab, settings.row(r));
            } catch (const std::invalid_argument& error) {
                refuse_row(r, error.what());
            }
    }
    return owned(std::move(tokens), rows);
}

using Scores = std::tuple<Array<float, 1>, Array<int32_t, 1>, Array<int32_t, 2>, Array<float, 2>>;

Scores score_tokens(Array<const float, 2> logits, Ids tokens, int k, const std::string& isa) {
    const size_t rows = logits.shape(0);
    const int vocab = size_of(logits.shape(1), "logits");
    check_length("tokens", tokens.size(), rows);
    if (k < 0 || k > vocab)
        refuse("k is " + std::to_string(k) + "; the vocabulary has " + std::to_string(vocab));
    auto logprobs = std::make_unique<float[]>(rows);
    auto ranks = std::make_unique<int32_t[]>(rows);
    auto top_ids = std::make_unique<int32_t[]>(rows * k);
    auto top = std::make_unique<float[]>(rows * k);
    {
        nb::gil_scoped_release release;
        const KernelTable& kernels = kernels_for(isa);
        for (size_t r = 0; r < rows; r++)
            score_token(kernels, logits.data() + r * vocab, vocab, tokens.data()[r], k, &logprobs[r],
                        &ranks[r], top_ids.get() + r * k, top.get() + r * k);
    }
    return {owned(std::move(logprobs), rows), owned(std::move(ranks), rows),
            owned(std::move(top_ids), rows, k), owned(std::move(top), rows, k)};
}

}  // namespace

Choices choose(const KernelTable& kernels, int threads, const ForRows& for_rows, Array<float, 2> logits,
               const RowSettings& settings, Ids masked, Array<const uint32_t, 2> masks, Ids top) {
    const int rows = size_of(logits.shape(0), "logits"), vocab = size_of(logits.shape(1), "logits");
    settings.check(rows);
    check_length("top", top.size(), rows);
    check_length("masks", masks.shape(0), masked.size());
    if (masked.size()) check_length("a row of masks", masks.shape(1), ((size_t)vocab + 31) / 32);
    std::vector<const uint32_t*> mask_of(rows, nullptr);
    for (size_t i = 0; i < masked.size(); i++) {
        const int row = masked.data()[i];
        if (row < 0 || row >= rows)
            refuse("masked has row " + std::to_string(row) + "; there are " + std::to_string(rows));
        mask_of[row] = masks.data() + i * masks.shape(1);
    }
    int most = 0;
    for (int r = 0; r < rows; r++) {
        if (top.data()[r] > vocab)
            refuse_row(r, "top is " + std::to_string(top.data()[r]) + "; the vocabulary has " +
                              std::to_string(vocab));
        most = std::max(most, top.data()[r]);
    }
    auto tokens = std::make_unique<int32_t[]>(rows);
    auto logprobs = std::make_unique<float[]>(rows);
    auto top_ids = std::make_unique<int32_t[]>((size_t)rows * most);
    auto top_logprobs = std::make_unique<float[]>((size_t)rows * most);
    {
        nb::gil_scoped_release release;
        std::vector<std::string> errors(rows);
        std::vector<std::unique_ptr<Sampler>> samplers(threads);
        for_rows(rows, [&](int r, int thread) {
            try {
                auto& sampler = samplers[thread];
                if (!sampler) sampler = std::make_unique<Sampler>(kernels, vocab);
                RowScores scores;
                if (const int k = top.data()[r]; k >= 0)
                    scores = {k, &logprobs[r], &top_ids[(size_t)r * most], &top_logprobs[(size_t)r * most]};
                tokens[r] =
                    sampler->choose(logits.data() + (size_t)r * vocab, settings.row(r), mask_of[r], scores);
            } catch (const std::exception& error) {
                errors[r] = error.what();
            }
        });
        for (int r = 0; r < rows; r++)
            if (!errors[r].empty()) refuse_row(r, errors[r]);
    }
    return {owned(std::move(tokens), rows), owned(std::move(logprobs), rows),
            owned(std::move(top_ids), rows, most), owned(std::move(top_logprobs), rows, most)};
}

void bind_sampling(nb::module_& m) {
    m.def("sample_rows", &sample_rows, "logits"_a.noconvert(), "temperature"_a.noconvert(),
          "top_k"_a.noconvert(), "top_p"_a.noconvert(), "min_p"_a.noconvert(), "seeds"_a.noconvert(),
          "positions"_a.noconvert(), nb::kw_only(), "isa"_a = "",
          "One token for each row of logits [R, V]; a pure function of the row, its settings, seed and "
          "position.\n\n"
          "temperature 0 takes the highest logit, lowest id on ties. top_k 0, top_p 1 and min_p 0 are off; "
          "they apply in\n"
          "that order. Raises ValueError naming the row.");
    m.def(
        "choose_rows",
        [](Array<float, 2> logits, Floats temperature, Ids top_k, Floats top_p, Floats min_p,
           Array<const uint64_t, 1> seeds, Array<const int64_t, 1> positions, Ids masked,
           Array<const uint32_t, 2> masks, Ids top, const std::string& isa) {
            const auto in_turn = [](int rows, const RowJob& job) {
                for (int r = 0; r < rows; r++) job(r, 0);
            };
            return choose(kernels_for(isa), 1, in_turn, logits,
                          {temperature, top_k, top_p, min_p, seeds, positions}, masked, masks, top);
        },
        TILTYARD_CHOOSE_ARGUMENTS, nb::kw_only(), "isa"_a = "", "As NativeModel.choose_rows, row after row.");
    m.def(
        "apply_penalties",
        [](Array<float, 1> row, Ids token_ids, Ids output_counts, float repetition, float presence,
           float frequency) {
            check_length("output_counts", output_counts.size(), token_ids.size());
            nb::gil_scoped_release release;
            apply_penalties(row.data(), size_of(row.size(), "row"), token_ids.data(), output_counts.data(),
                            (int)token_ids.size(), repetition, presence, frequency);
        },
        "row"_a.noconvert(), "token_ids"_a.noconvert(), "output_counts"_a.noconvert(), "repetition"_a,
        "presence"_a, "frequency"_a,
        "In place, as vLLM does: `token_ids` are the distinct tokens of prompt and output, `output_counts` "
        "how often\n"
        "each occurs in the output (0: prompt only). Repetition touches all, presence and frequency the "
        "output's.");
    m.def(
        "add_bias",
        [](Array<float, 1> row, Ids token_ids, Floats values) {
            check_length("values", values.size(), token_ids.size());
            nb::gil_scoped_release release;
            add_bias(row.data(), size_of(row.size(), "row"), token_ids.data(), values.data(),
                     (int)token_ids.size());
        },
        "row"_a.noconvert(), "token_ids"_a.noconvert(), "values"_a.noconvert(),
        "In place: row[token_ids] += values.");
    m.def("score_tokens", &score_tokens, "logits"_a.noconvert(), "tokens"_a.noconvert(), "k"_a, nb::kw_only(),
          "isa"_a = "",
          "For each row of logits [R, V] and its token: log probability [R], rank [R] (1: the likeliest; "
          "equals by id),\n"
          "and the k likeliest tokens with their log probabilities, [R, k] each. At temperature 1.");
    m.def(
        "log_probabilities",
        [](Floats logits, Ids tokens, const std::string& isa) {
            auto out = std::make_unique<float[]>(tokens.size());
            {
                nb::gil_scoped_release release;
                log_probabilities(kernels_for(isa), logits.data(), size_of(logits.size(), "logits"),
                                  tokens.data(), (int)tokens.size(), out.get());
            }
            return owned(std::move(out), tokens.size());
        },
        "logits"_a.noconvert(), "tokens"_a.noconvert(), nb::kw_only(), "isa"_a = "",
        "log softmax(logits)[tokens], at temperature 1.");
    m.def(
        "top_log_probabilities",
        [](Floats logits, int k, const std::string& isa) {
            const int vocab = size_of(logits.size(), "logits");
            if (k < 0 || k > vocab)
                refuse("k is " + std::to_string(k) + "; the vocabulary has " + std::to_string(vocab));
            auto ids = std::make_unique<int32_t[]>(k);
            auto out = std::make_unique<float[]>(k);
            {
                nb::gil_scoped_release release;
                top_log_probabilities(kernels_for(isa), logits.data(), vocab, k, ids.get(), out.get());
            }
            return std::make_tuple(owned(std::move(ids), k), owned(std::move(out), k));
        },
        "logits"_a.noconvert(), "k"_a, nb::kw_only(), "isa"_a = "",
        "The k likeliest tokens and their log probabilities, likeliest first, lowest id on ties.");
    m.def(
        "philox4x32",
        [](std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) { return philox4x32(counter, key); },
        "counter"_a, "key"_a,
        "Philox4x32-10, as published; exposed so that its known answers can be checked.");
}

}  // namespace tiltyard
