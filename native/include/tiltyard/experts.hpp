// Mixture of experts: which experts a row goes to, which rows an expert gets, and where its tiles lie.
//
// Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; top-k by logit as in Mixtral (Jiang et al. 2024,
// https://arxiv.org/abs/2401.04088). docs/numerics.md, "Mixture of experts", is the specification.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiltyard/kernels.hpp"
#include "tiltyard/mapped_memory.hpp"
#include "tiltyard/packed_matrix.hpp"

namespace tiltyard {

// The `used` highest of `experts` logits, the lowest index of equals, highest first, with their weights.
// `normalize`: the weights of the chosen add up to one; else they are those of a softmax over all experts.
// `scratch` has room for 2 * round_up(experts, 8) floats.
void choose_experts(const KernelTable& kernels, const float* logits, int experts, int used, bool normalize,
                    float* scratch, int32_t* chosen, float* weights);

// The (row, rank) pairs of a batch in the order of their experts, rows in order: an expert's weights are read
// once, for all its rows.
struct ExpertGroups {
    std::vector<int32_t> chosen, place, source;  // [rows][used] expert, and place in the order; [place] row
    std::vector<float> weights;                  // [rows][used]
    std::vector<int32_t> first;                  // [experts + 1] where an expert's pairs begin
    std::vector<int> active;                     // experts that have rows, ascending
    void resize(int rows, int used, int experts);
    void group(int rows, int used, int experts);
    int rows_of(int expert) const { return first[expert + 1] - first[expert]; }
};

enum ExpertPart { kExpertGate, kExpertUp, kExpertDown, kExpertParts };

// An expert of a layer at its place in memory: a slot, or its own place where all experts are in memory.
struct PlacedExpert {
    int expert, slot;
};

// Experts that can be in memory together. `missing` must be loaded before they are used.
struct ExpertWave {
    std::vector<PlacedExpert> resident, missing;
};

struct ExpertCounters {
    uint64_t hits = 0, misses = 0, bytes_read = 0;  // an expert that a step needs: was it in memory?
    uint64_t resident = 0, slots = 0;               // experts in memory now; that fit
    uint64_t slot_bytes = 0, file_bytes = 0;        // memory of all slots; size of the file
    uint64_t least_bytes = 0;                       // one expert of each layer: the smallest budget
};

// The tiles of all experts: in memory, or in a file with room for a fixed number of experts of each layer in
// memory. Room is split evenly between the layers: a pass visits them in turn, and one list for all would,
// when it is too short for one pass, always have dropped what comes next. Within a layer the least recently
// used goes.
class ExpertStore {
  public:
    ExpertStore() = default;
    ExpertStore(int layers, int experts);
    ~ExpertStore();
    ExpertStore(const ExpertStore&) = delete;
    ExpertStore& operator=(const ExpertStore&) = delete;

    bool offloads() const { return file_ >= 0; }
    // From now on tiles go to an unnamed file in `directory`. Throws std::runtime_error if it cannot be made.
    void offload(const std::string& directory, size_t memory_bytes);
    // Remembers where a layer's part lies; while offloading, writes it to the file and drops its memory.
    void put(int layer, ExpertPart part, PackedMatrix& matrix);
    // Takes the memory for the slots; throws std::invalid_argument when the budget holds less than one expert
    // of each layer.
    void finish();

    // Decides which of the active experts are used where they are in memory, and where the others go, in
    // waves that fit: the memory of a wave's missing experts may be that of an earlier wave.
    void plan(int layer, const ExpertGroups& groups);
    // The last plan of a layer; it stays until that layer's next.
    const std::vector<ExpertWave>& waves(int layer) const { return layers_[layer].waves; }
    // An expert is read in so many pieces, so that no thread reads alone while the others wait.
    int pieces(int layer) const { return (int)((layers_[layer].slot_bytes + kLoadPiece - 1) / kLoadPiece); }
    // Read a piece of a missing expert into its slot; any thread, each piece once. Failures are kept for
    // `check`.
    void load(int layer, PlacedExpert placed, int piece);
    // Throws std::runtime_error if a load has failed since the last check, and forgets what is in memory.
    void check();
    const uint8_t* tile(int layer, ExpertPart part, PlacedExpert placed, int index) const;
    // Any thread, at any time after `finish`.
    ExpertCounters counters() const;
    // [layers][experts] rows that each expert has served; not during a pass.
    const std::vector<uint64_t>& uses() const { return uses_; }

  private:
    static constexpr size_t kLoadPiece = size_t{64} << 10;
    struct Part {
        const PackedMatrix* matrix = nullptr;
        size_t bytes = 0, file_at = 0, slot_at = 0;  // of one expert; of expert 0; within a slot
        int tiles = 0;                               // of one expert
    };
    struct Slot {
        int expert = -1;
        uint64_t used = 0;  // the plan that used it last
    };
    struct LayerExperts {
        Part parts[kExpertParts];
        size_t slot_bytes = 0;
        MappedMemory memory;
        std::vector<Slot> slots;
        std::vector<int> slot_of;  // [experts] or -1
        std::vector<ExpertWave> waves;
    };
    int place(LayerExperts& layer, int expert, bool fresh);

    int experts_ = 0, file_ = -1;
    size_t budget_ = 0, file_bytes_ = 0;
    std::vector<LayerExperts> layers_;
    uint64_t plans_ = 0;
    std::vector<uint64_t> uses_;
    std::atomic<uint64_t> hits_{0}, misses_{0}, bytes_read_{0}, resident_{0};
    std::atomic<int> failure_{0};  // errno of a load, or -1 for a file that is too short
};

}  // namespace tiltyard
