#include "tiltyard/experts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace tiltyard {

void choose_experts(const KernelTable& kernels, const float* logits, int experts, int used, bool normalize,
                    float* scratch, int32_t* chosen, float* weights) {
    for (int rank = 0; rank < used; rank++) {
        int best = -1;
        for (int e = 0; e < experts; e++) {
            if (std::find(chosen, chosen + rank, e) != chosen + rank) continue;
            if (best < 0 || logits[e] > logits[best]) best = e;
        }
        chosen[rank] = best;
    }
    float* exponentials = scratch;
    kernels.row_weights(logits, experts, logits[chosen[0]], 1.0f, exponentials);
    float total = 0;
    if (normalize)
        for (int rank = 0; rank < used; rank++) total += exponentials[chosen[rank]];
    else
        for (int e = 0; e < experts; e++) total += exponentials[e];
    for (int rank = 0; rank < used; rank++) weights[rank] = exponentials[chosen[rank]] / total;
}

void ExpertGroups::resize(int rows, int used, int experts) {
    for (auto* ints : {&chosen, &place, &source}) ints->resize((size_t)rows * used);
    weights.resize((size_t)rows * used);
    first.resize(experts + 1);
    active.reserve(experts);
}

void ExpertGroups::group(int rows, int used, int experts) {
    std::fill(first.begin(), first.end(), 0);
    for (int i = 0; i < rows * used; i++) first[chosen[i] + 1]++;
    active.clear();
    for (int e = 0; e < experts; e++) {
        if (first[e + 1]) active.push_back(e);
        first[e + 1] += first[e];
    }
    for (int i = 0; i < rows * used; i++) {  // first[e] moves on to the expert's next free place
        place[i] = first[chosen[i]]++;
        source[place[i]] = i / used;
    }
    for (int e = experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

ExpertStore::ExpertStore(int layers, int experts)
    : experts_(experts), layers_(layers), uses_((size_t)layers * experts) {}

ExpertStore::~ExpertStore() {
    if (file_ >= 0) close(file_);
}

void ExpertStore::offload(const std::string& directory, size_t memory_bytes) {
    std::string path = directory + "/experts-XXXXXX";
    file_ = mkostemp(path.data(), O_CLOEXEC);
    if (file_ < 0)
        throw std::runtime_error("no file for experts can be made in " + directory + ": " + strerror(errno));
    unlink(path.c_str());  // it goes with this process, however that ends
    budget_ = memory_bytes;
}

void ExpertStore::put(int layer, ExpertPart which, PackedMatrix& matrix) {
    Part& part = layers_[layer].parts[which];
    part.matrix = &matrix;
    part.tiles = matrix.tiles() / experts_;
    part.bytes = part.tiles * matrix.tile_bytes();
    if (!offloads()) return;
    part.file_at = file_bytes_;
    const uint8_t* from = matrix.tile(0);
    for (size_t done = 0; done < matrix.bytes();) {
        const ssize_t n = pwrite(file_, from + done, matrix.bytes() - done, file_bytes_ + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            throw std::runtime_error(std::string("experts cannot be written to disk: ") + strerror(errno));
        done += n;
    }
    file_bytes_ += matrix.bytes();
    matrix.drop();
}

void ExpertStore::finish() {
    if (!offloads()) return;
    size_t one_of_each = 0;
    for (LayerExperts& layer : layers_) {
        for (Part& part : layer.parts) {
            part.slot_at = layer.slot_bytes;
            layer.slot_bytes += part.bytes;
        }
        one_of_each += layer.slot_bytes;
    }
    if (budget_ < one_of_each)
        throw std::invalid_argument("the experts' memory is " + std::to_string(budget_) +
                                    " bytes; one expert of each layer takes " + std::to_string(one_of_each));
    size_t left = budget_ % one_of_each;
    for (LayerExperts& layer : layers_) {
        size_t slots = budget_ / one_of_each;
        if (left >= layer.slot_bytes) left -= layer.slot_bytes, slots++;
        slots = std::min(slots, (size_t)experts_);
        layer.memory = MappedMemory(slots * layer.slot_bytes);
        layer.slots.assign(slots, Slot{});
        layer.slot_of.assign(experts_, -1);
    }
}

void ExpertStore::plan(int index, const ExpertGroups& groups) {
    LayerExperts& layer = layers_[index];
    std::vector<ExpertWave>& waves = layer.waves;
    waves.assign(1, ExpertWave{});
    plans_++;
    for (const int e : groups.active) uses_[(size_t)index * experts_ + e] += groups.rows_of(e);
    if (!offloads()) {
        for (const int e : groups.active) waves[0].resident.push_back({e, e});
        return;
    }
    std::vector<int> absent;
    for (const int e : groups.active) {
        const int slot = layer.slot_of[e];
        if (slot < 0) {
            absent.push_back(e);
            continue;
        }
        layer.slots[slot].used = plans_;
        waves[0].resident.push_back({e, slot});
    }
    hits_ += groups.active.size() - absent.size();
    misses_ += absent.size();
    size_t taken = waves[0].resident.size();  // slots that this wave uses
    for (const int e : absent) {
        if (taken == layer.slots.size()) {
            waves.emplace_back();
            plans_++;
            taken = 0;
        }
        const auto oldest = std::min_element(layer.slots.begin(), layer.slots.end(),
                                             [](const Slot& a, const Slot& b) { return a.used < b.used; });
        const int slot = (int)(oldest - layer.slots.begin());
        if (oldest->expert >= 0)
            layer.slot_of[oldest->expert] = -1;
        else
            resident_++;
        *oldest = {e, plans_};
        layer.slot_of[e] = slot;
        waves.back().missing.push_back({e, slot});
        taken++;
    }
}

void ExpertStore::load(int index, PlacedExpert placed, int piece) {
    LayerExperts& layer = layers_[index];
    const size_t begin = piece * kLoadPiece, end = std::min(begin + kLoadPiece, layer.slot_bytes);
    uint8_t* const slot = layer.memory.data() + placed.slot * layer.slot_bytes;
    for (const Part& part : layer.parts) {
        const size_t last = std::min(end, part.slot_at + part.bytes);
        for (size_t at = std::max(begin, part.slot_at); at < last;) {
            const size_t from = part.file_at + placed.expert * part.bytes + (at - part.slot_at);
            const ssize_t n = pread(file_, slot + at, last - at, from);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                failure_.store(n < 0 ? errno : -1);
                return;
            }
            at += n;
            bytes_read_.fetch_add(n, std::memory_order_relaxed);
        }
    }
}

void ExpertStore::check() {
    const int failure = failure_.exchange(0);
    if (!failure) return;
    for (LayerExperts& layer : layers_) {
        layer.slots.assign(layer.slots.size(), Slot{});
        layer.slot_of.assign(experts_, -1);
    }
    resident_ = 0;
    throw std::runtime_error(std::string("an expert cannot be read from disk: ") +
                             (failure > 0 ? strerror(failure) : "the file ends too early"));
}

const uint8_t* ExpertStore::tile(int index, ExpertPart which, PlacedExpert placed, int tile) const {
    const LayerExperts& layer = layers_[index];
    const Part& part = layer.parts[which];
    if (!offloads()) return part.matrix->tile(placed.slot * part.tiles + tile);
    return layer.memory.data() + placed.slot * layer.slot_bytes + part.slot_at +
           tile * part.matrix->tile_bytes();
}

ExpertCounters ExpertStore::counters() const {
    ExpertCounters c{hits_, misses_, bytes_read_, resident_, 0, 0, file_bytes_};
    for (const LayerExperts& layer : layers_) {
        c.slots += layer.slots.size();
        c.slot_bytes += layer.slots.size() * layer.slot_bytes;
        for (const Part& part : layer.parts) c.least_bytes += part.bytes;
    }
    return c;
}

}  // namespace tiltyard
