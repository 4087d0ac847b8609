// Attention as phases of a pass, and how its units are cut; part of forward.cpp.

// A unit is (a run of rows, kv head, split of 256 positions). Whoever finishes the last split in sight of
// a run merges them, in order.
void ForwardPass::attend(Walker& walker, int index) {
    const int group = s_.heads / s_.kv_heads, n = s_.head_dim;
    const bool whole_blocks = n % kQuantBlock == 0;
    const PackedMatrix* user = &m_.layers_[index].attention_output;
    const auto& units = w_.units[m_.layer_window_[index]];
    walker.each(kAttention, (int)units.size(), units.size() > 64 ? 4 : 1, [&](int i) {
        const Workspace::AttentionUnit& unit = units[i];
        const Attended result = attend_split(walker, index, unit);
        if (unit.partial >= 0) {
            std::atomic<int>& done = w_.splits_done[unit.row * s_.kv_heads + unit.kv_head];
            if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < unit.splits) return;
            done.store(0, std::memory_order_relaxed);  // for the next layer, a barrier away
            for (int j = 1; j < unit.splits; j++) {
                const Attended first = partial(unit, 0), next = partial(unit, j);
                for (int g = 0; g < unit.rows * group; g++)
                    k_.merge(first.maximum + g, first.total + g, first.out + g * n, next.maximum[g],
                             next.total[g], next.out + g * n, n);
            }
        }
        const Attended whole = unit.partial >= 0 ? partial(unit, 0) : result;
        for (int g = 0; g < unit.rows * group; g++) {
            const int row = unit.row + g / group, head = unit.kv_head * group + g % group;
            if (whole_blocks) {
                float* y = whole.out + g * n;
                k_.finish(whole.total[g], y, y, n);
                store(w_.attended, attended_, row, head * n, y, n, {user});
            } else {
                k_.finish(whole.total[g], whole.out + g * n,
                          &w_.attention[(size_t)row * attended_ + head * n], n);
            }
        }
    });
    if (whole_blocks) return;
    // a block of 32 spans several heads: quantise when all are there
    walker.each(kAttention, b_.rows, 4, [&](int t) {
        store(w_.attended, attended_, t, 0, &w_.attention[(size_t)t * attended_], attended_, {user});
    });
}

ForwardPass::Attended ForwardPass::attend_split(Walker& walker, int index,
                                                const Workspace::AttentionUnit& unit) {
    const int group = s_.heads / s_.kv_heads, n = s_.head_dim, start = unit.split * kSplitTokens;
    float *scratch = walker.attention, *queries = scratch + (size_t)2 * kBlockTokens * n,
          *own = queries + (size_t)kRunRows * group * n;
    const Attended to = unit.partial >= 0 ? partial(unit, unit.index)
                                          : Attended{own, own + kRunRows * group, own + 2 * kRunRows * group};
    const float* q = &w_.query[(size_t)unit.row * query_ + unit.kv_head * group * n];
    if (unit.rows > 1) {
        for (int r = 0; r < unit.rows; r++)
            std::memcpy(queries + (size_t)r * group * n, q + (size_t)r * query_, group * n * sizeof(float));
        q = queries;
    }
    KvView kv;
    kv.table = table(unit.row) + unit.split * kSplitBlocks;
    kv.tokens = b_.positions[unit.row] + 1 - start;
    kv.window = unit.window > 0;
    kv.first = b_.positions[unit.row] + 1 - unit.window - start;
    kv.keys = m_.kv_.block(0) + m_.kv_.offset(index, unit.kv_head);
    kv.part_bytes = m_.kv_.part_bytes();
    kv.block_bytes = m_.kv_.block_bytes();
    k_.attend[precision_]({unit.rows, group, n, q, to.maximum, to.total, to.out, scratch}, kv);
    return to;
}

ForwardPass::Attended ForwardPass::partial(const Workspace::AttentionUnit& unit, int split) {
    const int group = s_.heads / s_.kv_heads;
    const size_t at = (size_t)(unit.partial + split * unit.rows) * group;
    return {&w_.partial_maximum[at], &w_.partial_total[at], &w_.partial_out[at * s_.head_dim]};
}

// Neighbouring rows of one sequence share the reading of keys and values, as long as there are units for all
// threads. Rows of a run have the same splits.
std::vector<Workspace::AttentionUnit> Model::units_in(const Batch& b, int window, int* partials) const {
    const int most = std::clamp(b.rows * shape_.kv_heads / (4 * pool_.size()), 1, kRunRows);
    const auto first_split = [&](int row) {
        return window ? std::max(b.positions[row] + 1 - window, 0) / kSplitTokens : 0;
    };
    const auto belongs = [&](int row, int run) {
        return row < b.rows && row - run < most && b.sequence[row] == b.sequence[run] &&
               b.positions[row] - b.positions[run] == row - run && first_split(row) == first_split(run) &&
               b.positions[row] / kSplitTokens == b.positions[run] / kSplitTokens;
    };
    std::vector<Workspace::AttentionUnit> units;
    for (int head = 0; head < shape_.kv_heads; head++)
        for (int row = 0, end; row < b.rows; row = end) {
            for (end = row + 1; belongs(end, row);) end++;
            const int rows = end - row, begin = first_split(row),
                      splits = b.positions[row] / kSplitTokens + 1 - begin;
            for (int i = 0; i < splits; i++)
                units.push_back({row, rows, head, window, begin + i, i, splits, splits > 1 ? *partials : -1});
            if (splits > 1) *partials += splits * rows;
        }
    return units;
}
