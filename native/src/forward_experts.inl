// The feed-forward part of a mixture of experts, as phases of a pass; part of forward.cpp.
//
// Route every row, group the rows by expert, then read each needed expert once. Experts that are on disk are
// loaded while those in memory compute: loads are units of the same phase.

// Router logits, the choice of each row, and, by whoever chooses last, the grouping and the plan.
void ForwardPass::route(Walker& walker, int index) {
    const Layer& layer = m_.layers_[index];
    const int padded = layer.router.tiles() * kTileRows;
    ExpertGroups& groups = w_.groups;
    walker.each(kRouter, layer.router.tiles(), 1, [&](int tile) {
        product(walker, layer.router, tile, normed(walker), 0, b_.rows, &w_.router[tile * kTileRows], padded);
    });
    walker.each(kRouter, b_.rows, 8, [&](int t) {
        choose_experts(k_, &w_.router[(size_t)t * padded], s_.experts, s_.experts_used, s_.normalize_experts,
                       walker.attention, &groups.chosen[(size_t)t * s_.experts_used],
                       &groups.weights[(size_t)t * s_.experts_used]);
        if (w_.chosen.fetch_add(1, std::memory_order_acq_rel) + 1 < b_.rows) return;
        w_.chosen.store(0, std::memory_order_relaxed);
        groups.group(b_.rows, s_.experts_used, s_.experts);
        m_.experts_.plan(index, groups);
    });
}

// Each expert's rows side by side, in the forms that gate and up read.
void ForwardPass::gather(Walker& walker, const Layer& layer) {
    const bool int8 = any_int8({&layer.gate, &layer.up}), floats = any_float({&layer.gate, &layer.up});
    walker.each(kRouter, b_.rows * s_.experts_used, 8, [&](int i) {
        const Activations x = normed(walker).from(w_.groups.source[i]);
        const auto copy = [&](auto& to, const auto* from, size_t n) {
            std::memcpy(&to[i * n], from, n * sizeof(to[0]));
        };
        if (floats) copy(w_.gathered.values, x.values, x.row_values);
        if (!int8) return;
        copy(w_.gathered.q, x.q, x.row_values);
        copy(w_.gathered.scale, x.scale, x.row_blocks);
        copy(w_.gathered.sum, x.sum, x.row_blocks);
        copy(w_.gathered.outlier, x.outlier, x.row_blocks);
        copy(w_.gathered.outlier_at, x.outlier_at, x.row_blocks);
        copy(w_.gathered.bias, x.bias, x.row_blocks);
    });
}

// 32 rows of an expert's gate and the same of its up, for all its rows.
void ForwardPass::expert_gate_up(Walker& walker, int index, PlacedExpert placed, int unit) {
    const Layer& layer = m_.layers_[index];
    const int first = w_.groups.first[placed.expert];
    // one row needs no gathering: it is everybody's
    const Activations x = b_.rows == 1 ? normed(walker) : rows_of(w_.gathered, dim_).from(first);
    const int tiles = std::min(2, round_up(s_.expert_ff, kTileRows) / kTileRows - unit * 2);
    chunks(0, w_.groups.rows_of(placed.expert), [&](int t0, int t1) {
        if (tiles < 2) std::memset(walker.buffer, 0, (size_t)(t1 - t0) * 64 * sizeof(float));
        for (int j = 0; j < tiles; j++) {
            product(walker, layer.gate, m_.experts_.tile(index, kExpertGate, placed, unit * 2 + j), x, t0, t1,
                    walker.buffer + j * kTileRows, 64);
            product(walker, layer.up, m_.experts_.tile(index, kExpertUp, placed, unit * 2 + j), x, t0, t1,
                    walker.buffer + 32 + j * kTileRows, 64);
        }
        for (int t = t0; t < t1; t++) {
            float* v = walker.buffer + (t - t0) * 64;
            k_.silu_multiply(v, v + 32, 32, v);
            store(w_.hidden, expert_ff_, first + t, unit * 32, v, 32, {&layer.down});
        }
    });
}

void ForwardPass::expert_down(Walker& walker, int index, PlacedExpert placed, int tile) {
    const int first = w_.groups.first[placed.expert];
    const Activations x = rows_of(w_.hidden, expert_ff_).from(first);
    product(walker, m_.layers_[index].down, m_.experts_.tile(index, kExpertDown, placed, tile), x, 0,
            w_.groups.rows_of(placed.expert), &w_.expert_outputs[(size_t)first * dim_ + tile * kTileRows],
            dim_);
}

void ForwardPass::experts(Walker& walker, int index) {
    const Layer& layer = m_.layers_[index];
    norm(walker, layer.ff_norm, b_.rows, nullptr, {&layer.router, &layer.gate, &layer.up});
    route(walker, index);
    if (b_.rows > 1) gather(walker, layer);
    const int columns = expert_ff_ / kQuantBlock, tiles = round_up(s_.dim, kTileRows) / kTileRows;
    for (const ExpertWave& wave : m_.experts_.waves(index)) {
        const auto &resident = wave.resident, &missing = wave.missing;
        const int here = (int)resident.size(), loads = (int)missing.size();
        const int pieces = loads ? m_.experts_.pieces(index) : 0, reads = loads * pieces;
        walker.each(kGateUp, reads + here * columns, 1, [&](int i) {
            if (i < reads) return m_.experts_.load(index, missing[i / pieces], i % pieces);
            expert_gate_up(walker, index, resident[(i - reads) / columns], (i - reads) % columns);
        });
        walker.each(kDown, loads * columns + here * tiles, 1, [&](int i) {
            if (i < loads * columns) return expert_gate_up(walker, index, missing[i / columns], i % columns);
            i -= loads * columns;
            expert_down(walker, index, resident[i / tiles], i % tiles);
        });
        if (loads)
            walker.each(kDown, loads * tiles, 1,
                        [&](int i) { expert_down(walker, index, missing[i / tiles], i % tiles); });
    }
    // residual += weight * output, the heaviest expert first
    walker.each(kDown, b_.rows, 4, [&](int t) {
        for (int rank = 0; rank < s_.experts_used; rank++) {
            const size_t i = (size_t)t * s_.experts_used + rank;
            k_.add_scaled(&w_.residual[(size_t)t * dim_],
                          &w_.expert_outputs[(size_t)w_.groups.place[i] * dim_], w_.groups.weights[i], dim_);
        }
    });
}
