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
        case 8:
            return static_cast<GgmlType>(number);
        default:
            throw std::invalid_argument("ggml type " + std::to_string(number) +
                                        " is not supported; supported: F32=0, F16=1, Q4_0=2, Q4_1=3, Q8_0=8");
    }
}

std::string ggml_name(GgmlType type) {
    switch (type) {
        case GgmlType::f32:
            return "F32";
        case GgmlType::f16:
            return "F16";
        case GgmlType::q4_0:
            return "Q4_0";
        case GgmlType::q4_1:
            return "Q4_1";
        case GgmlType::q8_0:
            return "Q8_0";
    }
    return "?";
}

int block_values(GgmlType type) { return type == GgmlType::f32 || type == GgmlType::f16 ? 1 : 32; }

size_t block_bytes(GgmlType type) {
    switch (type) {
        case GgmlType::f32:
            return 4;
        case GgmlType::f16:
            return 2;
        case GgmlType::q4_0:
            return 18;
        case GgmlType::q4_1:
            return 20;
        case GgmlType::q8_0:
            return 34;
    }
    return 0;
}

WeightForm packed_form(GgmlType type) {
    switch (type) {
        case GgmlType::f32:
            return WeightForm::f32;
        case GgmlType::f16:
            return WeightForm::f16;
        case GgmlType::q8_0:
            return WeightForm::q8;
        default:
            return WeightForm::q4;
    }
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

void encode_q8_0(const float* x, uint8_t* raw) {
    float largest = 0;
    for (int j = 0; j < 32; j++) largest = std::fmax(largest, std::fabs(x[j]));
    const float scale = largest / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f;
    write_half(raw, scale);
    for (int j = 0; j < 32; j++) raw[2 + j] = (uint8_t)(int8_t)std::round(x[j] * inverse);
}

}  // namespace

void encode_row(GgmlType type, const float* values, int n, uint8_t* raw) {
    if (type != GgmlType::q4_0 && type != GgmlType::q8_0)
        throw std::invalid_argument("can requantize to Q4_0 (2) or Q8_0 (8), not to " + ggml_name(type));
    for (int b = 0; b < n / 32; b++, values += 32, raw += block_bytes(type))
        type == GgmlType::q4_0 ? encode_q4_0(values, raw) : encode_q8_0(values, raw);
}

}  // namespace tiltyard
