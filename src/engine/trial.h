// Decides by measurement whether an option pays: times a few tokens without it, a few with it and a few
// without again, so that what changes all the while (caches that fill) counts for neither; keeps the better
// for a while, and tries again. Pure but for the times it is given.
#pragma once

#include <cstddef>

namespace ganglion::engine {

class Trial {
 public:
  /// Whether the next token uses the option.
  bool use() const { return phase_ == Phase::kWith || (phase_ == Phase::kDecided && pays_); }
  /// Whether it was found to pay, when last tried.
  bool pays() const { return pays_; }

  /// A token took `ns`.
  void add(double ns) {
    sum_ns_ += ns;
    if (++count_ < tokens_of(phase_)) return;
    const double mean_ns = sum_ns_ / static_cast<double>(count_);
    count_ = 0;
    sum_ns_ = 0;
    switch (phase_) {
      case Phase::kBefore:
        before_ns_ = mean_ns;
        phase_ = Phase::kWith;
        break;
      case Phase::kWith:
        with_ns_ = mean_ns;
        phase_ = Phase::kAfter;
        break;
      case Phase::kAfter:
        pays_ = with_ns_ < kLeastGain * (before_ns_ + mean_ns) / 2;
        phase_ = Phase::kDecided;
        break;
      case Phase::kDecided:
        phase_ = Phase::kBefore;
        break;
    }
  }

 private:
  enum class Phase : unsigned char { kBefore, kWith, kAfter, kDecided };
  static constexpr size_t tokens_of(Phase phase) {
    constexpr size_t kTry = 8;
    constexpr size_t kKeep = 128;
    return phase == Phase::kDecided ? kKeep : phase == Phase::kWith ? kTry : kTry / 2;
  }
  static constexpr double kLeastGain = 0.97;  // Less is noise, and the option has its price.

  Phase phase_ = Phase::kBefore;
  bool pays_ = false;
  size_t count_ = 0;
  double sum_ns_ = 0;
  double before_ns_ = 0;
  double with_ns_ = 0;
};

}  // namespace ganglion::engine
