#include "tiltyard/thread_pool.hpp"

#include <chrono>

namespace tiltyard {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Waiting is in three steps, so that it is fast when cores are free and cheap when they are not: spin, give
// the core away a few times, then sleep. A core that falls idle takes over the preempted peer that all wait
// for, so sleep comes soon. An idle pool uses no CPU.
constexpr microseconds kPhaseSpin{60};  // longer than balanced threads differ
constexpr microseconds kJobSpin{60};    // covers the gap between two engine steps that follow at once
constexpr int kYields = 4;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Until ready(value of word): true for good once it is true, and announced by notify_all. While it spins it
// calls `pause`.
template <class Ready, class Pause>
uint32_t wait_until(const std::atomic<uint32_t>& word, microseconds spin, Ready ready, Pause pause) {
    uint32_t seen;
    const auto is_ready = [&] { return ready(seen = word.load(std::memory_order_acquire)); };
    if (is_ready()) return seen;
    const auto end = Clock::now() + spin;
    do {
        for (int i = 0; i < 16; i++) {
            if (is_ready()) return seen;
            pause();
        }
    } while (Clock::now() < end);
    for (int i = 0; i < kYields; i++) {
        if (is_ready()) return seen;
        std::this_thread::yield();
    }
    while (!is_ready()) word.wait(seen, std::memory_order_acquire);
    return seen;
}

constexpr uint64_t packed(uint32_t phase, int first, int end) {
    return (uint64_t)phase << 32 | (uint64_t)first << 16 | (uint64_t)end;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), shares_(new Share[threads]) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
    stopping_ = true;
    state_.fetch_add(1);
    state_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::settle() const {
    while (inside_.load() != 0) std::this_thread::yield();
}

void ThreadPool::run(const std::function<void(int)>& job) {
    walk([&job](Walk& walk) { job(walk.thread); });
    settle();
}

// A worker first says that it is inside, then looks whether the job is open; we close the job, then look
// whether anybody is inside. In whichever order these four fall, nobody is in a job that is being replaced.
void ThreadPool::walk(Job job) {
    if (threads_ == 1) {
        Walk walk(*this, 0);
        return job(walk);
    }
    settle();
    job_ = std::move(job);
    phase_ = next_phase_, target_ = done_.load();
    for (int i = 0; i < threads_; i++) shares_[i].word.store(packed(phase_, 0, 0));
    Walk walk(*this, 0);
    state_.fetch_add(1);
    state_.notify_all();  // no system call unless somebody sleeps
    job_(walk);
    state_.fetch_add(1);
    next_phase_ = walk.phase_;
}

void ThreadPool::work(int thread) {
    for (uint32_t last = 0;;) {
        const uint32_t state = wait_until(
            state_, kJobSpin, [&](uint32_t now) { return stopping_.load() || (now % 2 == 1 && now != last); },
            relax);
        if (stopping_) return;
        inside_.fetch_add(1);
        if (state_.load() == state) {
            Walk walk(*this, thread);
            job_(walk);
        }
        inside_.fetch_sub(1);
        last = state;
    }
}

int ThreadPool::take(int victim, uint32_t phase, int pieces, bool front) {
    std::atomic<uint64_t>& word = shares_[victim].word;
    uint64_t seen = word.load(std::memory_order_acquire);
    while (true) {
        const auto ahead = (int32_t)((uint32_t)(seen >> 32) - phase);
        if (ahead > 0) return -1;  // the phase is over, we are late
        int first = (int)(seen >> 16 & 0xffff), end = (int)(seen & 0xffff);
        if (ahead < 0) {  // nobody has taken from this share yet
            first = (int)((int64_t)pieces * victim / threads_);
            end = (int)((int64_t)pieces * (victim + 1) / threads_);
        }
        if (first == end) return -1;
        const int piece = front ? first++ : --end;
        if (word.compare_exchange_weak(seen, packed(phase, first, end), std::memory_order_acq_rel,
                                       std::memory_order_acquire))
            return piece;
    }
}

void ThreadPool::add_finished(uint32_t pieces, uint32_t target) {
    if (done_.fetch_add(pieces, std::memory_order_acq_rel) + pieces == target) done_.notify_all();
}

void ThreadPool::await(uint32_t target, Ahead& ahead) {
    const auto ready = [&](uint32_t done) { return (int32_t)(done - target) >= 0; };
    wait_until(done_, kPhaseSpin, ready, [&] {
        if (ahead.at >= ahead.end) return relax();
        for (int line = 0; line < 4; line++, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 2);
    });
}

}  // namespace tiltyard
