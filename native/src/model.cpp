#include "tiltyard/model.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "tiltyard/checksum.hpp"
#include "tiltyard/isa.hpp"

namespace tiltyard {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_range(const char* name, long value, long low, long high) {
    if (value < low || value > high)
        refuse(std::string(name) + " is " + std::to_string(value) + "; it must lie between " +
               std::to_string(low) + " and " + std::to_string(high));
}

void check_layers(const ModelShape& s);

ModelShape checked(const ModelShape& s) {
    constexpr int kMost = 1 << 20;
    check_range("n_layers", s.layers, 1, 1000);
    check_range("n_heads", s.heads, 1, 1024);
    check_range("n_kv_heads", s.kv_heads, 1, s.heads);
    if (s.heads % s.kv_heads)
        refuse("n_heads is " + std::to_string(s.heads) + ", not a multiple of n_kv_heads " +
               std::to_string(s.kv_heads));
    check_range("head_dim", s.head_dim, 8, 256);
    if (s.head_dim % 8) refuse("head_dim is " + std::to_string(s.head_dim) + ", not a multiple of 8");
    check_range("dim", s.dim, 1, kMost);
    check_range("ff_dim", s.ff_dim, 1, kMost);
    check_range("vocab_size", s.vocab, 1, 1 << 24);
    check_range("max_positions", s.max_positions, 1, kMost);  // rope's argument reduction is exact up to here
    check_range("rope_dim", s.rope_dim, 0, s.head_dim);
    if (s.rope_dim % 2) refuse("rope_dim is " + std::to_string(s.rope_dim) + ", not even");
    if (s.experts) {
        check_range("n_experts", s.experts, 2, 1024);
        check_range("n_experts_used", s.experts_used, 1, s.experts);
        check_range("expert_ff_dim", s.expert_ff, 1, kMost);
        if (s.post_norms || s.activation != Activation::silu)
            refuse("experts go with the activation silu and without post_norms");
    }
    if (!(s.norm_eps > 0 && s.norm_eps < 1)) refuse("norm_eps must lie between 0 and 1, both excluded");
    if (!(s.rope_base >= 1 && s.rope_base <= 1e12)) refuse("rope_base must lie between 1 and 1e12");
    if (!(s.query_scale >= 0 && s.query_scale <= 1e6)) refuse("query_scale must lie between 0 and 1e6");
    if (!(s.embedding_scale > 0 && s.embedding_scale <= 1e6))
        refuse("embedding_scale must lie above 0 and at most at 1e6");
    check_layers(s);
    return s;
}

// What differs from layer to layer.
void check_layers(const ModelShape& s) {
    const auto one_each = [&](const char* name, const std::vector<int>& values, long highest) {
        if (!values.empty() && values.size() != (size_t)s.layers)
            refuse(std::string(name) + " has " + std::to_string(values.size()) +
                   " values; expected one for each of " + std::to_string(s.layers) + " layers, or none");
        for (int value : values) check_range(name, value, 0, highest);
    };
    one_each("windows", s.windows, 1 << 24);
    one_each("layer_rope", s.layer_rope, std::max<long>(1, s.rope_tables.size()) - 1);
    for (const RopeFrequencies& table : s.rope_tables) {
        if (table.frequency.size() != (size_t)s.rope_dim / 2)
            refuse("a table of rope_tables has " + std::to_string(table.frequency.size()) +
                   " frequencies; rope_dim has " + std::to_string(s.rope_dim / 2) + " pairs");
        for (double f : table.frequency)  // the argument reduction is exact up to 2^20 radians
            if (!(f > 0 && f <= 1)) refuse("frequencies of rope_tables must lie above 0 and at most at 1");
        if (!(table.amplitude > 0 && table.amplitude <= 100))
            refuse("amplitudes of rope_tables must lie above 0 and at most at 100");
    }
}

int checked_threads(int threads) {
    check_range("threads", threads, 1, 256);
    return threads;
}

}  // namespace

