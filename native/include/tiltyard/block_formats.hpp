// GGUF weight encodings: their sizes, and rows to and from floats.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "tiltyard/kernels.hpp"

namespace tiltyard {

// Numbers as in ggml.
enum class GgmlType : int { f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q8_0 = 8 };

// Throws std::invalid_argument, naming the supported types, for any other number.
GgmlType ggml_type(int number);
std::string ggml_name(GgmlType type);
// Values that share a block, and the bytes of a block.
int block_values(GgmlType type);
size_t block_bytes(GgmlType type);
// How a matrix of this type is packed: Q4_0 becomes Q4_1 with minimum = -8 * scale, which loses nothing.
WeightForm packed_form(GgmlType type);

// One row of `n` values (a multiple of block_values). Arithmetic is ggml's: scale * q, or scale * q +
// minimum.
void decode_row(GgmlType type, const uint8_t* raw, int n, float* out);
// Q4_0 and Q8_0, with ggml's reference rounding; n a multiple of 32.
void encode_row(GgmlType type, const float* values, int n, uint8_t* raw);

}  // namespace tiltyard
