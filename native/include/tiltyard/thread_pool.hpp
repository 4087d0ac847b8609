// SPMD threads: run(job) calls job(thread) on each, walk(job) gives each a Walk through the phases of a job.
//
// A phase is a list of units. Each thread walks its own contiguous share, front to back, so that its memory
// streams stay whole, and then steals from the tails of the others. A phase is over when its units are done,
// not when every thread has come: a thread that the system put aside between two units, or that still
// sleeps, holds nobody up, and finds later that its phases are over.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace tiltyard {

class ThreadPool {
  public:
    class Walk;
    using Job = std::function<void(Walk&)>;

    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return threads_; }
    // One run or walk at a time; the caller is thread 0; jobs must not throw.
    //
    // Returns when every call of job(thread) has ended. A thread that comes late is left out.
    void run(const std::function<void(int)>& job);
    // Each thread must walk the same phases. Returns when every unit is done, but a late thread may still be
    // on its way out: what tells a walk its phases must not change before settle, nor die before the pool.
    void walk(Job job);
    // Waits for late threads.
    void settle() const;

  private:
    // The pieces of a share that nobody has taken yet: phase (32 bits), first (16), end (16).
    struct alignas(64) Share {
        std::atomic<uint64_t> word{0};
    };
    static constexpr int kMostPieces = 65535;

    void work(int thread);
    int take(int victim, uint32_t phase, int pieces, bool front);
    void add_finished(uint32_t pieces, uint32_t target);
    struct Ahead {
        const uint8_t *at = nullptr, *end = nullptr;
    };
    void await(uint32_t target, Ahead& ahead);

    const int threads_;
    std::vector<std::thread> workers_;
    std::unique_ptr<Share[]> shares_;
    Job job_;
    uint32_t phase_ = 0, target_ = 0;  // where the job's walks begin
    uint32_t next_phase_ = 0;          // where those of the next job will
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint32_t> state_{0};  // grows at the start and at the end of a job; odd: open
    alignas(64) std::atomic<int> inside_{0};      // workers that may still look at the job
    alignas(64) std::atomic<uint32_t> done_{0};   // pieces finished, over all phases
};

// One thread's way through the phases of a job.
class ThreadPool::Walk {
  public:
    const int thread;

    // Calls unit(i) for each i in [0, units), `step` neighbours at a time, on whichever thread; returns when
    // all are done.
    template <class Unit>
    void each(int units, int step, Unit unit) {
        if (pool_.threads_ == 1) {
            for (int i = 0; i < units; i++) unit(i);
            return;
        }
        step = std::max(step, units / kMostPieces + 1);
        const int pieces = (units + step - 1) / step;
        phase_++, target_ += (uint32_t)pieces;
        for (int k = 0; k < pool_.threads_; k++) {
            const int victim = (thread + k) % pool_.threads_;
            uint32_t finished = 0;
            for (int piece; (piece = pool_.take(victim, phase_, pieces, k == 0)) >= 0; finished++) {
                const int end = std::min(units, (piece + 1) * step);
                for (int i = piece * step; i < end; i++) unit(i);
            }
            if (finished) pool_.add_finished(finished, target_);
        }
        pool_.await(target_, ahead_);
    }
    // Memory that this thread will read in the next phase: it is fetched while this one waits for the others.
    void read_ahead(const uint8_t* from, size_t bytes) { ahead_ = {from, from + bytes}; }

  private:
    friend class ThreadPool;
    Walk(ThreadPool& pool, int thread)
        : thread(thread), pool_(pool), phase_(pool.phase_), target_(pool.target_) {}
    ThreadPool& pool_;
    uint32_t phase_, target_;  // the target: what `done_` is when the phase is over
    Ahead ahead_;
};

}  // namespace tiltyard
