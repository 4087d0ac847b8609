// A Llama-architecture model: packed weights, paged KV, and one forward pass over any mix of rows.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tiltyard/kernels.hpp"
#include "tiltyard/kv_cache.hpp"
#include "tiltyard/packed_matrix.hpp"
#include "tiltyard/rope.hpp"
#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

struct ModelShape {
    int layers, heads, kv_heads, head_dim, dim, ff_dim, vocab, max_positions;
    float norm_eps;
    double rope_base;
    int rope_dim;
    bool tied_embeddings;
};

// One engine step: `rows` tokens of several sequences, in any order and mix. Arrays are the caller's.
struct Batch {
    int rows, sequences, table_width, outputs;
    const int32_t *tokens, *positions, *sequence;  // [rows]; `sequence` indexes rows of `tables`
    const int32_t* tables;                         // [sequences][table_width] KV block numbers
    const int32_t* output_rows;                    // [outputs] rows whose logits are wanted
    float* logits;                                 // [outputs][vocab]
};

enum Operator { kEmbed, kNorm, kQkv, kAttention, kAttentionOutput, kGateUp, kDown, kHead, kOperators };
constexpr std::array<const char*, kOperators> kOperatorNames = {
    "embed", "norm", "qkv", "attention", "attention_output", "gate_up", "down", "head"};

struct Layer {
    std::vector<float> attention_norm, ff_norm;  // padded with zeros
    PackedMatrix query, key, value, attention_output, gate, up, down;
};

// Buffers of one forward pass, kept between passes.
struct Workspace {
    int rows = 0;
    std::vector<float> residual, query, attention;  // [rows][padded]
    struct Quantized {
        std::vector<int8_t> q;
        std::vector<float> scale, sum, outlier, values;
        std::vector<uint8_t> outlier_at;
        std::vector<int32_t> bias;
    };
    Quantized normed, attended, hidden;
    std::vector<float> partial_maximum, partial_total, partial_out;  // attention splits of long rows
    std::unique_ptr<std::atomic<int>[]> splits_done;                 // [kv_heads][rows]
    struct ThreadScratch {
        std::vector<float> attention, outputs;  // of one attention unit; of one weight unit
        std::vector<uint8_t> unpacked;          // one q4 tile
        Quantized normed;                       // a few rows that this thread norms for itself
    };
    std::vector<ThreadScratch> scratch;  // [threads]
    // one attention unit: a row, a kv head, one split of its positions
    struct AttentionUnit {
        int row, kv_head, split, splits, partial;  // partial: where its result waits, or -1
    };
    std::vector<AttentionUnit> units;
};

// Multiply-adds that the matrices take for one row, by weights: 4 bits, 8 bits, floats.
struct MultiplyAdds {
    std::array<int64_t, 3> layers{}, head{};
};

class Model {
  public:
    // Throws std::invalid_argument naming the field.
    Model(const ModelShape& shape, int threads, const std::string& isa);

    const ModelShape& shape() const { return shape_; }
    int threads() const { return pool_.size(); }
    const char* isa() const { return kernels_.isa; }

    // Packs at once; `raw` may go away afterwards. Names and layouts are GGUF's.
    void set_tensor(const std::string& name, GgmlType type, const uint8_t* raw, size_t bytes,
                    std::optional<GgmlType> requantize);
    // Throws std::invalid_argument naming the tensors that are missing.
    void finish();
    void allocate_kv(int blocks, KvPrecision precision);
    // Throws std::invalid_argument, without touching anything, when an index is out of range.
    void forward(const Batch& batch);

    void copy_block(int source, int target);
    void read_block(int block, uint8_t* out);
    void write_block(int block, const uint8_t* in);

    size_t kv_bytes_per_block() const { return kv_.block_bytes(); }
    size_t weight_bytes() const;
    MultiplyAdds multiply_adds() const;
    std::array<double, kOperators> operator_seconds();
    void reset_operator_seconds();

  private:
    friend class ForwardPass;
    struct Slot {
        PackedMatrix* matrix;
        RowGroups rows;
        int columns;
    };
    std::optional<Slot> matrix_slot(const std::string& name);
    std::vector<float>* vector_slot(const std::string& name);
    void check_batch(const Batch& batch) const;
    void check_block(int block) const;
    void prepare(const Batch& batch);
    void arrange_weights();

    const ModelShape shape_;
    const KernelTable& kernels_;
    RopeTable rope_;
    MappedMemory weights_;             // all matrices, in the order in which a pass reads them
    PackedMatrix embedding_, output_;  // tied: output_ stays empty
    std::vector<float> output_norm_;
    std::vector<Layer> layers_;
    bool finished_ = false;
    KvCache kv_;
    Workspace work_;
    std::array<double, kOperators> seconds_{};
    std::mutex mutex_;  // one pass at a time, whoever calls
    ThreadPool pool_;   // last: its threads may look at all of the above until they have ended
};

}  // namespace tiltyard
