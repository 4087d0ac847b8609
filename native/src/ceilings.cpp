#include "tiltyard/ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "tiltyard/isa.hpp"
#include "tiltyard/mapped_memory.hpp"
#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

namespace {

constexpr int kRounds = 4000;  // of a multiply-add loop: tens of microseconds
constexpr size_t kPiece = 64 << 10;
constexpr int kScratch = 1024;

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Ceilings measure_ceilings(const std::string& isa, int threads, size_t bytes, double seconds) {
    const KernelTable& kernels = kernels_for(isa);
    const int pieces = (int)std::max<size_t>(bytes / kPiece, 1);
    MappedMemory memory(pieces * kPiece), scratch((size_t)threads * kScratch);
    std::memset(memory.data(), 0, memory.size());  // give every page its own memory
    std::memset(scratch.data(), 1, scratch.size());
    ThreadPool pool(threads);
    // The best rate of work(walk, i), which returns how much it did, over units that the threads share.
    const auto best = [&](int units, auto work) {
        double rate = 0;
        for (const double end = now() + seconds / 3; now() < end;) {
            std::vector<double> done(threads);
            const double start = now();
            pool.walk([&](ThreadPool::Walk& walk) {
                walk.each(units, 1, [&](int i) {
                    done[walk.thread] += work(i, scratch.data() + (size_t)walk.thread * kScratch);
                });
            });
            const double took = now() - start;
            pool.settle();
            double total = 0;
            for (double part : done) total += part;
            rate = std::max(rate, total / took);
        }
        return rate;
    };
    Ceilings found;
    found.read_bytes = best(pieces, [&](int i, uint8_t* own) {
        kernels.read_all(memory.data() + (size_t)i * kPiece, kPiece, own);
        return (double)kPiece;
    });
    const auto peak = [&](auto loop) {
        return best(threads * 64, [&](int, uint8_t* own) { return loop(kRounds, own); });
    };
    found.int4 = peak(kernels.most_int4);
    found.int8 = peak(kernels.most_int8);
    return found;
}

}  // namespace tiltyard
