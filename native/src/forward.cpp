// One forward pass as phases that all threads walk together: embed, then per layer norm, qkv, attention,
// output, norm, gate and up, down; then the head. A phase is a list of units; each output belongs to one
// unit, so who computes it, and in which company, cannot change a bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "tiltyard/model.hpp"

namespace tiltyard {

namespace {

constexpr int kHeadTiles = 8;  // a tile of the head alone is a short piece of work
// Up to so many rows each thread norms them for itself, which costs less than a phase that all wait for.
constexpr int kOwnNormRows = 4;
// Up to so many rows the memory is what a step waits for: nobody waits without reading ahead.
constexpr int kReadAheadRows = 8;
constexpr size_t kReadAhead = size_t{128} << 10;
// From so many rows on, unpacking a tile once is cheaper than at each register block.
constexpr int kUnpackRows = 16;

}  // namespace

class ForwardPass {
  public:
    ForwardPass(Model& model, const Batch& batch)
        : m_(model),
          b_(batch),
          w_(model.work_),
          s_(model.shape_),
          k_(model.kernels_),
          dim_(round_up(s_.dim, kQuantBlock)),
          ff_(round_up(s_.ff_dim, kQuantBlock)),
          query_(s_.heads * s_.head_dim),
          attended_(round_up(query_, kQuantBlock)),
          expert_ff_(round_up(s_.expert_ff, kQuantBlock)),
          precision_(static_cast<int>(model.kv_.precision())),
          query_scale_(s_.query_scale > 0 ? s_.query_scale : (float)(1.0 / std::sqrt((double)s_.head_dim))) {}

    void run(ThreadPool::Walk& walk) {
        Walker walker(*this, walk);
        embed(walker);
        for (int i = 0; i < s_.layers; i++) {
            const Layer& layer = m_.layers_[i];
            norm(walker, layer.attention_norm, b_.rows, nullptr, {&layer.query, &layer.key, &layer.value});
            lower(walker, i, {Site::query, Site::key, Site::value}, {});
            walker.read_ahead(layer.attention_output, layer.attention_output.tiles(), 1);
            qkv(walker, i);
            attend(walker, i);
            if (!s_.experts) walker.read_ahead(layer.gate, ff_ / kQuantBlock, 2);
            lower(walker, i, {Site::attention_output}, rows_of(w_.attended, attended_));
            add_product(walker, i, Site::attention_output, rows_of(w_.attended, attended_));
            if (s_.experts) {
                experts(walker, i);
                continue;
            }
            norm(walker, layer.ff_norm, b_.rows, nullptr, {&layer.gate, &layer.up});
            lower(walker, i, {Site::gate, Site::up}, {});
            walker.read_ahead(layer.down, layer.down.tiles(), 1);
            gate_up(walker, i);
            if (i + 1 < s_.layers)
                walker.read_ahead(m_.layers_[i + 1].query, s_.heads, s_.head_dim / kTileRows);
            lower(walker, i, {Site::down}, rows_of(w_.hidden, ff_));
            add_product(walker, i, Site::down, rows_of(w_.hidden, ff_));
        }
        if (b_.outputs == 0) return;
        if (b_.hidden) return hidden(walker);
        const PackedMatrix& head = s_.tied_embeddings ? m_.embedding_ : m_.output_;
        norm(walker, m_.output_norm_, b_.outputs, b_.output_rows, {&head});
        logits(walker, head);
    }

  private:
    struct Norm {
        const float* gain;
        int rows;
        const int32_t* which;
        bool int8, floats;  // the forms that are wanted
    };
    // One thread's way through the phases.
    struct Walker {
        // This thread's share of the matrices of a coming phase: `units` pieces of `tiles` tiles of `w`.
        void read_ahead(const PackedMatrix& w, int units, int tiles) {
            if (pass.b_.rows > kReadAheadRows) return;
            const int threads = pass.m_.pool_.size(), first = units * walk.thread / threads,
                      end = units * (walk.thread + 1) / threads;
            const size_t bytes = (size_t)(end - first) * tiles * w.tile_bytes();
            walk.read_ahead(w.tile(std::min(first * tiles, w.tiles() - 1)), std::min(bytes, kReadAhead));
        }
        Walker(ForwardPass& pass, ThreadPool::Walk& walk)
            : pass(pass),
              walk(walk),
              own(pass.w_.scratch[walk.thread]),
              attention(own.attention.data()),
              buffer(own.outputs.data()),
              adapted(own.adapted.data()),
              unpacked(own.unpacked.data()) {}
        ForwardPass& pass;
        ThreadPool::Walk& walk;
        Workspace::ThreadScratch& own;
        float *const attention, *const buffer, *const adapted;
        uint8_t* const unpacked;
        Activations normed;  // what the last norm gave,
        Norm pending{};      // or will give when the first unit asks for it
        std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();

