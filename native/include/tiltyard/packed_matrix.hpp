// A weight matrix, repacked so that eight output rows are eight SIMD lanes and memory is read front to back.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "tiltyard/block_formats.hpp"
#include "tiltyard/kernels.hpp"
#include "tiltyard/mapped_memory.hpp"
#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

// Rows come in groups (the rows of an attention head), each padded with zero rows to whole tiles, so that a
// unit of work never straddles two groups.
struct RowGroups {
    int rows = 0;   // in the file
    int group = 1;  // rows in a group; divides `rows`
    int padded_group() const { return round_up(group, kTileRows); }
    int padded_rows() const { return rows / group * padded_group(); }
};

// Grows with every change of how tiles lie in memory: packed weights are kept on disk (set_packed).
constexpr int kPackingVersion = 2;

class PackedMatrix {
  public:
    PackedMatrix() = default;
    // `raw` holds rows x columns in the encoding `type`, to be rounded to `requantize` first if that is
    // given. Throws std::invalid_argument naming the tensor when its size is wrong, when the columns do not
    // fill whole blocks, or when a value cannot be represented. The rows are shared between the threads of
    // `pool`.
    PackedMatrix(const std::string& name, GgmlType type, const uint8_t* raw, size_t bytes, RowGroups rows,
                 int columns, std::optional<GgmlType> requantize = std::nullopt, ThreadPool* pool = nullptr);
    // Tiles as copy_tiles gave them, read where they lie until move_to; `keeper` holds them there. Throws
    // std::invalid_argument when `bytes` is not what this form and shape take.
    PackedMatrix(const std::string& name, WeightForm form, const uint8_t* tiles, size_t bytes, RowGroups rows,
                 int columns, std::shared_ptr<const void> keeper);

    bool empty() const { return columns_ == 0; }
    WeightForm form() const { return form_; }
    int columns() const { return columns_; }
    int blocks() const { return round_up(columns_, kQuantBlock) / kQuantBlock; }
    int tiles() const { return groups_.padded_rows() / kTileRows; }
    size_t tile_bytes() const { return (size_t)blocks() * tile_block_bytes(form_); }
    size_t bytes() const { return (size_t)tiles() * tile_bytes(); }
    const uint8_t* tile(int i) const {
        return base_ + (size_t)(i / run_ * period_ + i % run_) * tile_bytes();
    }

    // Move the tiles to `base`, in runs of `run` tiles, one run every `period` tiles, and give the own memory
    // back. Two matrices of equal tile size interleave so; with run = period = 1 the tiles lie side by side.
    void move_to(uint8_t* base, int run, int period, ThreadPool* pool = nullptr);
    // All tiles side by side; writes bytes().
    void copy_tiles(uint8_t* out) const;
    size_t bytes_at(int period, int run) const {
        return (size_t)((tiles() + run - 1) / run) * period * tile_bytes();
    }

    // Give the tiles back; sizes stay. For experts whose tiles have gone to disk.
    void drop() { base_ = nullptr, memory_ = MappedMemory(), keeper_ = nullptr; }

    // One row of the file as floats, e.g. a token's embedding; writes `columns` values.
    void decode(int row, float* out) const;

  private:
    void pack_row(const std::string& name, GgmlType type, const uint8_t* raw, int row);
    int packed_row(int row) const {
        return row / groups_.group * groups_.padded_group() + row % groups_.group;
    }
    MappedMemory memory_;                 // empty once moved
    std::shared_ptr<const void> keeper_;  // of tiles that lie elsewhere; empty once moved
    const uint8_t* base_ = nullptr;
    int run_ = 1, period_ = 1;
    WeightForm form_ = WeightForm::q4;
    RowGroups groups_;
    int columns_ = 0;
};

}  // namespace tiltyard
