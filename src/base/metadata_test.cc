#include "base/metadata.h"

#include <gtest/gtest.h>

namespace ganglion::base {
namespace {

Value uint_value(uint64_t number) {
  Value value;
  value.uint_value = number;
  return value;
}

TEST(Metadata, NamesTheKeyThatIsMissingOrOfAnotherKind) {
  Metadata metadata;
  metadata.set("a.count", uint_value(7));
  EXPECT_EQ(metadata.uint_required("a.count").value(), 7U);
  EXPECT_EQ(metadata.uint_or("b", 3).value(), 3U);
  const auto missing = metadata.uint_required("b");
  EXPECT_EQ(missing.status().code(), Code::kModelFile);
  EXPECT_NE(missing.status().message().find("'b' is missing"), std::string::npos);
  EXPECT_NE(metadata.string_or("a.count", "").status().message().find("expected a string"),
            std::string::npos);
}

TEST(Metadata, OverridesKeepTheKindOfAKnownKey) {
  Metadata metadata;
  metadata.set("n", uint_value(7));
  EXPECT_TRUE(metadata.set_override("n", "9").ok());
  EXPECT_EQ(metadata.uint_required("n").value(), 9U);
  EXPECT_FALSE(metadata.set_override("n", "nine").ok());
  EXPECT_TRUE(metadata.set_override("new.name", "llama-bpe").ok());
  EXPECT_EQ(metadata.string_required("new.name").value(), "llama-bpe");
  EXPECT_TRUE(metadata.set_override("flag", "bool:true").ok());
  EXPECT_TRUE(metadata.bool_or("flag", false).value());
}

TEST(StringArrayReader, WalksPackedStrings) {
  Value value;
  value.kind = ValueKind::kArray;
  value.element_kind = ValueKind::kString;
  value.count = 2;
  value.packed = {1, 0, 0, 0, 0, 0, 0, 0, 'x', 2, 0, 0, 0, 0, 0, 0, 0, 'y', 'z'};
  StringArrayReader reader(value);
  std::string_view text;
  ASSERT_TRUE(reader.next(&text));
  EXPECT_EQ(text, "x");
  ASSERT_TRUE(reader.next(&text));
  EXPECT_EQ(text, "yz");
  EXPECT_FALSE(reader.next(&text));
}

}  // namespace
}  // namespace ganglion::base