        // units are taken `chunk` neighbours at a time
        template <class Unit>
        void each(Operator op, int units, int chunk, Unit unit) {
            own.phase++;
            walk.each(units, chunk, unit);
            if (walk.thread) return;
            const auto now = std::chrono::steady_clock::now();
            pass.m_.seconds_[op] += std::chrono::duration<double>(now - last).count();
            last = now;
        }
    };

    static size_t scales_in(int padded) { return round_up(padded / kQuantBlock, 8); }
    Activations rows_of(const Workspace::Quantized& rows, int padded) const {
        return {rows.q.data(),       rows.scale.data(),      rows.sum.data(),
                rows.outlier.data(), rows.outlier_at.data(), rows.values.data(),
                (size_t)padded,      scales_in(padded),      rows.bias.data()};
    }
    static QuantizedBlocks blocks_of(Workspace::Quantized& rows, int padded, int row, int column) {
        const size_t v = (size_t)row * padded + column, b = row * scales_in(padded) + column / kQuantBlock;
        return {&rows.q[v],       &rows.scale[b],      &rows.sum[b],
                &rows.outlier[b], &rows.outlier_at[b], &rows.bias[b]};
    }
    static bool any_int8(std::initializer_list<const PackedMatrix*> users) {
        return std::any_of(users.begin(), users.end(), [](auto* m) { return takes_int8(m->form()); });
    }
    static bool any_float(std::initializer_list<const PackedMatrix*> users) {
        return std::any_of(users.begin(), users.end(), [](auto* m) { return !takes_int8(m->form()); });
    }
    // columns [at, at + n) of a row, in the forms that `users` read
    void store(Workspace::Quantized& rows, int padded, int row, int at, const float* x, int n,
               std::initializer_list<const PackedMatrix*> users) {
        if (any_int8(users)) k_.quantize(x, n, blocks_of(rows, padded, row, at));
        if (any_float(users) || !w_.runs.empty())
            std::memcpy(&rows.values[(size_t)row * padded + at], x, n * sizeof(float));
    }
    // rows [t0, t1) times one tile of 16 weight rows -> out[(t - t0) * stride + 0 .. 15]
    void product(Walker& walker, const PackedMatrix& w, int tile, const Activations& x, int t0, int t1,
                 float* out, int stride) const {
        product(walker, w, w.tile(tile), x, t0, t1, out, stride);
    }
    void product(Walker& walker, const PackedMatrix& w, const uint8_t* weights, const Activations& x, int t0,
                 int t1, float* out, int stride) const {
        const int form = static_cast<int>(w.form());
        const bool unpack = k_.unpack[form] && t1 - t0 >= kUnpackRows && w.blocks() <= kUnpackBlocks;
        if (unpack) k_.unpack[form](weights, w.blocks(), walker.unpacked);
        const auto kernel = unpack ? k_.tile_unpacked[form] : k_.tile[form];
        const uint8_t* tile = unpack ? walker.unpacked : weights;
        for (int t = t0; t < t1;) {
            // five rows as 3 + 2: a lone row would cost as much as three
            const int calls = (t1 - t + k_.tile_tokens - 1) / k_.tile_tokens,
                      n = (t1 - t + calls - 1) / calls;
            kernel(tile, w.blocks(), x.from(t), n, out + (size_t)(t - t0) * stride, stride);
            t += n;
        }
        if (!k_.add_outliers[form]) return;
        for (int t = t0; t < t1; t += kChunkRows) {
            const auto& outliers = outliers_of(walker, x, t, std::min(t1, t + kChunkRows));
            k_.add_outliers[form](weights, outliers.list.data(), outliers.count,
                                  out + (size_t)(t - t0) * stride, stride);
        }
    }
    // Many tiles of a phase meet the same rows: their outliers are looked up once.
    const Workspace::ThreadScratch::Outliers& outliers_of(Walker& walker, const Activations& x, int t0,
                                                          int t1) const {
        const size_t chunk = t0 / kChunkRows;
        auto& known = walker.own.outliers;
        if (chunk >= known.size()) known.resize(chunk + 1);
        auto& entry = known[chunk];
        const float* of = x.outlier + t0 * x.row_blocks;
        if (entry.phase != walker.own.phase || entry.of != of || entry.rows != t1 - t0) {
            const size_t most = (t1 - t0) * x.row_blocks;
            if (entry.list.size() < most) entry.list.resize(most);
            entry.count = k_.list_outliers(x.from(t0), t1 - t0, entry.list.data());
            entry.phase = walker.own.phase, entry.of = of, entry.rows = t1 - t0;
        }
        return entry;
    }
    template <class Chunk>
    void chunks(int first, int end, Chunk chunk) const {
        for (int t0 = first; t0 < end; t0 += kChunkRows) chunk(t0, std::min(end, t0 + kChunkRows));
    }

