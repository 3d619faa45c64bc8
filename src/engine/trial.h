// Decides by measurement whether an option pays: a few tokens take turns with and without it, in the order
// without, with, with, without, so that what changes all the while (caches that fill) counts for neither;
// keeps the better for a while, longer each time it is confirmed, and tries again where there is something to
// gain. Pure but for the times it is given.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace ganglion::engine {

class Trial {
 public:
  /// Whether the next token uses the option.
  bool use() const { return trying_ ? (count_ + 1) / 2 % 2 == 1 : pays_; }
  /// Whether it was found to pay, when last tried.
  bool pays() const { return pays_; }

  /// A token took `ns`, of which the option could have saved `at_most`.
  void add(double ns, double at_most) {
    if (trying_) (use() ? with_ : without_)[count_ / 2] = ns;
    all_ns_ += ns;
    most_saved_ += at_most;
    if (++count_ < (trying_ ? 2 * kTries : keep_)) return;
    if (trying_) {
      decide();
      trying_ = false;
    } else {
      trying_ = !tried_ || pays_ || most_saved_ > kWorthTrying * all_ns_;
      tried_ = true;
    }
    count_ = 0;
    all_ns_ = most_saved_ = 0;
  }

 private:
  static constexpr size_t kTries = 12;
  static constexpr size_t kKeepFirst = 32;
  static constexpr size_t kFirstLook = 4;
  static constexpr size_t kKeepMost = 256;
  static constexpr double kLeastGain = 0.97;  // Less is noise, and the option has its price.
  static constexpr double kWorthTrying = 0.1;

  // Single tokens are slower by half without cause: medians count.
  static double median(std::array<double, kTries>& times) {
    std::nth_element(times.begin(), times.begin() + kTries / 2, times.end());
    return times[kTries / 2];
  }

  void decide() {
    const bool pays = median(with_) < kLeastGain * median(without_);
    keep_ = pays == pays_ ? std::clamp(2 * keep_, kKeepFirst, kKeepMost) : kKeepFirst;
    pays_ = pays;
  }

  bool trying_ = false;
  bool tried_ = false;
  bool pays_ = false;
  size_t count_ = 0;  // Tokens since this trial, or the rest after it, began.
  size_t keep_ = kFirstLook;
  double all_ns_ = 0;
  double most_saved_ = 0;
  std::array<double, kTries> with_{};
  std::array<double, kTries> without_{};
};

}  // namespace ganglion::engine
