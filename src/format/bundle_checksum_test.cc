#include "format/bundle_checksum.h"

#include <gtest/gtest.h>

#include <vector>

namespace ganglion::format {
namespace {

TEST(BundleChecksum, IsWhatTheFormatSays) {
  constexpr uint64_t kP = 0x9e3779b97f4a7c15U;
  const auto step = [](uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * kP;
    return hash ^ hash >> 29;
  };
  EXPECT_EQ(bundle_checksum({}), 0U);
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(bundle_checksum(bytes), step(step(10 * kP, 0x0807060504030201U), 0x0a09U));
  EXPECT_EQ(bundle_checksum(std::span(bytes).first(8)), step(8 * kP, 0x0807060504030201U));
}

TEST(BundleChecksum, ChangesWithEveryBitAndWithTheLength) {
  std::vector<uint8_t> bytes(100, 0);
  const uint64_t before = bundle_checksum(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
    EXPECT_NE(bundle_checksum(bytes), before) << bit;
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
  }
  bytes.push_back(0);
  EXPECT_NE(bundle_checksum(bytes), before);
}

}  // namespace
}  // namespace ganglion::format