    void embed(Walker& walker) {
        walker.each(kEmbed, b_.rows, 8, [&](int t) {
            float* x = &w_.residual[(size_t)t * dim_];
            m_.embedding_.decode(b_.tokens[t], x);
            if (s_.embedding_scale != 1)
                for (int i = 0; i < s_.dim; i++) x[i] *= s_.embedding_scale;
        });
    }

    void norm(Walker& walker, const std::vector<float>& gain, int rows, const int32_t* which,
              std::initializer_list<const PackedMatrix*> users) {
        const Norm norm{gain.data(), rows, which, any_int8(users), any_float(users) || !w_.runs.empty()};
        if (rows <= kOwnNormRows) {
            walker.pending = norm;
            walker.normed = rows_of(walker.own.normed, dim_);
            return;
        }
        walker.each(kNorm, rows, 4, [&](int t) { norm_row(norm, t, w_.normed); });
        walker.normed = rows_of(w_.normed, dim_);
    }
    void norm_row(const Norm& norm, int t, Workspace::Quantized& out) const {
        const float* x = &w_.residual[(size_t)(norm.which ? norm.which[t] : t) * dim_];
        if (norm.int8) k_.norm_int8(x, norm.gain, s_.norm_eps, s_.dim, dim_, blocks_of(out, dim_, t, 0));
        if (norm.floats)
            k_.norm_float(x, norm.gain, s_.norm_eps, s_.dim, dim_, &out.values[(size_t)t * dim_]);
    }
    // What the last norm gave. Only to be called in a unit of a phase.
    const Activations& normed(Walker& walker) const {
        for (int t = 0; t < walker.pending.rows; t++) norm_row(walker.pending, t, walker.own.normed);
        walker.pending.rows = 0;
        return walker.normed;
    }

    // RMS norm of one head, in place.
    void norm_head(float* v, const std::vector<float>& gain) const {
        alignas(32) float row[kUnitColumns] = {};  // zeros up to a whole block
        std::memcpy(row, v, s_.head_dim * sizeof(float));
        k_.norm_float(row, gain.data(), s_.norm_eps, s_.head_dim, round_up(s_.head_dim, kQuantBlock), row);
        std::memcpy(v, row, s_.head_dim * sizeof(float));
    }

