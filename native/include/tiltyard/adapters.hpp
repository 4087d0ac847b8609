// LoRA: low-rank additions to the matrices of a model, chosen by sequence.
// Hu et al. 2021, https://arxiv.org/abs/2106.09685; docs/numerics.md, "Adapters", is the specification.
#pragma once
#include <array>
#include <vector>

#include "tiltyard/packed_matrix.hpp"

namespace tiltyard {

// The matrices of a layer that can be adapted.
enum class Site : int { query, key, value, attention_output, gate, up, down };
constexpr int kSites = 7;

// What is added to one matrix: scale * up (down x), both in F32.
struct LowRank {
    PackedMatrix down;  // rank x columns
    PackedMatrix up;    // rows x rank, rows grouped as those of the matrix
    bool empty() const { return up.empty(); }
};

struct Adapter {
    float scale = 0;
    std::vector<std::array<LowRank, kSites>> layers;
    const LowRank& at(int layer, Site site) const { return layers[layer][static_cast<int>(site)]; }
};

// Neighbouring rows of a batch, [first, end), with the same adapter.
struct AdapterRun {
    int first, end;
    const Adapter* adapter;
};

}  // namespace tiltyard
