// Work over many items shared between the threads of a pool, for loading; the forward pass has its own ways.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "tiltyard/thread_pool.hpp"

namespace tiltyard {

// Calls work(first, last) for pieces of `grain` items of 0 .. count - 1, on every thread of the pool (on the
// caller alone without one), and throws the first exception that a piece threw, once all have ended.
template <class Work>
void share_out(ThreadPool* pool, int count, int grain, Work work) {
    if (pool == nullptr || pool->size() == 1 || count <= grain) {
        if (count > 0) work(0, count);
        return;
    }
    std::atomic<int> next{0};
    std::exception_ptr failure;
    std::mutex failed;
    pool->run([&](int) {
        for (int first; (first = next.fetch_add(grain, std::memory_order_relaxed)) < count;) try {
                work(first, std::min(first + grain, count));
            } catch (...) {
                std::lock_guard lock(failed);
                if (!failure) failure = std::current_exception();
                next.store(count, std::memory_order_relaxed);
            }
    });
    if (failure) std::rethrow_exception(failure);
}

}  // namespace tiltyard