Model::Model(const ModelShape& shape, int threads, const std::string& isa)
    : shape_(checked(shape)),
      kernels_(kernels_for(isa)),
      layer_window_(shape.layers),
      layers_(shape.layers),
      experts_(shape.experts ? shape.layers : 0, shape.experts),
      pool_(checked_threads(threads)) {
    for (const RopeFrequencies& table : shape.rope_tables) rope_.emplace_back(table);
    if (rope_.empty()) rope_.emplace_back(plain_frequencies(shape.rope_dim, shape.rope_base));
    for (int i = 0; i < shape.layers; i++) {
        const int window = shape.windows.empty() ? 0 : shape.windows[i];
        const auto at = std::find(windows_.begin(), windows_.end(), window);
        layer_window_[i] = (int)(at - windows_.begin());
        if (at == windows_.end()) windows_.push_back(window);
    }
    work_.units.resize(windows_.size());
    const int group = shape.heads / shape.kv_heads;
    work_.scratch.resize(threads);
    for (auto& scratch : work_.scratch) {
        const size_t opened = (size_t)2 * kBlockTokens * shape.head_dim;  // keys and values of a block
        scratch.attention.resize(
            std::max(opened + (size_t)kRunRows * group * (2 * (size_t)shape.head_dim + 2),
                     (size_t)2 * round_up(shape.experts, 8)));
        scratch.outputs.resize(kChunkRows * kUnitColumns);
        scratch.adapted.resize(kChunkRows * kTileRows);
        scratch.unpacked.resize(kUnpackBlocks * kUnpackedBytes);
    }
}

// The layer that a name such as "blk.12.attn_q.weight" speaks of, and the rest of it; or -1.
int Model::layer_of(const std::string& name, std::string* rest) const {
    if (name.rfind("blk.", 0) != 0) return -1;
    const size_t dot = name.find('.', 4);
    if (dot == std::string::npos || dot == 4 || dot > 8) return -1;
    int index = 0;
    for (size_t i = 4; i < dot; i++) {
        if (name[i] < '0' || name[i] > '9') return -1;
        index = index * 10 + (name[i] - '0');
    }
    *rest = name.substr(dot + 1);
    return index < shape_.layers ? index : -1;
}

std::optional<Model::VectorSlot> Model::vector_slot(const std::string& name) {
    const ModelShape& s = shape_;
    if (name == "output_norm.weight") return VectorSlot{&output_norm_, s.dim};
    if (name == "rope_freqs.weight" && s.rope_factors) return VectorSlot{&rope_factors_, s.rope_dim / 2};
    std::string rest;
    const int index = layer_of(name, &rest);
    if (index < 0) return std::nullopt;
    for (const auto& [known, vector, size] : vectors_of(layers_[index]))
        if (rest == known) return VectorSlot{vector, size};
    return std::nullopt;
}

// The vectors that a layer of this shape must have.
std::vector<Model::NamedVector> Model::vectors_of(Layer& layer) const {
    const ModelShape& s = shape_;
    std::vector<NamedVector> all = {{"attn_norm.weight", &layer.attention_norm, s.dim},
                                    {"ffn_norm.weight", &layer.ff_norm, s.dim}};
    if (s.post_norms) {
        all.push_back({"post_attention_norm.weight", &layer.attention_post_norm, s.dim});
        all.push_back({"post_ffw_norm.weight", &layer.ff_post_norm, s.dim});
    }
    if (s.qk_norm) {
        all.push_back({"attn_q_norm.weight", &layer.query_norm, s.head_dim});
        all.push_back({"attn_k_norm.weight", &layer.key_norm, s.head_dim});
    }
    if (s.qkv_bias) {
        all.push_back({"attn_q.bias", &layer.query_bias, s.heads * s.head_dim});
        all.push_back({"attn_k.bias", &layer.key_bias, s.kv_heads * s.head_dim});
        all.push_back({"attn_v.bias", &layer.value_bias, s.kv_heads * s.head_dim});
    }
    return all;
}

