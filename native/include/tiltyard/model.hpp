// A decoder-only transformer of any family we know: packed weights, paged KV, and one forward pass over any
// mix of rows.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tiltyard/adapters.hpp"
#include "tiltyard/experts.hpp"
#include "tiltyard/kernels.hpp"
#include "tiltyard/kv_cache.hpp"
#include "tiltyard/packed_matrix.hpp"
#include "tiltyard/rope.hpp"
#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

enum class Activation : int { silu, gelu };  // of the feed-forward gate; gelu is its tanh form
enum class RopeStyle : int {
    adjacent,
    halves
};  // which values rotate together: (2i, 2i + 1) or (i, i + pairs)

// The sizes, and what sets a family apart from plain Llama: the defaults are Llama's.
struct ModelShape {
    int layers, heads, kv_heads, head_dim, dim, ff_dim, vocab, max_positions;
    float norm_eps;
    double rope_base;
    int rope_dim;
    bool tied_embeddings;
    Activation activation = Activation::silu;
    RopeStyle rope_style = RopeStyle::adjacent;
    bool qkv_bias = false;
    bool qk_norm = false;     // RMS norm of each query and key head, before its rotation
    bool post_norms = false;  // RMS norm of what attention and feed-forward return, before it is added
    float embedding_scale = 1;
    float query_scale = 0;     // 0: 1 / sqrt(head_dim)
    std::vector<int> windows;  // [layers] positions that a layer sees, its own included; 0 or absent: all
    std::vector<RopeFrequencies> rope_tables;  // empty: one of rope_base
    std::vector<int> layer_rope;               // [layers] which of them; absent: the first
    bool rope_factors = false;  // the tensor rope_freqs.weight divides those of the first table
    // Mixture of experts in every layer, 0: none. Weights of the chosen add up to one if `normalize_experts`.
    int experts = 0, experts_used = 0, expert_ff = 0;
    bool normalize_experts = true;
};

// One engine step: `rows` tokens of several sequences, in any order and mix. Arrays are the caller's.
struct Batch {
    int rows, sequences, table_width, outputs;
    const int32_t *tokens, *positions, *sequence;  // [rows]; `sequence` indexes rows of `tables`
    const int32_t* tables;                         // [sequences][table_width] KV block numbers
    const int32_t* output_rows;                    // [outputs] rows whose logits are wanted
    float* logits;                                 // [outputs][vocab], or nullptr
    float* hidden = nullptr;                       // [outputs][dim] instead: the final norm's output
    const int32_t* adapters = nullptr;  // [sequences] as add_adapter numbers them, 0: none; or nullptr
};

enum Operator {
    kEmbed,
    kNorm,
    kQkv,
    kAttention,
    kAttentionOutput,
    kGateUp,
    kDown,
    kHead,
    kRouter,
    kAdapters,
    kOperators
};
constexpr std::array<const char*, kOperators> kOperatorNames = {
    "embed", "norm", "qkv", "attention", "attention_output", "gate_up", "down", "head", "router", "adapters"};

struct Layer {
    std::vector<float> attention_norm, ff_norm;            // padded with zeros, as all of these
    std::vector<float> query_norm, key_norm;               // with qk_norm
    std::vector<float> attention_post_norm, ff_post_norm;  // with post_norms
    std::vector<float> query_bias, key_bias, value_bias;   // with qkv_bias
    PackedMatrix query, key, value, attention_output;
    PackedMatrix gate, up, down;  // of all experts, one after the other, where there are any
    PackedMatrix router;
};

