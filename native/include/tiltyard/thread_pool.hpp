// SPMD threads: run(job) calls job(thread) on every thread, barrier() joins them between the phases of a job.
//
// Waiting is in three steps, so that it is fast when cores are free and cheap when they are not: spin for
// some microseconds, yield the core a few times, then sleep in the kernel. An idle pool uses no CPU.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tiltyard {

class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return threads_; }
    // `job` must not throw. One run at a time; the caller is thread 0.
    void run(const std::function<void(int)>& job);
    void barrier();

  private:
    void work(int thread);

    const int threads_;
    std::vector<std::thread> workers_;
    const std::function<void(int)>* job_ = nullptr;
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint32_t> epoch_{0};       // grows with each job
    alignas(64) std::atomic<int> arrived_{0};          // threads waiting at the barrier
    alignas(64) std::atomic<uint32_t> generation_{0};  // grows with each barrier passed
};

}  // namespace tiltyard
