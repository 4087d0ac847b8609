// exp, log, sin and cos in double from IEEE additions and multiplications alone: libm differs between
// machines.
//
// Taylor polynomials with coefficients 1 / n!, evaluated by Horner's rule; accurate to about 1e-15, far below
// the float that the results are rounded to. docs/numerics.md gives them in full.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tiltyard {

// ln 2 and pi / 2 in parts: the high ones end in zeros, so that small multiples of them are exact.
constexpr double kLn2High = 0.6931471804855391, kLn2Low = 7.440617110012397e-11;
constexpr double kHalfPiHigh = 1.5707963267341256, kHalfPiMiddle = 6.077100506303966e-11,
                 kHalfPiLow = 2.0222662487959506e-21;

inline double exact_exp(double x) {
    const double n = std::nearbyint(x * 1.4426950408889634);
    const double r = (x - n * kLn2High) - n * kLn2Low;
    double p = 1.0;
    for (int i = 14; i >= 1; i--) p = p * (r / i) + 1.0;  // 1 + r/1 (1 + r/2 (1 + ...))
    return std::ldexp(p, (int)n);
}

// x > 0 and normal: x = m * 2^e with m in [0.75, 1.5); log m = 2 atanh((m - 1) / (m + 1))
inline double exact_log(double x) {
    int e;
    double m = std::frexp(x, &e);  // [0.5, 1)
    if (m < 0.75) m *= 2, e -= 1;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 0;
    for (int i = 12; i >= 0; i--) p = p * z + 1.0 / (2 * i + 1);
    return e * kLn2High + (e * kLn2Low + 2.0 * s * p);
}

// |x| below about 10^6
inline void exact_sincos(double x, double* sine, double* cosine) {
    const double n = std::nearbyint(x * 0.6366197723675814);
    const double r = ((x - n * kHalfPiHigh) - n * kHalfPiMiddle) - n * kHalfPiLow, z = r * r;
    double s = 1.0, c = 1.0;
    for (int i = 9; i >= 1; i--) s = 1.0 - s * z / (2 * i * (2 * i + 1));
    for (int i = 9; i >= 1; i--) c = 1.0 - c * z / ((2 * i - 1) * (2 * i));
    s *= r;
    switch ((int64_t)n & 3) {
        case 0:
            *sine = s, *cosine = c;
            break;
        case 1:
            *sine = c, *cosine = -s;
            break;
        case 2:
            *sine = -s, *cosine = -c;
            break;
        default:
            *sine = -c, *cosine = s;
            break;
    }
}

}  // namespace tiltyard