std::optional<Model::Slot> Model::matrix_slot(const std::string& name) {
    const ModelShape& s = shape_;
    const RowGroups vocab{s.vocab, s.vocab}, dim{s.dim, s.dim}, ff{s.ff_dim, s.ff_dim};
    const RowGroups query{s.heads * s.head_dim, s.head_dim}, key{s.kv_heads * s.head_dim, s.head_dim};
    if (name == "token_embd.weight") return Slot{&embedding_, vocab, s.dim};
    if (name == "output.weight" && !s.tied_embeddings) return Slot{&output_, vocab, s.dim};
    std::string rest;
    const int index = layer_of(name, &rest);
    if (index < 0) return std::nullopt;
    Layer& layer = layers_[index];
    if (rest == "attn_q.weight") return Slot{&layer.query, query, s.dim};
    if (rest == "attn_k.weight") return Slot{&layer.key, key, s.dim};
    if (rest == "attn_v.weight") return Slot{&layer.value, key, s.dim};
    if (rest == "attn_output.weight") return Slot{&layer.attention_output, dim, s.heads * s.head_dim};
    if (s.experts) {
        const RowGroups inner{s.experts * s.expert_ff, s.expert_ff}, outer{s.experts * s.dim, s.dim};
        if (rest == "ffn_gate_inp.weight") return Slot{&layer.router, {s.experts, s.experts}, s.dim};
        if (rest == "ffn_gate_exps.weight") return Slot{&layer.gate, inner, s.dim, kExpertGate, index};
        if (rest == "ffn_up_exps.weight") return Slot{&layer.up, inner, s.dim, kExpertUp, index};
        if (rest == "ffn_down_exps.weight") return Slot{&layer.down, outer, s.expert_ff, kExpertDown, index};
        return std::nullopt;
    }
    if (rest == "ffn_gate.weight") return Slot{&layer.gate, ff, s.dim};
    if (rest == "ffn_up.weight") return Slot{&layer.up, ff, s.dim};
    if (rest == "ffn_down.weight") return Slot{&layer.down, dim, s.ff_dim};
    return std::nullopt;
}

void Model::set_tensor(const std::string& name, GgmlType type, const uint8_t* raw, size_t bytes,
                       std::optional<GgmlType> requantize) {
    std::lock_guard lock(mutex_);
    if (finished_) refuse(name + ": the model is finished; make a new one to change its weights");
    if (const std::optional<VectorSlot> slot = vector_slot(name)) {
        if (type != GgmlType::f32 && type != GgmlType::f16 && type != GgmlType::bf16)
            refuse(name + ": a norm or a bias must be F32, F16 or BF16, not " + ggml_name(type));
        if (requantize) refuse(name + ": a norm or a bias cannot be requantized");
        if (bytes != slot->size * block_bytes(type))
            refuse(name + ": " + std::to_string(bytes) + " bytes, but " + std::to_string(slot->size) +
                   " values of " + ggml_name(type) + " are " +
                   std::to_string(slot->size * block_bytes(type)));
        slot->vector->assign(round_up(slot->size, kQuantBlock), 0.0f);
        decode_row(type, raw, slot->size, slot->vector->data());
        return;
    }
    const std::optional<Slot> slot = matrix_slot(name);
    if (!slot)
        refuse("tensor '" + name + "' does not belong to this model: it has " +
               std::to_string(shape_.layers) + " layers and " + (shape_.tied_embeddings ? "tied" : "untied") +
               " embeddings");
    if (requantize && *requantize != type && *requantize != GgmlType::q4_0 && *requantize != GgmlType::q4_1 &&
        *requantize != GgmlType::q8_0)
        refuse(name + ": can requantize to Q4_0 (2), Q4_1 (3) or Q8_0 (8), not to " + ggml_name(*requantize));
    *slot->matrix = PackedMatrix(name, type, raw, bytes, slot->rows, slot->columns, requantize, &pool_);
    if (slot->part) experts_.put(slot->layer, *slot->part, *slot->matrix);
}

void Model::set_packed(const std::string& name, int form, const uint8_t* tiles, size_t bytes,
                       uint64_t checksum, std::shared_ptr<const void> keeper) {
    std::lock_guard lock(mutex_);
    if (finished_) refuse(name + ": the model is finished; make a new one to change its weights");
    const std::optional<Slot> slot = matrix_slot(name);
    if (!slot) refuse("matrix '" + name + "' does not belong to this model");
    check_range("form", form, 0, kWeightForms - 1);
    PackedMatrix packed(name, static_cast<WeightForm>(form), tiles, bytes, slot->rows, slot->columns,
                        std::move(keeper));
    if (Checksum::of(&pool_, tiles, bytes) != checksum)
        refuse(name + ": the packed weights do not have their checksum; they are damaged");
    *slot->matrix = std::move(packed);
    if (slot->part) experts_.put(slot->layer, *slot->part, *slot->matrix);
}

