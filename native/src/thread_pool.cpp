#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

namespace {

constexpr int kBarrierSpins = 4000;  // tens of microseconds: longer than a balanced phase needs
constexpr int kJobSpins = 8000;      // covers the gap between two engine steps
constexpr int kYields = 50;          // let a preempted peer run before paying for a sleep

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void wait_while(const std::atomic<uint32_t>& word, uint32_t old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        relax();
    }
    for (int i = 0; i < kYields; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        std::this_thread::yield();
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
    stopping_ = true;
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& job) {
    job_ = &job;
    epoch_.fetch_add(1, std::memory_order_release);
    if (threads_ > 1) epoch_.notify_all();  // no system call unless somebody sleeps
    job(0);
    barrier();
}

void ThreadPool::barrier() {
    if (threads_ == 1) return;
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
        generation_.notify_all();
        return;
    }
    wait_while(generation_, generation, kBarrierSpins);
}

void ThreadPool::work(int thread) {
    for (uint32_t seen = 0;; seen++) {
        wait_while(epoch_, seen, kJobSpins);
        if (stopping_) return;
        (*job_)(thread);
        barrier();
    }
}

}  // namespace tiltyard
