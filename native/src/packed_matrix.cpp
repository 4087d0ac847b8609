#include "tiltyard/packed_matrix.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tiltyard/half.hpp"
#include "tiltyard/share_out.hpp"

namespace tiltyard {

namespace {

constexpr size_t kQ4Scales = 256, kQ4Minima = 288, kQ8Scales = 512;  // offsets in a tile block

// -8 or -16 times a scale, as a half: exact, unless it leaves the range.
uint16_t centred(float middle, uint16_t scale, const std::string& name, GgmlType type) {
    const uint16_t minimum = float_to_half(-middle * half_to_float(scale));
    if ((minimum & 0x7c00) == 0x7c00)
        throw std::invalid_argument(name + ": a " + ggml_name(type) + " scale exceeds " +
                                    (middle == 8 ? "8188" : "4094") +
                                    ", or is not finite; the file is damaged");
    return minimum;
}

// Where a block of matmul_blocks.inl lies: 4 x 64 bytes of nibbles, 64 more for each bit above four, then, in
// a super-block, the small scales; behind the blocks of a super-block its halves.
struct BlockLayout {
    int high_bits;
    int blocks;          // in a super-block
    size_t small_bytes;  // of a block
    size_t half_bytes;   // of a super-block
    size_t quant_bytes() const { return 256 + 64 * (size_t)high_bits; }
    size_t block_bytes() const { return quant_bytes() + small_bytes; }
    size_t super_bytes() const { return blocks * block_bytes() + half_bytes; }
    size_t block(int b) const { return b / blocks * super_bytes() + b % blocks * block_bytes(); }
    size_t halves(int b) const { return b / blocks * super_bytes() + blocks * block_bytes(); }
};
BlockLayout layout_of(WeightForm form) {
    switch (form) {
        case WeightForm::q4k:
            return {0, 8, 32, 64};
        case WeightForm::q5k:
            return {1, 8, 32, 64};
        case WeightForm::q6k:
            return {2, 8, 32, 32};
        default:
            return {1, 1, 0, 64};  // q5
    }
}
// Value k of a block is in step s, at place `at` of the step's bytes (for row 0), in bits of plane `plane`.
struct ValuePlace {
    int step, at, plane, shift;
    ValuePlace(int k, int high_bits)
        : step(k % 16 / 4 * 2 + k / 16),
          at(k % 4),
          plane(high_bits ? step / (8 / high_bits) : 0),
          shift(high_bits ? step % (8 / high_bits) * high_bits : 0) {}
};

void pack_block(WeightForm form, GgmlType type, const OpenBlock& block, const std::string& name, int b,
                int row, uint8_t* tile) {
    const BlockLayout layout = layout_of(form);
    uint8_t* at = tile + layout.block(b);
    for (int k = 0; k < kQuantBlock; k++) {
        const ValuePlace place(k, layout.high_bits);
        const int q = form == WeightForm::q6k ? block.q[k] + 32 : block.q[k];
        at[place.step / 2 * 64 + row * 4 + place.at] |= (uint8_t)((q & 15) << place.step % 2 * 4);
        if (layout.high_bits)
            at[256 + place.plane * 64 + row * 4 + place.at] |= (uint8_t)(q >> 4 << place.shift);
    }
    if (layout.small_bytes)
        for (int i = 0; i < 2; i++) at[layout.quant_bytes() + i * kTileRows + row] = (uint8_t)block.small[i];
    const uint16_t minimum = type == GgmlType::q5_0 ? centred(16, block.d, name, type) : block.minimum;
    uint8_t* halves = tile + layout.halves(b);
    std::memcpy(halves + row * 2, &block.d, 2);
    if (form != WeightForm::q6k) std::memcpy(halves + 2 * kTileRows + row * 2, &minimum, 2);
}

void decode_block(WeightForm form, const uint8_t* tile, int b, int row, float* out) {
    const BlockLayout layout = layout_of(form);
    const uint8_t *at = tile + layout.block(b), *halves = tile + layout.halves(b) + row * 2;
    int8_t small[2] = {1, 1};
    if (layout.small_bytes)
        for (int i = 0; i < 2; i++) small[i] = (int8_t)at[layout.quant_bytes() + i * kTileRows + row];
    uint16_t d, minimum = 0;
    std::memcpy(&d, halves, 2);
    if (form != WeightForm::q6k) std::memcpy(&minimum, halves + 2 * kTileRows, 2);
    const float added = half_to_float(minimum) * (float)small[1];
    for (int k = 0; k < kQuantBlock; k++) {
        const ValuePlace place(k, layout.high_bits);
        int q = at[place.step / 2 * 64 + row * 4 + place.at] >> place.step % 2 * 4 & 15;
        if (layout.high_bits)
            q |= (at[256 + place.plane * 64 + row * 4 + place.at] >> place.shift &
                  ((1 << layout.high_bits) - 1))
                 << 4;
        if (form == WeightForm::q6k)
            out[k] = half_to_float(d) * (float)small[k / 16] * (float)(q - 32);
        else
            out[k] = half_to_float(d) * (float)small[0] * (float)q + added;
    }
}

}  // namespace

PackedMatrix::PackedMatrix(const std::string& name, GgmlType type, const uint8_t* raw, size_t bytes,
                           RowGroups rows, int columns, std::optional<GgmlType> requantize, ThreadPool* pool)
    : form_(packed_form(requantize.value_or(type))), groups_(rows), columns_(columns) {
    if (columns % block_values(type))
        throw std::invalid_argument(name + ": " + std::to_string(columns) +
                                    " columns do not fill blocks of " + std::to_string(block_values(type)) +
                                    ", which " + ggml_name(type) + " needs; use F16 or F32");
    const size_t row_bytes = (size_t)columns / block_values(type) * block_bytes(type);
    if (bytes != row_bytes * rows.rows)
        throw std::invalid_argument(name + ": " + std::to_string(bytes) + " bytes, but " +
                                    std::to_string(rows.rows) + " x " + std::to_string(columns) +
                                    " values of " + ggml_name(type) + " are " +
                                    std::to_string(row_bytes * rows.rows));
    if (requantize == type) requantize.reset();
    if (requantize && columns % kQuantBlock)
        throw std::invalid_argument(name + ": " + std::to_string(columns) +
                                    " columns do not fill blocks of 32, so it cannot be requantized");
    memory_ = MappedMemory(this->bytes());
    base_ = memory_.data();
    share_out(pool, rows.rows, 4 * kTileRows, [&](int first, int last) {
        std::vector<float> values(requantize ? columns : 0);
        std::vector<uint8_t> encoded(requantize ? (size_t)columns / kQuantBlock * block_bytes(*requantize)
                                                : 0);
        for (int r = first; r < last; r++) {
            const uint8_t* row = raw + r * row_bytes;
            if (requantize) {
                decode_row(type, row, columns, values.data());
                encode_row(*requantize, values.data(), columns, encoded.data());
            }
            pack_row(name, requantize.value_or(type), requantize ? encoded.data() : row, r);
        }
    });
}

PackedMatrix::PackedMatrix(const std::string& name, WeightForm form, const uint8_t* tiles, size_t bytes,
                           RowGroups rows, int columns, std::shared_ptr<const void> keeper)
    : keeper_(std::move(keeper)), base_(tiles), form_(form), groups_(rows), columns_(columns) {
    if (bytes != this->bytes())
        throw std::invalid_argument(name + ": " + std::to_string(bytes) +
                                    " packed bytes, but its shape takes " + std::to_string(this->bytes()));
}

void PackedMatrix::pack_row(const std::string& name, GgmlType type, const uint8_t* raw, int row) {
    const int at = packed_row(row), in_tile = at % kTileRows;
    uint8_t* tile = memory_.data() + (size_t)(at / kTileRows) * tile_bytes();
    if (!takes_int8(form_)) {
        const size_t size = block_bytes(type);
        for (int k = 0; k < columns_; k++)
            std::memcpy(tile + ((size_t)k * kTileRows + in_tile) * size, raw + k * size, size);
        return;
    }
    if (form_ != WeightForm::q8 && form_ != WeightForm::q4) {
        for (int b = 0; b < columns_ / kQuantBlock; b++)
            pack_block(form_, type, open_block(type, raw, b), name, b, in_tile, tile);
        return;
    }
    for (int b = 0; b < columns_ / kQuantBlock;
         b++, tile += tile_block_bytes(form_), raw += block_bytes(type)) {
        if (form_ == WeightForm::q8) {
            for (int j = 0; j < 8; j++) std::memcpy(tile + j * 64 + in_tile * 4, raw + 2 + j * 4, 4);
            std::memcpy(tile + kQ8Scales + in_tile * 2, raw, 2);
            continue;
        }
        uint16_t scale, minimum;
        std::memcpy(&scale, raw, 2);
        if (type == GgmlType::q4_0)
            minimum = centred(8, scale, name, type);
        else
            std::memcpy(&minimum, raw + 2, 2);
        // In the file byte j holds k = j (low nibble) and k = j + 16 (high). The tile keeps that pairing:
        // register j holds, in a row's lane, k = 4j .. 4j+3 low and 16 + 4j .. high, so four bytes are copied
        // as they are.
        const uint8_t* nibbles = raw + (type == GgmlType::q4_0 ? 2 : 4);
        for (int j = 0; j < 4; j++) std::memcpy(tile + j * 64 + in_tile * 4, nibbles + j * 4, 4);
        std::memcpy(tile + kQ4Scales + in_tile * 2, &scale, 2);
        std::memcpy(tile + kQ4Minima + in_tile * 2, &minimum, 2);
    }
}

void PackedMatrix::move_to(uint8_t* base, int run, int period, ThreadPool* pool) {
    share_out(pool, tiles(), 4, [&](int first, int last) {
        for (int i = first; i < last; i++)
            std::memcpy(base + (size_t)(i / run * period + i % run) * tile_bytes(), tile(i), tile_bytes());
    });
    base_ = base, run_ = run, period_ = period;
    memory_ = MappedMemory();
    keeper_.reset();
}

void PackedMatrix::copy_tiles(uint8_t* out) const {
    for (int i = 0; i < tiles(); i++) std::memcpy(out + i * tile_bytes(), tile(i), tile_bytes());
}

void PackedMatrix::decode(int row, float* out) const {
    const int at = packed_row(row), in_tile = at % kTileRows;
    const uint8_t* tile = this->tile(at / kTileRows);
    const auto half = [](const uint8_t* p) {
        uint16_t h;
        std::memcpy(&h, p, 2);
        return half_to_float(h);
    };
    if (form_ == WeightForm::f32) {
        for (int k = 0; k < columns_; k++)
            std::memcpy(out + k, tile + ((size_t)k * kTileRows + in_tile) * 4, 4);
        return;
    }
    if (form_ == WeightForm::bf16) {
        for (int k = 0; k < columns_; k++) {
            uint16_t upper;
            std::memcpy(&upper, tile + ((size_t)k * kTileRows + in_tile) * 2, 2);
            out[k] = bfloat_to_float(upper);
        }
        return;
    }
    if (form_ == WeightForm::f16) {
        for (int k = 0; k < columns_; k++) out[k] = half(tile + ((size_t)k * kTileRows + in_tile) * 2);
        return;
    }
    if (form_ != WeightForm::q8 && form_ != WeightForm::q4) {
        for (int b = 0; b < columns_ / kQuantBlock; b++)
            decode_block(form_, tile, b, in_tile, out + b * kQuantBlock);
        return;
    }
    for (int b = 0; b < columns_ / kQuantBlock; b++, tile += tile_block_bytes(form_), out += kQuantBlock) {
        if (form_ == WeightForm::q8) {
            const float scale = half(tile + kQ8Scales + in_tile * 2);
            const auto* q = reinterpret_cast<const int8_t*>(tile) + in_tile * 4;
            for (int k = 0; k < kQuantBlock; k++) out[k] = scale * (float)q[k / 4 * 64 + k % 4];
        } else {
            const float scale = half(tile + kQ4Scales + in_tile * 2),
                        minimum = half(tile + kQ4Minima + in_tile * 2);
            const uint8_t* q = tile + in_tile * 4;
            for (int k = 0; k < 16; k++) {
                const uint8_t byte = q[k / 4 * 64 + k % 4];
                out[k] = scale * (float)(byte & 15) + minimum;
                out[k + 16] = scale * (float)(byte >> 4) + minimum;
            }
        }
    }
}

}  // namespace tiltyard
