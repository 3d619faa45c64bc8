// For tests only: the metadata of a GGUF v3 file, read without format/, which is a room above this one.
// Trusts the file.
#pragma once

#include <cstring>
#include <fstream>
#include <string>

#include "base/metadata.h"

namespace ganglion::tokenizer {

class GgufMetadataReaderForTest {
 public:
  explicit GgufMetadataReaderForTest(const std::string& path) : file_(path, std::ios::binary) {}

  base::Metadata read() {
    base::Metadata metadata;
    if (take<uint32_t>() != 0x46554747U || take<uint32_t>() != 3) return metadata;
    take<uint64_t>();  // Tensors.
    const auto key_count = take<uint64_t>();
    for (uint64_t i = 0; i < key_count && file_; ++i) {
      std::string key = text();
      metadata.set(std::move(key), value(take<uint32_t>()));
    }
    return metadata;
  }

 private:
  template <typename T>
  T take() {
    T out{};
    file_.read(reinterpret_cast<char*>(&out), sizeof(T));
    return out;
  }

  std::string text() {
    std::string out(take<uint64_t>(), '\0');
    file_.read(out.data(), static_cast<std::streamsize>(out.size()));
    return out;
  }

  static base::ValueKind kind_of(uint32_t type) {
    if (type == 6 || type == 12) return base::ValueKind::kFloat;
    if (type == 7) return base::ValueKind::kBool;
    if (type == 8) return base::ValueKind::kString;
    return type == 1 || type == 3 || type == 5 || type == 11 ? base::ValueKind::kInt : base::ValueKind::kUint;
  }

  static uint8_t size_of(uint32_t type) {
    constexpr uint8_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kSizes[type];
  }

  base::Value value(uint32_t type) {
    base::Value out;
    if (type == 9) return array();
    out.kind = kind_of(type);
    if (out.kind == base::ValueKind::kString) {
      out.text = text();
      return out;
    }
    uint64_t raw = 0;
    file_.read(reinterpret_cast<char*>(&raw), size_of(type));
    const unsigned shift = 64 - 8U * size_of(type);
    out.uint_value = raw;
    out.int_value = static_cast<int64_t>(raw << shift) >> shift;
    out.bool_value = raw != 0;
    if (type == 6) {
      float narrow;
      std::memcpy(&narrow, &raw, sizeof(narrow));
      out.float_value = static_cast<double>(narrow);
    } else if (type == 12) {
      std::memcpy(&out.float_value, &raw, sizeof(raw));
    }
    return out;
  }

  base::Value array() {
    base::Value out;
    const auto type = take<uint32_t>();
    out.kind = base::ValueKind::kArray;
    out.element_kind = kind_of(type);
    out.element_bytes = size_of(type);
    out.count = take<uint64_t>();
    if (out.element_kind != base::ValueKind::kString) {
      out.packed.resize(out.count * out.element_bytes);
      file_.read(reinterpret_cast<char*>(out.packed.data()), static_cast<std::streamsize>(out.packed.size()));
      return out;
    }
    for (uint64_t i = 0; i < out.count; ++i) {
      const std::string item = text();
      const uint64_t size = item.size();
      const auto* begin = reinterpret_cast<const uint8_t*>(&size);
      out.packed.insert(out.packed.end(), begin, begin + sizeof(size));
      out.packed.insert(out.packed.end(), item.begin(), item.end());
    }
    return out;
  }

  std::ifstream file_;
};

inline base::Metadata read_gguf_metadata_for_test(const std::string& path) {
  return GgufMetadataReaderForTest(path).read();
}

}  // namespace ganglion::tokenizer
