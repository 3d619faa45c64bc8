#include "format/safetensors.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "format/json.h"

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;

namespace {

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDims = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 48;

struct Dtype {
  std::string_view name;
  uint32_t bytes;
  std::optional<TensorType> type;
};
constexpr Dtype kDtypes[] = {
    {"F32", 4, TensorType::kF32}, {"F16", 2, TensorType::kF16}, {"BF16", 2, TensorType::kBF16},
    {"F64", 8, std::nullopt},     {"I64", 8, std::nullopt},     {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},     {"U32", 4, std::nullopt},     {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},     {"I8", 1, std::nullopt},      {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},    {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt},
};

unsigned long long ull(uint64_t value) {
  return value;
}

Status wrong(const platform::File& file, const std::string& what) {
  return Status(Code::kModelFile, "'" + file.path() + "': " + what);
}

// One entry of the header: its data lies in [begin, end) of the `data_bytes` after the header.
Result<SafeTensor> read_entry(const platform::File& file, const std::string& name, const Json& entry,
                              uint64_t data_bytes) {
  SafeTensor tensor;
  tensor.name = name;
  const std::string subject = "tensor '" + name.substr(0, 200) + "' ";
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const Dtype& d) { return d.name == entry["dtype"].text(); });
  if (!entry["dtype"].is_string() || !entry["shape"].is_array() || !entry["data_offsets"].is_array()) {
    return wrong(file, subject + "has no dtype, shape or data_offsets in the header");
  }
  if (dtype == std::end(kDtypes)) {
    return Status(Code::kUnsupported, "'" + file.path() + "': " + subject + "has dtype '" +
                                          entry["dtype"].text().substr(0, 40) + "', which is not known");
  }
  tensor.dtype = dtype->name;
  tensor.type = dtype->type;
  tensor.elements = 1;
  for (const Json& dim : entry["shape"].items()) {
    uint64_t value = 0;
    const bool fits = dim.try_uint(kMaxElements, &value) &&
                      base::try_mul(tensor.elements, value, &tensor.elements) &&
                      tensor.elements <= kMaxElements && tensor.shape.size() < kMaxDims;
    if (!fits) return wrong(file, subject + "has a shape that cannot be");
    tensor.shape.push_back(value);
  }
  const std::vector<Json>& offsets = entry["data_offsets"].items();
  uint64_t begin = 0, end = 0;
  if (offsets.size() != 2 || !offsets[0].try_uint(UINT64_MAX, &begin) ||
      !offsets[1].try_uint(UINT64_MAX, &end) || begin > end) {
    return wrong(file, subject + "has data_offsets that are not a range");
  }
  tensor.bytes = tensor.elements * dtype->bytes;
  if (end - begin != tensor.bytes) {
    return wrong(file, subject + base::format("has shape %s of %s, which takes %llu bytes, but its offsets "
                                              "hold %llu",
                                              tensor.shape_text().c_str(), tensor.dtype.data(),
                                              ull(tensor.bytes), ull(end - begin)));
  }
  if (end > data_bytes) {
    return wrong(file, "the file is truncated: " + subject +
                           base::format("ends at byte %llu of the data, of which there are %llu - "
                                        "download it again",
                                        ull(end), ull(data_bytes)));
  }
  tensor.offset = begin;
  return tensor;
}

// The format asks for data without gaps, overlaps or bytes that belong to none.
Status check_layout(const platform::File& file, const std::vector<SafeTensor>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.offset != at) {
      return wrong(
          file,
          base::format("the data of tensor '%s' begins at byte %llu, %s at %llu", tensor.name.c_str(),
                       ull(tensor.offset),
                       tensor.offset < at ? "overlapping what ends" : "after a gap that begins", ull(at)));
    }
    at += tensor.bytes;
  }
  if (at == data_bytes) return base::ok_status();
  return wrong(file, base::format("%llu bytes at its end belong to no tensor", ull(data_bytes - at)));
}

}  // namespace

std::string SafeTensor::shape_text() const {
  std::string text = "[";
  for (const uint64_t dim : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

Result<std::vector<SafeTensor>> read_safetensors(const platform::File& file) {
  uint8_t length_bytes[8] = {};
  if (file.size() < sizeof length_bytes) {
    return wrong(file, base::format("the file is truncated: %llu bytes", ull(file.size())));
  }
  GANGLION_RETURN_IF_ERROR(file.read_exact(0, length_bytes));
  uint64_t length = 0;
  std::memcpy(&length, length_bytes, sizeof length);
  if (length > kMaxHeaderBytes) {
    return wrong(file, base::format("not a safetensors file: its header would take %llu bytes", ull(length)));
  }
  if (length > file.size() - sizeof length_bytes) {
    return wrong(file, base::format("the file is truncated: its header takes %llu bytes, the file %llu",
                                    ull(length), ull(file.size())));
  }
  std::string text(static_cast<size_t>(length), '\0');
  GANGLION_RETURN_IF_ERROR(
      file.read_exact(sizeof length_bytes, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  GANGLION_ASSIGN_OR_RETURN(const Json header, Json::parse(text, file.path()));
  if (!header.is_object()) return wrong(file, "the header is not a JSON object");
  const uint64_t data_at = sizeof length_bytes + length;
  const uint64_t data_bytes = file.size() - data_at;
  std::vector<SafeTensor> tensors;
  for (size_t i = 0; i < header.keys().size(); ++i) {
    if (header.keys()[i] == "__metadata__") continue;
    GANGLION_ASSIGN_OR_RETURN(SafeTensor tensor,
                              read_entry(file, header.keys()[i], header.items()[i], data_bytes));
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  GANGLION_RETURN_IF_ERROR(check_layout(file, tensors, data_bytes));
  for (SafeTensor& tensor : tensors) tensor.offset += data_at;
  return tensors;
}

}  // namespace ganglion::format
