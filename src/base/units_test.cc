#include "base/units.h"

#include <gtest/gtest.h>

namespace ganglion::base {
namespace {

TEST(ParseBytes, UnderstandsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096U);
  EXPECT_EQ(parse_bytes("64M").value(), 64 * kMiB);
  EXPECT_EQ(parse_bytes("4g").value(), 4 * kGiB);
  EXPECT_EQ(parse_bytes("4GB").value(), 4'000'000'000U);
  EXPECT_EQ(parse_bytes("1.5 GiB").value(), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("512 B").value(), 512U);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "M", "-1G", "4X", "4GiBs", "nan", "1e30G", "4 4"}) {
    const auto result = parse_bytes(bad);
    EXPECT_FALSE(result.ok()) << bad;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(FormatBytes, KeepsThreeDigits) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(98'362'432), "93.8 MiB");
  EXPECT_EQ(format_bytes(5 * kGiB / 2), "2.50 GiB");
}

TEST(CheckedArithmetic, NoticesOverflow) {
  uint64_t out = 0;
  EXPECT_TRUE(try_mul(1ULL << 31, 1ULL << 31, &out));
  EXPECT_FALSE(try_mul(1ULL << 32, 1ULL << 32, &out));
  EXPECT_FALSE(try_add(~0ULL, 1, &out));
}

TEST(Status, PrependsContextOnlyToFailures) {
  EXPECT_TRUE(ok_status().with_context("x").ok());
  EXPECT_EQ(Status(Code::kIo, "b").with_context("a").message(), "a: b");
}

}  // namespace
}  // namespace ganglion::base