    // A unit is one head of the queries, keys or values: product, bias, norm, rotation, then scratch or its
    // KV slot.
    void qkv(Walker& walker, int index) {
        const Layer& layer = m_.layers_[index];
        const RopeTable& rope = m_.rope_[s_.layer_rope.empty() ? 0 : s_.layer_rope[index]];
        const auto rotate = s_.rope_style == RopeStyle::halves ? k_.rotate_halves : k_.rotate;
        const int n = s_.head_dim, stride = round_up(n, kTileRows), tiles = stride / kTileRows;
        walker.each(kQkv, s_.heads + 2 * s_.kv_heads, 1, [&](int unit) {
            const bool is_query = unit < s_.heads, is_key = !is_query && unit < s_.heads + s_.kv_heads;
            const int head = is_query ? unit : (unit - s_.heads) % s_.kv_heads;
            const PackedMatrix& w = is_query ? layer.query : is_key ? layer.key : layer.value;
            const Site site = is_query ? Site::query : is_key ? Site::key : Site::value;
            const int low = is_query ? 0 : is_key ? 1 : 2;
            const Activations& x = normed(walker);
            const auto& bias = is_query ? layer.query_bias : is_key ? layer.key_bias : layer.value_bias;
            chunks(0, b_.rows, [&](int t0, int t1) {
                for (int j = 0; j < tiles; j++) {
                    float* out = walker.buffer + j * kTileRows;
                    product(walker, w, head * tiles + j, x, t0, t1, out, stride);
                    adapt(walker, index, site, low, head * tiles + j, t0, t1, out, stride);
                }
                for (int t = t0; t < t1; t++) {
                    float* v = walker.buffer + (t - t0) * stride;
                    const int position = b_.positions[t];
                    if (s_.qkv_bias) k_.add(v, &bias[head * n], n);
                    if (is_query || is_key) {
                        if (s_.qk_norm) norm_head(v, is_query ? layer.query_norm : layer.key_norm);
                        rotate(v, rope.cosine(position), rope.sine(position), rope.pairs(),
                               is_query ? query_scale_ : 1.0f, n);
                    }
                    if (is_query) {
                        std::memcpy(&w_.query[(size_t)t * query_ + head * n], v, n * sizeof(float));
                        continue;
                    }
                    uint8_t* part =
                        m_.kv_.block(table(t)[position / kBlockTokens]) + m_.kv_.offset(index, head);
                    const int slot = position % kBlockTokens;
                    if (is_key)
                        k_.put_key[precision_](v, n, slot, part);
                    else
                        k_.put_value[precision_](v, n, slot, part + m_.kv_.part_bytes());
                }
            });
        });
    }
    const int32_t* table(int row) const { return b_.tables + (size_t)b_.sequence[row] * b_.table_width; }

    // What a run of rows sees in one split, not yet divided by the totals.
    struct Attended {
        float *maximum, *total, *out;  // [rows][heads of the group], out: [..][head_dim]
    };
    void attend(Walker& walker, int index);
    Attended attend_split(Walker& walker, int index, const Workspace::AttentionUnit& unit);
    Attended partial(const Workspace::AttentionUnit& unit, int split);

    // residual += x W^T, or its RMS norm if there are gains for it
    void add_product(Walker& walker, int index, Site site, const Activations& x) {
        const Layer& layer = m_.layers_[index];
        const bool is_down = site == Site::down;
        const PackedMatrix& w = is_down ? layer.down : layer.attention_output;
        const std::vector<float>& post_norm = is_down ? layer.ff_post_norm : layer.attention_post_norm;
        const bool normed = !post_norm.empty();
        // Few rows: a unit is one tile. Many: some tiles and some rows, which then stay in the L2 cache.
        const bool many = b_.rows > kChunkRows;
        const int tiles = many ? 4 : 1, rows = many ? 2 * kChunkRows : b_.rows,
                  columns = (w.tiles() + tiles - 1) / tiles;
        walker.each(
            is_down ? kDown : kAttentionOutput, (b_.rows + rows - 1) / rows * columns, 1, [&](int unit) {
                const int first = unit % columns * tiles, last = std::min(first + tiles, w.tiles());
                const int top = unit / columns * rows;
                chunks(top, std::min(top + rows, b_.rows), [&](int t0, int t1) {
                    for (int tile = first; tile < last; tile++) {
                        const int width = std::min(kTileRows, dim_ - tile * kTileRows);
                        float* out =
                            normed ? &w_.projected[(size_t)t0 * dim_ + tile * kTileRows] : walker.buffer;
                        const int stride = normed ? dim_ : kTileRows;
                        product(walker, w, tile, x, t0, t1, out, stride);
                        adapt(walker, index, site, 0, tile, t0, t1, out, stride);
                        for (int t = t0; !normed && t < t1; t++)
                            k_.add(&w_.residual[(size_t)t * dim_ + tile * kTileRows],
                                   walker.buffer + (t - t0) * kTileRows, width);
                    }
                });
            });
        if (!normed) return;
        walker.each(kNorm, b_.rows, 4, [&](int t) {
            float* y = &w_.projected[(size_t)t * dim_];
            k_.norm_float(y, post_norm.data(), s_.norm_eps, s_.dim, dim_, y);
            k_.add(&w_.residual[(size_t)t * dim_], y, dim_);
        });
    }

