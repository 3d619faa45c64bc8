// Decides by measurement whether an option pays: times a few tokens with it and a few without, keeps the
// better for a while, and tries again. Pure but for the times it is given.
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
    if (++count_ < (phase_ == Phase::kDecided ? kKeepTokens : kTryTokens)) return;
    const double mean_ns = sum_ns_ / static_cast<double>(count_);
    count_ = 0;
    sum_ns_ = 0;
    switch (phase_) {
      case Phase::kWithout:
        without_ns_ = mean_ns;
        phase_ = Phase::kWith;
        break;
      case Phase::kWith:
        pays_ = mean_ns < kLeastGain * without_ns_;
        phase_ = Phase::kDecided;
        break;
      case Phase::kDecided:
        phase_ = Phase::kWithout;
        break;
    }
  }

 private:
  enum class Phase : unsigned char { kWithout, kWith, kDecided };
  static constexpr size_t kTryTokens = 8;
  static constexpr size_t kKeepTokens = 128;
  static constexpr double kLeastGain = 0.97;  // Less is noise, and the option has its price.

  Phase phase_ = Phase::kWithout;
  bool pays_ = false;
  size_t count_ = 0;
  double sum_ns_ = 0;
  double without_ns_ = 0;
};

}  // namespace ganglion::engine
