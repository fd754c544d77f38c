// How the threads of a host wait for each other, and share work out.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace rlbatch::atari {

// Waits for what another thread does. To wake a thread that sleeps takes tens of microseconds, about as long
// as Python takes from one step to the next; so one that had to wait no longer than kPatience the last time
// first looks for so long whether it is there, in between letting others have the core.
struct Waiter {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kPatience{200};

  Clock::duration last{};

  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& sign, const Condition& is_there) {
    if (is_there()) return;
    const Clock::time_point begun = Clock::now();
    if (last <= kPatience) {
      lock.unlock();
      while (!is_there() && Clock::now() - begun < kPatience) std::this_thread::yield();
      lock.lock();
    }
    sign.wait(lock, is_there);
    last = Clock::now() - begun;
  }
};

// Does the work for all numbers below n: here, and in as many threads as there are other scratches, if the
// system allows these.
template <class Scratch, class Work>
void share_out(size_t n, Scratch& own_scratch, std::vector<Scratch>& others, const Work& work) {
  std::atomic<size_t> next_number{0};
  struct Share {
    decltype(next_number)& next;
    const size_t n;
    const Work& work;
    Scratch& scratch;

    static void* take(void* share) {
      const Share& own = *static_cast<Share*>(share);
      for (size_t i; (i = own.next++) < own.n;) own.work(i, own.scratch);
      return nullptr;
    }
  };
  std::vector<Share> shares;
  shares.reserve(others.size());  // They stay where they are.
  std::vector<pthread_t> helpers;
  pthread_t helper;
  for (Scratch& scratch : others) {
    shares.push_back({next_number, n, work, scratch});
    if (pthread_create(&helper, nullptr, Share::take, &shares.back())) break;
    helpers.push_back(helper);
  }
  Share own{next_number, n, work, own_scratch};
  Share::take(&own);
  for (pthread_t thread : helpers) pthread_join(thread, nullptr);
}

}  // namespace rlbatch::atari
