// The table of numeric kernels. There is one instance per instruction set, and all give the same bits.
//
// Shapes are padded: a row of n values occupies round_up(n, 32) floats, the rest zero, so that no kernel has
// a tail.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tiltyard {

constexpr int kQuantBlock = 32;   // values that share a quantisation scale, along the reduction
constexpr int kTileRows = 16;     // output rows in a weight tile: two groups of eight lanes
constexpr int kTileTokens = 8;    // the most tokens in a register block, on any instruction set
constexpr int kBlockTokens = 32;  // tokens in a KV block
constexpr int kSplitBlocks = 8;   // KV blocks in one attention split: boundaries depend on the position alone
constexpr int kSplitTokens = kBlockTokens * kSplitBlocks;

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// How a weight matrix lies in memory; f16, f32 and bf16 take float activations, the others int8 ones.
enum class WeightForm : int { q4 = 0, q8 = 1, f16 = 2, f32 = 3, bf16 = 4, q5 = 5, q4k = 6, q5k = 7, q6k = 8 };
constexpr int kWeightForms = 9;
constexpr bool takes_int8(WeightForm form) {
    return form != WeightForm::f16 && form != WeightForm::f32 && form != WeightForm::bf16;
}
// Bytes of one tile block: 16 rows x 32 values along the reduction.
//   q4:  4 x 16 rows x 4 bytes of nibbles (k = 4j .. 4j+3 low, 16 + 4j .. high), 16 f16 scales, 16 f16 minima
//   q8:  8 x 16 rows x 4 bytes of int8, 16 f16 scales
//   f16, f32, bf16: [k][row]
//   q5:  nibbles as q4, 16 rows x 4 bytes of fifth bits (bit s: step s, see matmul_blocks.inl), 16 f16
//   scales,
//        16 f16 minima
//   q4k: eight blocks of 256 bytes of nibbles, 16 scales and 16 minima of one byte; behind the eight 16 f16
//        scales of scales, 16 f16 scales of minima, negated
//   q5k: the same, with the fifth bits behind the nibbles
//   q6k: eight blocks of nibbles, 2 x 64 bytes of high bits, 2 x 16 int8 scales; behind the eight 16 f16
//   scales
constexpr size_t tile_block_bytes(WeightForm form) {
    constexpr size_t bytes[kWeightForms] = {320, 544, 1024, 2048, 1024, 384, 296, 360, 420};
    return bytes[static_cast<int>(form)];
}

// An unpacked tile block: 16 x 32 bytes, 16 float scales, 16 float minima (q6k: 2 x 16 int8 scales).
constexpr size_t kUnpackedBytes = 640;
constexpr int kUnpackBlocks = 128;  // longest row (4096 values) whose unpacked tile still fits the L2 cache
constexpr int kChunkRows = 32;      // token rows that pass a weight unit together: their outputs stay in L1
constexpr int kRunRows = 16;        // token rows that pass a KV block together
constexpr int kUnitColumns = 256;   // widest weight unit: an attention head

enum class KvPrecision : int { f16 = 0, int8 = 1 };

// Token rows as a matrix sees them. int8: value = scale * q, in blocks of 32. A block in which one value
// holds more than half of the energy would leave the others few of the 8 bits: that value stands aside, as a
// float, and its q is 0. `sum` is the sum of a block's values.
struct Activations {
    const int8_t* q = nullptr;
    const float* scale = nullptr;
    const float* sum = nullptr;
    const float* outlier = nullptr;       // 0: none
    const uint8_t* outlier_at = nullptr;  // its place in the block
    const float* values = nullptr;        // float rows, for f16 and f32 weights
    size_t row_values = 0;                // padded length of a row
    size_t row_blocks = 0;  // padded length of a row's scales: a multiple of 8, zeros after the last block
    const int32_t* bias = nullptr;  // -128 * sum of q: see simd_avx512.hpp
    Activations from(int row) const {
        const size_t v = row * row_values, b = row * row_blocks;
        return {q + v,      scale + b,  sum + b,    outlier + b, outlier_at + b,
                values + v, row_values, row_blocks, bias + b};
    }
};

// A value that stands aside: of which row of a chunk, in which block, at which of its 32 places.
struct Outlier {
    float value;
    uint16_t block;
    uint8_t place, row;
};

// Where blocks of 32 are quantised to.
struct QuantizedBlocks {
    int8_t* q;
    float* scale;
    float* sum;
    float* outlier;
    uint8_t* outlier_at;
    int32_t* bias;
    QuantizedBlocks from(int block) const {
        return {q + block * kQuantBlock, scale + block,      sum + block,
                outlier + block,         outlier_at + block, bias + block};
    }
};

// The tokens that one or more rows in a row may see, as KV blocks of one (layer, kv head), in one split.
struct KvView {
    const int32_t* table = nullptr;  // block numbers, in position order
    int tokens = 0;                  // positions from the start of the table that the first row sees; each
                                     // further row sees one more, up to the end of the split
    bool window = false;             // of these, only some: from `first` for the first row, one more for each
    int first = 0;                   // further row; below zero: from the start of the table
    const uint8_t* keys =
        nullptr;  // the keys of this layer and head in block 0; the values follow `part_bytes` later
    size_t part_bytes = 0;
    size_t block_bytes = 0;  // from one block to the next
};

