#include "tiltyard/block_formats.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tiltyard/half.hpp"

namespace tiltyard {

namespace {
uint16_t read_half(const uint8_t* p) {
    uint16_t half;
    std::memcpy(&half, p, 2);
    return half;
}
}  // namespace

GgmlType ggml_type(int number) {
    switch (number) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 6:
        case 7:
        case 8:
        case 12:
        case 13:
        case 14:
        case 30:
            return static_cast<GgmlType>(number);
        default:
            throw std::invalid_argument(
                "ggml type " + std::to_string(number) +
                " is not supported; supported: F32=0, F16=1, Q4_0=2, Q4_1=3, Q5_0=6, Q5_1=7, "
                "Q8_0=8, Q4_K=12, Q5_K=13, Q6_K=14, BF16=30");
    }
}

namespace {

struct Description {
    GgmlType type;
    const char* name;
    int values;    // in a block
    size_t bytes;  // of a block
    WeightForm form;
};
constexpr Description kTypes[] = {
    {GgmlType::f32, "F32", 1, 4, WeightForm::f32},       {GgmlType::f16, "F16", 1, 2, WeightForm::f16},
    {GgmlType::bf16, "BF16", 1, 2, WeightForm::bf16},    {GgmlType::q4_0, "Q4_0", 32, 18, WeightForm::q4},
    {GgmlType::q4_1, "Q4_1", 32, 20, WeightForm::q4},    {GgmlType::q5_0, "Q5_0", 32, 22, WeightForm::q5},
    {GgmlType::q5_1, "Q5_1", 32, 24, WeightForm::q5},    {GgmlType::q8_0, "Q8_0", 32, 34, WeightForm::q8},
    {GgmlType::q4_k, "Q4_K", 256, 144, WeightForm::q4k}, {GgmlType::q5_k, "Q5_K", 256, 176, WeightForm::q5k},
    {GgmlType::q6_k, "Q6_K", 256, 210, WeightForm::q6k},
};
const Description& described(GgmlType type) {
    for (const Description& d : kTypes)
        if (d.type == type) return d;
    throw std::invalid_argument("no ggml type");  // not reached: ggml_type made it
}

}  // namespace

std::string ggml_name(GgmlType type) { return described(type).name; }
int block_values(GgmlType type) { return described(type).values; }
size_t block_bytes(GgmlType type) { return described(type).bytes; }
WeightForm packed_form(GgmlType type) { return described(type).form; }

