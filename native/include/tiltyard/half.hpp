// IEEE binary16 <-> binary32 in integer arithmetic: the same bits on every machine, with or without F16C.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tiltyard {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31,
                   mantissa = half & 1023;
    uint32_t bits;
    if (exponent == 0) {
        const float magnitude =
            (float)mantissa * 5.9604644775390625e-8f;  // subnormal: mantissa * 2^-24, exact
        std::memcpy(&bits, &magnitude, 4);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000 | (mantissa << 13);
        if (mantissa) bits |= 0x00400000;  // F16C quiets a NaN, so do we
    } else {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// bfloat16 is the upper half of a binary32.
inline float bfloat_to_float(uint16_t upper) {
    const uint32_t bits = (uint32_t)upper << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Round to nearest, ties to even; too large becomes infinity.
inline uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((bits >> 13) & 0x1ff));
    if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (bits < 0x38800000) {  // subnormal result: scale by 2^24 (exact) and let the FPU round
        float magnitude;
        std::memcpy(&magnitude, &bits, 4);
        return (uint16_t)(sign | (uint16_t)std::nearbyint(magnitude * 16777216.0f));
    }
    const uint32_t rebiased = bits - 0x38000000;
    return (uint16_t)(sign | (uint16_t)((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13));
}

}  // namespace tiltyard
