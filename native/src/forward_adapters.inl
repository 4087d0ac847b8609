// LoRA as phases and epilogues of a pass; part of forward.cpp. Rows without an adapter pass by untouched.

// The first half for all rows that have adapters: down x, into one buffer for each of `sites`. An x without
// values is what the last norm gave.
void ForwardPass::lower(Walker& walker, int index, std::initializer_list<Site> sites, const Activations& x) {
    const auto low_rank = [&](int run, int i) -> const LowRank& {
        return w_.runs[run].adapter->at(index, sites.begin()[i]);
    };
    const int runs = (int)w_.runs.size(), count = (int)sites.size(), tiles = m_.low_width_ / kTileRows;
    bool any = false;
    for (int run = 0; run < runs && !any; run++)
        for (int i = 0; i < count; i++) any = any || !low_rank(run, i).empty();
    if (!any) return;
    walker.each(kAdapters, runs * count * tiles, 1, [&](int unit) {
        const int run = unit / (count * tiles), i = unit / tiles % count, tile = unit % tiles;
        const LowRank& m = low_rank(run, i);
        // `up` reads whole blocks of 32: what lies behind the rank must be zero
        if (m.empty() || tile * kTileRows >= m.up.blocks() * kQuantBlock) return;
        const auto [first, end, adapter] = w_.runs[run];
        float* out = &w_.low[i][(size_t)first * m_.low_width_ + tile * kTileRows];
        if (tile < m.down.tiles())
            return product(walker, m.down, tile, x.values ? x : normed(walker), first, end, out,
                           m_.low_width_);
        for (int t = first; t < end; t++, out += m_.low_width_)
            std::memset(out, 0, kTileRows * sizeof(float));
    });
}

// The second half for a tile of rows [t0, t1): out[t - t0] = fma(scale, up (down x), out[t - t0]).
void ForwardPass::adapt(Walker& walker, int index, Site site, int low, int tile, int t0, int t1, float* out,
                        int stride) const {
    for (const AdapterRun& run : w_.runs) {
        const int first = std::max(run.first, t0), end = std::min(run.end, t1);
        if (first >= end) continue;
        const LowRank& m = run.adapter->at(index, site);
        if (m.empty()) continue;
        Activations x;
        x.values = w_.low[low].data(), x.row_values = m_.low_width_;
        product(walker, m.up, tile, x, first, end, walker.adapted, kTileRows);
        for (int t = first; t < end; t++)
            k_.add_scaled(out + (size_t)(t - t0) * stride, walker.adapted + (t - first) * kTileRows,
                          run.adapter->scale, kTileRows);
    }
}
