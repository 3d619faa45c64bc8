// The random numbers of sampling: xoshiro256++ (Blackman, Vigna 2019) seeded by splitmix64 (Steele et al.
// 2014). Own code, because the distributions of the standard library differ between libraries, and one seed
// must give one text everywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace ganglion::sampling {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9e3779b97f4a7c15U;
      uint64_t mixed = seed;
      mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
      mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
      word = mixed ^ (mixed >> 31U);
    }
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17U;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  /// In [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

 private:
  uint64_t state_[4];
};

}  // namespace ganglion::sampling