// Buffers of one forward pass, kept between passes.
struct Workspace {
    int rows = 0;
    std::vector<float> residual, query, attention;  // [rows][padded]
    std::vector<float> projected;                   // the same, with post norms: what waits for its norm
    struct Quantized {
        std::vector<int8_t> q;
        std::vector<float> scale, sum, outlier, values;
        std::vector<uint8_t> outlier_at;
        std::vector<int32_t> bias;
    };
    Quantized normed, attended, hidden;
    // mixture of experts: [rows][padded experts]; rows in the order of their experts, [rows * used]
    std::vector<float> router, expert_outputs;
    Quantized gathered;
    ExpertGroups groups;
    std::atomic<int> chosen{0};                                      // rows that know their experts
    std::vector<float> partial_maximum, partial_total, partial_out;  // attention splits of long rows
    std::unique_ptr<std::atomic<int>[]> splits_done;                 // [kv_heads][rows]
    std::vector<AdapterRun> runs;                                    // of the rows that have an adapter
    std::vector<float> low[3];  // [rows][low width] what adapters make of x, for up to three matrices
    struct ThreadScratch {
        std::vector<float> adapted;             // of one tile
        std::vector<float> attention, outputs;  // of one attention unit; of one weight unit
        std::vector<uint8_t> unpacked;          // one q4 tile
        Quantized normed;                       // a few rows that this thread norms for itself
        struct Outliers {                       // of a chunk of rows, in one phase
            uint64_t phase = 0;
            const float* of = nullptr;
            int rows = 0, count = 0;
            std::vector<Outlier> list;
        };
        std::vector<Outliers> outliers;  // by chunk
        uint64_t phase = 0;              // of all passes
    };
    std::vector<ThreadScratch> scratch;  // [threads]
    // one attention unit: rows at consecutive positions of a sequence, a kv head, one split of the positions
    struct AttentionUnit {
        int row, rows, kv_head;
        int window;                // how many positions a row sees; 0: all
        int split, index, splits;  // the split's number from position 0; its place among those in sight
        int partial;               // where the results of its splits wait, rows of a split together; or -1
    };
    std::vector<std::vector<AttentionUnit>> units;  // one list for each window that a layer has
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
    // A matrix as `packed_matrix` of an equal model gave its tiles, instead of set_tensor; `keeper` holds
    // `tiles` until finish. Throws std::invalid_argument when size or checksum are not right.
    void set_packed(const std::string& name, int form, const uint8_t* tiles, size_t bytes, uint64_t checksum,
                    std::shared_ptr<const void> keeper);
    // A matrix that has been set; throws std::invalid_argument for any other name.
    const PackedMatrix& packed_matrix(const std::string& name);
    uint64_t checksum(const uint8_t* data, size_t bytes);  // as set_packed wants it
    // Keep experts in an unnamed file in `directory`, and as many of them in memory as `memory_bytes` hold.
    // Before the first tensor. Throws std::runtime_error if there can be no file.
    void offload_experts(const std::string& directory, size_t memory_bytes);
    // Throws std::invalid_argument naming the tensors that are missing.
    void finish();
    struct LowRankTensor {
        std::string name;         // of the matrix
        int rank, rows, columns;  // of the matrix, as the caller understands it
        const float *down, *up;   // [rank][columns], [rows][rank]
    };
    // Returns the adapter's number for batches, from 1 on. Throws std::invalid_argument naming the tensor.
    int add_adapter(float scale, const std::vector<LowRankTensor>& tensors);
    void allocate_kv(int blocks, KvPrecision precision);
    // Throws std::invalid_argument, without touching anything, when an index is out of range.
    void forward(const Batch& batch);
    // Calls job(row, thread) for each row, on the threads that run the passes; it must not throw.
    void for_rows(int rows, const std::function<void(int, int)>& job);
    const KernelTable& kernels() const { return kernels_; }

    void copy_block(int source, int target);
    void read_block(int block, uint8_t* out);
    void write_block(int block, const uint8_t* in);

    size_t kv_bytes_per_block() const { return kv_.block_bytes(); }
    size_t weight_bytes() const;
    MultiplyAdds multiply_adds() const;
    std::vector<uint64_t> expert_uses();  // [layers][experts] rows that each has served
    ExpertCounters expert_counters() const { return experts_.counters(); }  // also during a pass
    std::array<double, kOperators> operator_seconds();
    void reset_operator_seconds();

  private:
    friend class ForwardPass;
    struct Slot {
        PackedMatrix* matrix;
        RowGroups rows;
        int columns;
        std::optional<ExpertPart> part{};  // of the experts of `layer`
        int layer = 0;
    };
    std::optional<Slot> matrix_slot(const std::string& name);
    struct VectorSlot {
        std::vector<float>* vector;
        int size;
    };
    struct NamedVector {
        const char* name;
        std::vector<float>* vector;
        int size;
    };
    int layer_of(const std::string& name, std::string* rest) const;
    std::vector<NamedVector> vectors_of(Layer& layer) const;
    std::optional<VectorSlot> vector_slot(const std::string& name);
    void check_batch(const Batch& batch) const;
    void check_block(int block) const;
    void prepare(const Batch& batch);
    std::vector<Workspace::AttentionUnit> units_in(const Batch& batch, int window, int* partials) const;
    void arrange_weights();

    const ModelShape shape_;
    const KernelTable& kernels_;
    std::vector<RopeTable> rope_;
    std::vector<float> rope_factors_;
    std::vector<int> windows_;         // the different ones
    std::vector<int> layer_window_;    // [layers] which of them
    MappedMemory weights_;             // all matrices, in the order in which a pass reads them
    PackedMatrix embedding_, output_;  // tied: output_ stays empty
    std::vector<float> output_norm_;
    std::vector<Layer> layers_;
    ExpertStore experts_;
    std::vector<std::unique_ptr<Adapter>> adapters_;
    int low_width_ = 0;  // the largest rank, in whole blocks
    bool finished_ = false;
    KvCache kv_;
    Workspace work_;
    std::array<double, kOperators> seconds_{};
    std::mutex mutex_;  // one pass at a time, whoever calls
    ThreadPool pool_;   // last: its threads may look at all of the above until they have ended
};

}  // namespace tiltyard