    // A unit is 32 rows of gate and the same 32 of up: activation and quantisation are its epilogue.
    void gate_up(Walker& walker, int index) {
        const Layer& layer = m_.layers_[index];
        const auto activate = s_.activation == Activation::gelu ? k_.gelu_multiply : k_.silu_multiply;
        walker.each(kGateUp, ff_ / kQuantBlock, 1, [&](int unit) {
            const Activations& x = normed(walker);
            chunks(0, b_.rows, [&](int t0, int t1) {
                const int tiles = std::min(2, layer.gate.tiles() - unit * 2);
                if (tiles < 2) std::memset(walker.buffer, 0, (size_t)(t1 - t0) * 64 * sizeof(float));
                for (int j = 0; j < tiles; j++) {
                    float* out = walker.buffer + j * kTileRows;
                    product(walker, layer.gate, unit * 2 + j, x, t0, t1, out, 64);
                    adapt(walker, index, Site::gate, 0, unit * 2 + j, t0, t1, out, 64);
                }
                for (int j = 0; j < tiles; j++) {
                    float* out = walker.buffer + 32 + j * kTileRows;
                    product(walker, layer.up, unit * 2 + j, x, t0, t1, out, 64);
                    adapt(walker, index, Site::up, 1, unit * 2 + j, t0, t1, out, 64);
                }
                for (int t = t0; t < t1; t++) {
                    float* v = walker.buffer + (t - t0) * 64;
                    activate(v, v + 32, 32, v);
                    store(w_.hidden, ff_, t, unit * 32, v, 32, {&layer.down});
                }
            });
        });
    }

    void lower(Walker& walker, int index, std::initializer_list<Site> sites, const Activations& x);
    void adapt(Walker& walker, int index, Site site, int low, int tile, int t0, int t1, float* out,
               int stride) const;
    void experts(Walker& walker, int index);
    void route(Walker& walker, int index);
    void gather(Walker& walker, const Layer& layer);
    void expert_gate_up(Walker& walker, int index, PlacedExpert placed, int unit);
    void expert_down(Walker& walker, int index, PlacedExpert placed, int tile);

    // The final norm's output itself, for embeddings.
    void hidden(Walker& walker) {
        walker.each(kNorm, b_.outputs, 4, [&](int r) {
            float* y = &w_.normed.values[(size_t)r * dim_];
            k_.norm_float(&w_.residual[(size_t)b_.output_rows[r] * dim_], m_.output_norm_.data(), s_.norm_eps,
                          s_.dim, dim_, y);
            std::memcpy(b_.hidden + (size_t)r * s_.dim, y, s_.dim * sizeof(float));
        });
    }

    void logits(Walker& walker, const PackedMatrix& head) {
        walker.each(kHead, head.tiles(), kHeadTiles, [&](int tile) {
            const Activations& x = normed(walker);
            const int width = std::min(kTileRows, s_.vocab - tile * kTileRows);
            float* out = b_.logits + tile * kTileRows;
            if (width == kTileRows) return product(walker, head, tile, x, 0, b_.outputs, out, s_.vocab);
            chunks(0, b_.outputs,
                   [&](int t0, int t1) {  // the last tile is wider than what is left of the row
                       product(walker, head, tile, x, t0, t1, walker.buffer, kTileRows);
                       for (int t = t0; t < t1; t++)
                           std::memcpy(out + (size_t)t * s_.vocab, walker.buffer + (t - t0) * kTileRows,
                                       width * sizeof(float));
                   });
        });
    }