const PackedMatrix& Model::packed_matrix(const std::string& name) {
    std::lock_guard lock(mutex_);
    const std::optional<Slot> slot = matrix_slot(name);
    if (!slot || slot->matrix->empty() || (slot->part && experts_.offloads()))
        refuse("matrix '" + name + "' does not belong to this model");
    return *slot->matrix;
}

uint64_t Model::checksum(const uint8_t* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    return Checksum::of(&pool_, data, bytes);
}

void Model::finish() {
    std::lock_guard lock(mutex_);
    std::string missing;
    int count = 0;
    const auto need = [&](bool present, const std::string& name) {
        if (present) return;
        if (count++ < 8) missing += (missing.empty() ? "" : ", ") + name;
    };
    need(!embedding_.empty(), "token_embd.weight");
    if (!shape_.tied_embeddings) need(!output_.empty(), "output.weight");
    need(!output_norm_.empty(), "output_norm.weight");
    if (shape_.rope_factors) need(!rope_factors_.empty(), "rope_freqs.weight");
    for (int i = 0; i < shape_.layers; i++) {
        Layer& layer = layers_[i];
        const std::string prefix = "blk." + std::to_string(i) + ".";
        for (const auto& [name, vector, size] : vectors_of(layer)) need(!vector->empty(), prefix + name);
        need(!layer.query.empty(), prefix + "attn_q.weight");
        need(!layer.key.empty(), prefix + "attn_k.weight");
        need(!layer.value.empty(), prefix + "attn_v.weight");
        need(!layer.attention_output.empty(), prefix + "attn_output.weight");
        const std::string kind = shape_.experts ? "_exps.weight" : ".weight";
        if (shape_.experts) need(!layer.router.empty(), prefix + "ffn_gate_inp.weight");
        need(!layer.gate.empty(), prefix + "ffn_gate" + kind);
        need(!layer.up.empty(), prefix + "ffn_up" + kind);
        need(!layer.down.empty(), prefix + "ffn_down" + kind);
    }
    if (count)
        refuse(std::to_string(count) + " tensors are missing: " + missing + (count > 8 ? ", ..." : ""));
    experts_.finish();
    if (shape_.rope_factors) {
        for (int i = 0; i < shape_.rope_dim / 2; i++)
            if (!(rope_factors_[i] >= 1 && rope_factors_[i] <= 1e6))
                refuse("rope_freqs.weight[" + std::to_string(i) + "] must lie between 1 and 1e6");
        rope_[0].divide(rope_factors_);
    }
    arrange_weights();
    finished_ = true;
}

// One piece of memory (so that huge pages cover it), read front to back by a pass. Gate and up alternate, two
// tiles of each, because a unit of work takes 32 rows of both.
void Model::arrange_weights() {
    struct Place {
        PackedMatrix* matrix;
        size_t offset;
        int run, period;
    };
    std::vector<Place> places;
    size_t size = 0;
    const auto append = [&](PackedMatrix& m) {
        places.push_back({&m, size, 1, 1});
        size += m.bytes();
    };
    for (Layer& layer : layers_) {
        for (PackedMatrix* m : {&layer.query, &layer.key, &layer.value, &layer.attention_output}) append(*m);
        if (shape_.experts) {
            append(layer.router);
            if (!experts_.offloads())
                for (PackedMatrix* m : {&layer.gate, &layer.up, &layer.down}) append(*m);
            continue;
        }
        if (layer.gate.form() == layer.up.form()) {
            places.push_back({&layer.gate, size, 2, 4});
            places.push_back({&layer.up, size + 2 * layer.up.tile_bytes(), 2, 4});
            size += layer.gate.bytes_at(4, 2);
        } else {
            append(layer.gate), append(layer.up);
        }
        append(layer.down);
    }
    append(embedding_);
    if (!output_.empty()) append(output_);
    weights_ = MappedMemory(size);
    for (const Place& place : places)
        place.matrix->move_to(weights_.data() + place.offset, place.run, place.period, &pool_);
}

