// Walks many jobs of many phases over a pool and checks that each unit of each phase was done once, and that
// a phase saw all that the one before it wrote. Arguments: threads, jobs. Prints how many units it checked.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "tiltyard/thread_pool.hpp"

using tiltyard::ThreadPool;

namespace {

struct Phases {
    std::vector<int> units, steps;
    std::vector<std::vector<int>> done;  // [phase][unit], no atomics: each unit has one writer
    std::atomic<long> wrong{0};
};

std::shared_ptr<Phases> random_phases(std::mt19937& random) {
    auto phases = std::make_shared<Phases>();
    const int count = 1 + (int)(random() % 40);
    for (int i = 0; i < count; i++) {
        phases->units.push_back((int)(random() % 8 ? random() % 60 : random() % 70000));
        phases->steps.push_back(1 + (int)(random() % 5));
        phases->done.emplace_back(phases->units.back(), 0);
    }
    return phases;
}

}  // namespace

int main(int, char** arguments) {
    const int threads = std::atoi(arguments[1]), jobs = std::atoi(arguments[2]);
    ThreadPool pool(threads);
    std::mt19937 random(7);
    long checked = 0;
    for (int job = 0; job < jobs; job++) {
        const auto phases = random_phases(random);
        pool.walk([phases](ThreadPool::Walk& walk) {
            for (size_t p = 0; p < phases->units.size(); p++)
                walk.each(phases->units[p], phases->steps[p], [&](int i) {
                    if (p > 0)
                        for (size_t j = i % 7; j < phases->done[p - 1].size(); j += 97)
                            if (phases->done[p - 1][j] != 1) phases->wrong++;
                    phases->done[p][i]++;
                });
        });
        for (const auto& units : phases->done)
            for (int done : units) phases->wrong += done != 1, checked++;
        if (phases->wrong) return std::printf("job %d: %ld wrong\n", job, phases->wrong.load()), 1;
        if (random() % 4 == 0) {
            std::atomic<int> calls{0};
            pool.run([&](int) { calls++; });
            if (calls < 1 || calls > threads) return std::printf("run: %d calls\n", calls.load()), 1;
        }
    }
    std::printf("%ld\n", checked);
}