    Model& m_;
    const Batch b_;
    Workspace& w_;
    const ModelShape& s_;
    const KernelTable& k_;
    const int dim_, ff_, query_, attended_, expert_ff_;  // padded lengths of rows (query_ has no padding)
    const int precision_;
    const float query_scale_;
};

#include "forward_attention.inl"
//
#include "forward_adapters.inl"
//
#include "forward_experts.inl"

void Model::prepare(const Batch& b) {
    const int dim = round_up(shape_.dim, kQuantBlock), ff = round_up(shape_.ff_dim, kQuantBlock);
    const int query = shape_.heads * shape_.head_dim, attended = round_up(query, kQuantBlock);
    const int rows = std::max(b.rows, b.outputs);  // an output row may be asked for twice
    if (rows > work_.rows) {
        const auto grow = [](Workspace::Quantized& q, size_t rows, size_t padded) {
            const size_t scales = rows * (size_t)round_up((int)padded / kQuantBlock, 8);
            q.q.assign(rows * padded, 0), q.values.assign(rows * padded, 0), q.outlier_at.assign(scales, 0);
            for (auto* floats : {&q.scale, &q.sum, &q.outlier}) floats->assign(scales, 0);
            q.bias.assign(scales, 0);
        };
        work_.rows = 0;  // stays so if an allocation fails half way
        work_.residual.assign((size_t)rows * dim,
                              0);  // padding is zero, and stays so: weights there are zero
        if (shape_.post_norms) work_.projected.assign((size_t)rows * dim, 0);
        work_.query.assign((size_t)rows * query, 0);
        work_.attention.assign((size_t)rows * attended, 0);
        grow(work_.normed, rows, dim), grow(work_.attended, rows, attended);
        for (auto& scratch : work_.scratch) grow(scratch.normed, kOwnNormRows, dim);
        if (shape_.experts) {
            const size_t pairs = (size_t)rows * shape_.experts_used;
            work_.router.assign((size_t)rows * round_up(shape_.experts, kTileRows), 0);
            work_.expert_outputs.assign(pairs * dim, 0);
            work_.groups.resize(rows, shape_.experts_used, shape_.experts);
            grow(work_.gathered, pairs, dim);
            grow(work_.hidden, pairs, round_up(shape_.expert_ff, kQuantBlock));
        } else {
            grow(work_.hidden, rows, ff);
        }
        for (auto& low : work_.low) low.assign((size_t)rows * low_width_, 0);
        work_.splits_done.reset(new std::atomic<int>[(size_t)rows * shape_.kv_heads]);
        for (size_t i = 0; i < (size_t)rows * shape_.kv_heads; i++) work_.splits_done[i].store(0);
        work_.rows = rows;
    }
    const int highest = *std::max_element(b.positions, b.positions + b.rows);
    for (RopeTable& table : rope_) table.cover(highest + 1);
    int partials = 0;  // the most of any layer
    for (size_t i = 0; i < windows_.size(); i++) {
        int used = 0;
        work_.units[i] = units_in(b, windows_[i], &used);
        partials = std::max(partials, used);
    }
    const size_t group = shape_.heads / shape_.kv_heads;
    if (work_.partial_total.size() < partials * group) {
        work_.partial_maximum.resize(partials * group), work_.partial_total.resize(partials * group);
        work_.partial_out.resize(partials * group * shape_.head_dim);
    }
    work_.runs.clear();
    for (int t = 0; b.adapters && t < b.rows; t++) {
        const int number = b.adapters[b.sequence[t]];
        if (!number) continue;
        const Adapter* adapter = adapters_[number - 1].get();
        if (!work_.runs.empty() && work_.runs.back().end == t && work_.runs.back().adapter == adapter)
            work_.runs.back().end++;
        else
            work_.runs.push_back({t, t + 1, adapter});
    }
}

void Model::forward(const Batch& batch) {
    std::lock_guard lock(mutex_);
    check_batch(batch);
    if (batch.rows == 0) return;
    pool_.settle();
    prepare(batch);
    // Shared with the threads: one that comes too late still finds the pass, and that it is over.
    const auto pass = std::make_shared<ForwardPass>(*this, batch);
    pool_.walk([pass](ThreadPool::Walk& walk) { pass->run(walk); });
    experts_.check();
}

}  // namespace tiltyard
