#include "base/sha256.h"

#include <gtest/gtest.h>

namespace ganglion::base {
namespace {

std::string digest(const std::string& text, size_t step) {
  Sha256 sha;
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t i = 0; i < text.size(); i += step) sha.update({at + i, std::min(step, text.size() - i)});
  return sha.finish();
}

// Source: the examples of FIPS 180-4.
TEST(Sha256, KnownDigestsInPiecesOfAnySize) {
  for (const size_t step : {1U, 3U, 64U, 1000U}) {
    EXPECT_EQ(digest("", step), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(digest("abc", step), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", step),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(digest(std::string(1'000'000, 'a'), step * 977),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

}  // namespace
}  // namespace ganglion::base