// Who attends: `rows` tokens at consecutive positions, each with `heads` query heads of one kv head.
struct AttendTask {
    int rows, heads, head_dim;
    const float* q;          // [rows][heads][head_dim]
    float *maximum, *total;  // [rows][heads], written
    float* out;              // [rows][heads][head_dim], written, not yet divided by total
    float* scratch;          // [2][32][head_dim]
};

constexpr int kRowBlock = 256;                // logits that the sampler looks at or passes over together
constexpr double kMassOne = 1099511627776.0;  // 2^40: what the likeliest token weighs

struct KernelTable {
    const char* isa;
    int tile_tokens;  // the most token rows that one tile call takes, at most kTileTokens
    // out[t * stride + r] = sum over k of W[r][k] * x[t][k], outliers left out, for `tokens` <= tile_tokens
    // and `blocks` blocks of 32 along k
    void (*tile[kWeightForms])(const uint8_t* weights, int blocks, Activations x, int tokens, float* out,
                               int stride);
    // The same in two steps, when many tokens pass a tile: nibbles become bytes and halves floats only once.
    // Null where that does not pay.
    void (*unpack[kWeightForms])(const uint8_t* weights, int blocks,
                                 uint8_t* out);  // blocks * kUnpackedBytes
    void (*tile_unpacked[kWeightForms])(const uint8_t* unpacked, int blocks, Activations x, int tokens,
                                        float* out, int stride);
    // The outliers of `rows` <= 256 rows, those of a row in the order of its blocks; returns how many.
    int (*list_outliers)(const Activations& x, int rows, Outlier* list);  // [rows * row_blocks]
    // Adds them to what `tile` made of the packed tile, after it. Null for weights that take floats.
    void (*add_outliers[kWeightForms])(const uint8_t* weights, const Outlier* outliers, int count, float* out,
                                       int stride);

    // RMS norm of n values in a row of `padded`
    void (*norm_int8)(const float* x, const float* gain, float eps, int n, int padded, QuantizedBlocks out);
    void (*norm_float)(const float* x, const float* gain, float eps, int n, int padded, float* out);
    void (*quantize)(const float* x, int padded, QuantizedBlocks out);
    void (*silu_multiply)(const float* gate, const float* up, int padded, float* out);
    void (*gelu_multiply)(const float* gate, const float* up, int padded, float* out);
    // rotates pairs (2i, 2i+1), i < pairs, then scales all n values
    void (*rotate)(float* x, const float* cosine, const float* sine, int pairs, float scale, int n);
    // the same with pairs (i, i + pairs)
    void (*rotate_halves)(float* x, const float* cosine, const float* sine, int pairs, float scale, int n);
    void (*add)(float* x, const float* y, int n);                      // x += y, n a multiple of 8
    void (*add_scaled)(float* x, const float* y, float scale, int n);  // x = fma(scale, y, x), the same n

    void (*attend[2])(const AttendTask& task, const KvView& kv);
    // (maximum, total, out) <- merged with the split that follows it
    void (*merge)(float* maximum, float* total, float* out, float maximum2, float total2, const float* out2,
                  int n);
    void (*finish)(float total, const float* in, float* out, int n);
    // one token's vector into its slot of a KV block; keys lie transposed, so that scores need no horizontal
    // sum
    void (*put_key[2])(const float* x, int head_dim, int slot, uint8_t* part);
    void (*put_value[2])(const float* x, int head_dim, int slot, uint8_t* part);

    // sampling, over one row of n logits, n arbitrary
    float (*row_maximum)(const float* x, int n);
    // of each block of kRowBlock (256) values, the last one shorter; whether no value is NaN
    bool (*row_block_maxima)(const float* x, int n, float* maxima);
    // x[i] = -infinity where bit i % 32 of mask[i / 32] is 0, then as row_block_maxima; a block of which
    // nothing may stay is left as it is, its maximum is -infinity
    bool (*row_mask)(float* x, int n, const uint32_t* mask, float* maxima);
    // writes first + i for each x[i] >= lowest, in order; returns how many
    int (*row_at_least)(const float* x, int n, float lowest, int first, int32_t* ids);
    int (*row_find)(const float* x, int n, float value);  // first index that equals value, or -1
    // weight[i] = exp((x[i] - maximum) / temperature), 0 below -87; has room for whole eights
    void (*row_weights)(const float* x, int n, float maximum, float temperature, float* weight);
    // sum of floor(weight * kMassOne) over at most kRowBlock values, none of them NaN
    int64_t (*row_mass)(const float* x, int n, float maximum, float temperature);
    double (*row_exp_total)(const float* x, int n, float maximum);  // sum of exp(x - maximum)

    // for measuring; see ceilings.inl
    double (*most_int4)(int rounds, uint8_t* scratch);
    double (*most_int8)(int rounds, uint8_t* scratch);
    void (*read_all)(const uint8_t* p, size_t bytes, uint8_t* scratch);
};

extern const KernelTable kernels_scalar;
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
extern const KernelTable kernels_avx512_vnni;
extern const KernelTable kernels_neon;
extern const KernelTable kernels_neon_dot;

}  // namespace tiltyard