int Model::add_adapter(float scale, const std::vector<LowRankTensor>& tensors) {
    std::lock_guard lock(mutex_);
    pool_.settle();  // late threads count the phases of their pass by what changes here
    if (!std::isfinite(scale)) refuse("the adapter's scale is not finite");
    auto adapter = std::make_unique<Adapter>();
    adapter->scale = scale;
    adapter->layers.resize(shape_.layers);
    int width = low_width_;
    for (const LowRankTensor& t : tensors) {
        check_range("rank", t.rank, 1, 1024);
        std::string rest;
        const int index = layer_of(t.name, &rest);
        const std::optional<Slot> slot = matrix_slot(t.name);
        if (index < 0 || !slot || slot->part) refuse("'" + t.name + "' cannot be adapted");
        Layer& layer = layers_[index];
        const PackedMatrix* const sites[kSites] = {
            &layer.query, &layer.key, &layer.value, &layer.attention_output,
            &layer.gate,  &layer.up,  &layer.down};
        const auto site = std::find(sites, sites + kSites, slot->matrix);
        if (site == sites + kSites) refuse("'" + t.name + "' cannot be adapted");
        if (t.rows != slot->rows.rows || t.columns != slot->columns)
            refuse(t.name + " is " + std::to_string(slot->rows.rows) + " x " + std::to_string(slot->columns) +
                   "; the adapter is for " + std::to_string(t.rows) + " x " + std::to_string(t.columns));
        LowRank& low = adapter->layers[index][site - sites];
        const auto pack = [&](const float* values, RowGroups rows, int columns) {
            return PackedMatrix(t.name, GgmlType::f32, reinterpret_cast<const uint8_t*>(values),
                                (size_t)rows.rows * columns * sizeof(float), rows, columns);
        };
        low.down = pack(t.down, {t.rank, t.rank}, t.columns);
        low.up = pack(t.up, slot->rows, t.rank);
        width = std::max(width, round_up(t.rank, kQuantBlock));
    }
    adapters_.push_back(std::move(adapter));
    if (width > low_width_) low_width_ = width, work_.rows = 0;  // the buffers grow with the next pass
    return (int)adapters_.size();
}

void Model::allocate_kv(int blocks, KvPrecision precision) {
    std::lock_guard lock(mutex_);
    check_range("blocks", blocks, 1, 1 << 26);
    kv_ = KvCache();  // give the old one back first
    kv_ = KvCache(blocks, shape_.layers, shape_.kv_heads, shape_.head_dim, precision);
}

void Model::check_block(int block) const {
    if (kv_.blocks() == 0) refuse("no KV memory: call allocate_kv first");
    if (block < 0 || block >= kv_.blocks())
        refuse("block " + std::to_string(block) + " is not one of the " + std::to_string(kv_.blocks()) +
               " KV blocks");
}

void Model::copy_block(int source, int target) {
    std::lock_guard lock(mutex_);
    check_block(source), check_block(target);
    if (source != target) std::memcpy(kv_.block(target), kv_.block(source), kv_.block_bytes());
}

void Model::read_block(int block, uint8_t* out) {
    std::lock_guard lock(mutex_);
    check_block(block);
    std::memcpy(out, kv_.block(block), kv_.block_bytes());
}

void Model::write_block(int block, const uint8_t* in) {
    std::lock_guard lock(mutex_);
    check_block(block);
    std::memcpy(kv_.block(block), in, kv_.block_bytes());
}

size_t Model::weight_bytes() const {
    size_t bytes = embedding_.bytes() + output_.bytes();
    for (const Layer& l : layers_)
        for (const PackedMatrix* m :
             {&l.query, &l.key, &l.value, &l.attention_output, &l.gate, &l.up, &l.down, &l.router})
            bytes += m->bytes();
    return bytes;
}