namespace {

// Scale and minimum j of eight, six bits each in twelve bytes.
void six_bits(const uint8_t* s, int j, int8_t* small) {
    if (j < 4) {
        small[0] = s[j] & 63, small[1] = s[j + 4] & 63;
    } else {
        small[0] = (int8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        small[1] = (int8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

}  // namespace

OpenBlock open_block(GgmlType type, const uint8_t* row, int b) {
    OpenBlock block{{}, 0, 0, {1, 1}};
    const uint8_t* raw = row + (size_t)(b * 32 / block_values(type)) * block_bytes(type);
    const int part = b % (block_values(type) / 32);
    block.d = read_half(raw);
    if (type == GgmlType::q5_0 || type == GgmlType::q5_1) {
        const uint8_t *fifth = raw + (type == GgmlType::q5_0 ? 2 : 4), *nibbles = fifth + 4;
        uint32_t bits;
        std::memcpy(&bits, fifth, 4);
        if (type == GgmlType::q5_1) block.minimum = read_half(raw + 2);
        for (int j = 0; j < 16; j++) {
            block.q[j] = (int8_t)((nibbles[j] & 15) | (bits >> j & 1) << 4);
            block.q[j + 16] = (int8_t)(nibbles[j] >> 4 | (bits >> (j + 16) & 1) << 4);
        }
    } else if (type == GgmlType::q4_k || type == GgmlType::q5_k) {
        const bool five = type == GgmlType::q5_k;
        const uint8_t *fifth = raw + 16, *nibbles = raw + (five ? 48 : 16) + part / 2 * 32;
        block.minimum =
            read_half(raw + 2) ^ 0x8000;  // it is taken off: minimum * small[1] is never positive then
        six_bits(raw + 4, part, block.small);
        for (int j = 0; j < 32; j++) {
            const int low = part % 2 ? nibbles[j] >> 4 : nibbles[j] & 15;
            block.q[j] = (int8_t)(low | (five ? fifth[j] >> part & 1 : 0) << 4);
        }
    } else {  // Q6_K: 128 bytes of nibbles, 64 of two more bits, 16 scales, d
        const uint8_t* nibbles = raw + part / 4 * 64 + part % 2 * 32;
        const uint8_t* high = raw + 128 + part / 4 * 32;
        std::memcpy(block.small, raw + 192 + part * 2, 2);
        block.d = read_half(raw + 208);
        for (int j = 0; j < 32; j++) {
            const int low = part % 4 / 2 ? nibbles[j] >> 4 : nibbles[j] & 15;
            block.q[j] = (int8_t)((low | (high[j] >> part % 4 * 2 & 3) << 4) - 32);
        }
    }
    return block;
}

void decode_row(GgmlType type, const uint8_t* raw, int n, float* out) {
    switch (type) {
        case GgmlType::f32:
            std::memcpy(out, raw, (size_t)n * 4);
            return;
        case GgmlType::f16:
            for (int i = 0; i < n; i++) out[i] = half_to_float(read_half(raw + 2 * (size_t)i));
            return;
        case GgmlType::q4_0:
            for (int b = 0; b < n / 32; b++, raw += 18, out += 32) {
                const float scale = half_to_float(read_half(raw));
                for (int j = 0; j < 16; j++) {
                    out[j] = scale * (float)((raw[2 + j] & 15) - 8);
                    out[j + 16] = scale * (float)((raw[2 + j] >> 4) - 8);
                }
            }
            return;
        case GgmlType::q4_1:
            for (int b = 0; b < n / 32; b++, raw += 20, out += 32) {
                const float scale = half_to_float(read_half(raw)),
                            minimum = half_to_float(read_half(raw + 2));
                for (int j = 0; j < 16; j++) {
                    out[j] = scale * (float)(raw[4 + j] & 15) + minimum;
                    out[j + 16] = scale * (float)(raw[4 + j] >> 4) + minimum;
                }
            }
            return;
        case GgmlType::q8_0:
            for (int b = 0; b < n / 32; b++, raw += 34, out += 32) {
                const float scale = half_to_float(read_half(raw));
                for (int j = 0; j < 32; j++) out[j] = scale * (float)(int8_t)raw[2 + j];
            }
            return;
        case GgmlType::bf16:
            for (int i = 0; i < n; i++) out[i] = bfloat_to_float(read_half(raw + 2 * (size_t)i));
            return;
        default:
            for (int b = 0; b < n / 32; b++, out += 32) {
                const OpenBlock block = open_block(type, raw, b);
                const float d = half_to_float(block.d),
                            minimum = half_to_float(block.minimum) * block.small[1];
                for (int j = 0; j < 32; j++) {
                    const float q = block.q[j];
                    if (type == GgmlType::q6_k)
                        out[j] = d * block.small[j / 16] * q;
                    else if (type == GgmlType::q5_0)
                        out[j] = d * (q - 16);
                    else
                        out[j] = d * block.small[0] * q + minimum;
                }
            }
            return;
    }
}

namespace {

void write_half(uint8_t* p, float value) {
    const uint16_t half = float_to_half(value);
    std::memcpy(p, &half, 2);
}

void encode_q4_0(const float* x, uint8_t* raw) {
    float largest = 0, extreme = 0;  // the value of the largest magnitude, with its sign
    for (int j = 0; j < 32; j++)
        if (std::fabs(x[j]) > largest) largest = std::fabs(x[j]), extreme = x[j];
    const float scale = extreme / -8.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    write_half(raw, scale);
    const auto nibble = [&](float v) {
        const int q = (int)(v * inverse + 8.5f);
        return (uint8_t)(q < 15 ? q : 15);
    };
    for (int j = 0; j < 16; j++) raw[2 + j] = (uint8_t)(nibble(x[j]) | (nibble(x[j + 16]) << 4));
}

void encode_q4_1(const float* x, uint8_t* raw) {
    float low = x[0], high = x[0];
    for (int j = 1; j < 32; j++) low = std::fmin(low, x[j]), high = std::fmax(high, x[j]);
    const float scale = (high - low) / 15.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    write_half(raw, scale), write_half(raw + 2, low);
    const auto nibble = [&](float v) {
        const int q = (int)((v - low) * inverse + 0.5f);
        return (uint8_t)(q < 15 ? q : 15);
    };
    for (int j = 0; j < 16; j++) raw[4 + j] = (uint8_t)(nibble(x[j]) | (nibble(x[j + 16]) << 4));
}

void encode_q8_0(const float* x, uint8_t* raw) {
    float largest = 0;
    for (int j = 0; j < 32; j++) largest = std::fmax(largest, std::fabs(x[j]));
    const float scale = largest / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    write_half(raw, scale);
    for (int j = 0; j < 32; j++) raw[2 + j] = (uint8_t)(int8_t)std::round(x[j] * inverse);
}

}  // namespace

void encode_row(GgmlType type, const float* values, int n, uint8_t* raw) {
    const auto encode = type == GgmlType::q4_0   ? encode_q4_0
                        : type == GgmlType::q4_1 ? encode_q4_1
                        : type == GgmlType::q8_0 ? encode_q8_0
                                                 : nullptr;
    if (!encode)
        throw std::invalid_argument("can requantize to Q4_0 (2), Q4_1 (3) or Q8_0 (8), not to " +
                                    ggml_name(type));
    for (int b = 0; b < n / 32; b++, values += 32, raw += block_bytes(type)) encode(values, raw);
}

}  // namespace tiltyard
