#include "tiltyard/packed_matrix.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tiltyard/half.hpp"
#include "tiltyard/share_out.hpp"

namespace tiltyard {

namespace {

constexpr size_t kQ4Scales = 256, kQ4Minima = 288, kQ8Scales = 512;  // offsets in a tile block

// -8 * scale as a half: exact, unless it leaves the range.
uint16_t q4_0_minimum(uint16_t scale, const std::string& name) {
    const uint16_t minimum = float_to_half(-8.0f * half_to_float(scale));
    if ((minimum & 0x7c00) == 0x7c00)
        throw std::invalid_argument(name +
                                    ": a Q4_0 scale exceeds 8188, or is not finite; the file is damaged");
    return minimum;
}

}  // namespace

PackedMatrix::PackedMatrix(const std::string& name, GgmlType type, const uint8_t* raw, size_t bytes,
                           RowGroups rows, int columns, std::optional<GgmlType> requantize, ThreadPool* pool)
    : form_(packed_form(requantize.value_or(type))), groups_(rows), columns_(columns) {
    if (columns % block_values(type))
        throw std::invalid_argument(name + ": " + std::to_string(columns) +
                                    " columns do not fill blocks of 32, which " + ggml_name(type) +
                                    " needs; use F16 or F32");
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
            minimum = q4_0_minimum(scale, name);
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
    if (form_ == WeightForm::f16) {
        for (int k = 0; k < columns_; k++) out[k] = half(tile + ((size_t)k * kTileRows + in_tile) * 2);
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