MultiplyAdds Model::multiply_adds() const {
    MultiplyAdds found;
    const auto add = [&](std::array<int64_t, 3>& sums, const PackedMatrix& m, bool of_experts = false) {
        const bool eight = m.form() == WeightForm::q8 || m.form() == WeightForm::q6k;
        const int kind = !takes_int8(m.form()) ? 2 : eight ? 1 : 0;
        const int64_t all = (int64_t)m.tiles() * kTileRows * m.columns();
        sums[kind] += of_experts ? all / shape_.experts * shape_.experts_used : all;
    };
    for (const Layer& l : layers_) {
        for (const PackedMatrix* m : {&l.query, &l.key, &l.value, &l.attention_output, &l.router})
            add(found.layers, *m);
        for (const PackedMatrix* m : {&l.gate, &l.up, &l.down}) add(found.layers, *m, shape_.experts > 0);
    }
    add(found.head, shape_.tied_embeddings ? embedding_ : output_);
    return found;
}

void Model::offload_experts(const std::string& directory, size_t memory_bytes) {
    std::lock_guard lock(mutex_);
    if (!shape_.experts) refuse("this model has no experts to offload");
    for (const Layer& layer : layers_)
        if (finished_ || experts_.offloads() || !layer.gate.empty() || !layer.up.empty() ||
            !layer.down.empty())
            refuse("experts must be offloaded once, before the first tensor");
    experts_.offload(directory, memory_bytes);
}

std::vector<uint64_t> Model::expert_uses() {
    std::lock_guard lock(mutex_);
    return experts_.uses();
}

void Model::for_rows(int rows, const std::function<void(int, int)>& job) {
    std::lock_guard lock(mutex_);
    std::atomic<int> next{0};
    pool_.run([&](int thread) {
        for (int row; (row = next.fetch_add(1)) < rows;) job(row, thread);
    });
}

std::array<double, kOperators> Model::operator_seconds() {
    std::lock_guard lock(mutex_);
    return seconds_;
}

void Model::reset_operator_seconds() {
    std::lock_guard lock(mutex_);
    seconds_.fill(0);
}

void Model::check_batch(const Batch& b) const {
    const auto in = [](const char* what, long row, long value, long limit) {
        if (value < 0 || value >= limit)
            refuse(std::string(what) + "[" + std::to_string(row) + "] is " + std::to_string(value) +
                   "; it must be at least 0 and below " + std::to_string(limit));
    };
    if (!finished_) refuse("the model is not finished: call finish first");
    if (kv_.blocks() == 0) refuse("no KV memory: call allocate_kv first");
    std::vector<int> longest(b.sequences, -1);  // highest position that each sequence's rows touch
    for (int t = 0; t < b.rows; t++) {
        in("tokens", t, b.tokens[t], shape_.vocab);
        in("positions", t, b.positions[t], shape_.max_positions);
        in("sequences", t, b.sequence[t], b.sequences);
        longest[b.sequence[t]] = std::max(longest[b.sequence[t]], b.positions[t]);
    }
    for (int s = 0; s < b.sequences; s++) {
        const int needed = longest[s] / kBlockTokens + (longest[s] >= 0);
        if (needed > b.table_width)
            refuse("position " + std::to_string(longest[s]) + " of sequence " + std::to_string(s) +
                   " needs " + std::to_string(needed) + " blocks; its table has " +
                   std::to_string(b.table_width));
        for (int i = 0; i < needed; i++)
            in("tables", i, b.tables[(size_t)s * b.table_width + i], kv_.blocks());
    }
    for (int s = 0; b.adapters && s < b.sequences; s++)
        in("adapters", s, b.adapters[s], (long)adapters_.size() + 1);
    for (int r = 0; r < b.outputs; r++) in("output_rows", r, b.output_rows[r], b.rows);
    // Two rows that write one slot would race; only a broken scheduler asks for that.
    std::vector<int64_t> slots(b.rows);
    for (int t = 0; t < b.rows; t++) {
        const int p = b.positions[t];
        const int block = b.tables[(size_t)b.sequence[t] * b.table_width + p / kBlockTokens];
        slots[t] = (int64_t)block * kBlockTokens + p % kBlockTokens;
    }
    std::sort(slots.begin(), slots.end());
    const auto twice = std::adjacent_find(slots.begin(), slots.end());
    if (twice != slots.end())
        refuse("two rows write slot " + std::to_string(*twice % kBlockTokens) + " of block " +
               std::to_string(*twice / kBlockTokens));
}

}  // namespace tiltyard
