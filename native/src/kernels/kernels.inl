// The kernels, written once over a vocabulary of eight and of sixteen lanes. One .cpp per instruction set
// includes this inside an anonymous namespace, after its simd_*.hpp.
//
// The rule: every output is made by ONE sequence of float operations, which depends on that output's own
// inputs only; never on how many tokens share the call, on the batch, the threads, or where KV blocks lie.

template <class Tile, int M = kMostTokens>
static void tile_any(const uint8_t* w, int blocks, Activations x, int tokens, float* out, int stride) {
    if constexpr (M > 1)
        if (tokens < M) return tile_any<Tile, M - 1>(w, blocks, x, tokens, out, stride);
    Tile::template run<M>(w, blocks, x, out, stride);
}

#include "lanes.inl"
//
#include "matmul_int8.inl"
//
#include "matmul_float.inl"
//
#include "matmul_blocks.inl"
//
#include "elementwise.inl"
//
#include "attention.inl"
//
#include "rows.inl"
//
#include "ceilings.inl"

constexpr KernelTable make_table(const char* isa) {
    return {
        .isa = isa,
        .tile_tokens = kMostTokens,
        .tile = {tile_any<TileQ4>, tile_any<TileQ8>, tile_any<TileFloat<WeightForm::f16>>,
                 tile_any<TileFloat<WeightForm::f32>>, tile_any<TileFloat<WeightForm::bf16>>,
                 tile_any<TileBlocks<BlocksQ5>>, tile_any<TileBlocks<BlocksK<4>>>,
                 tile_any<TileBlocks<BlocksK<5>>>, tile_any<TileBlocks<BlocksQ6K>>},
        // with all sums in registers a tile is read so seldom that unpacking it first gains nothing
        .unpack = {kMostTokens > kTokensInRegisters ? unpack_q4 : nullptr, nullptr, nullptr, nullptr, nullptr,
                   unpack_blocks<BlocksQ5>, unpack_blocks<BlocksK<4>>, unpack_blocks<BlocksK<5>>,
                   unpack_blocks<BlocksQ6K>},
        .tile_unpacked = {tile_any<TileQ4Unpacked>, nullptr, nullptr, nullptr, nullptr,
                          tile_any<TileOpened<BlocksQ5>>, tile_any<TileOpened<BlocksK<4>>>,
                          tile_any<TileOpened<BlocksK<5>>>, tile_any<TileOpened<BlocksQ6K>>},
        .list_outliers = list_outliers,
        .add_outliers = {add_outliers<TileQ4>, add_outliers<TileQ8>, nullptr, nullptr, nullptr,
                         add_outliers<BlocksQ5>, add_outliers<BlocksK<4>>, add_outliers<BlocksK<5>>,
                         add_outliers<BlocksQ6K>},
        .norm_int8 = norm_int8,
        .norm_float = norm_float,
        .quantize = quantize,
        .silu_multiply = silu_multiply,
        .gelu_multiply = gelu_multiply,
        .rotate = rotate,
        .rotate_halves = rotate_halves,
        .add = add,
        .add_scaled = add_scaled,
        .attend = {attend<KvF16>, attend<KvInt8>},
        .merge = merge,
        .finish = finish,
        .put_key = {KvF16::put_key, KvInt8::put_key},
        .put_value = {KvF16::put_value, KvInt8::put_value},
        .row_maximum = row_maximum,
        .row_block_maxima = row_block_maxima,
        .row_mask = row_mask,
        .row_at_least = row_at_least,
        .row_find = row_find,
        .row_weights = row_weights,
        .row_mass = row_mass,
        .row_exp_total = row_exp_total,
        .most_int4 = most_int4,
        .most_int8 = most_int8,
        .read_all = read_all,
    };
}
