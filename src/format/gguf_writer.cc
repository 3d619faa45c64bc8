#include "format/gguf_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/units.h"

namespace ganglion::format {

using base::Code;
using base::Status;

namespace {
// Numbers of value kinds in the file.
constexpr uint32_t kUint32 = 4;
constexpr uint32_t kInt32 = 5;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint32_t kUint64 = 10;
constexpr uint32_t kInt64 = 11;
constexpr uint32_t kFloat64 = 12;
constexpr uint64_t kFixedHeader = 24;  // Before the keys.

Status system_error(const char* what, const std::string& path) {
  const std::string hint = errno == ENOSPC || errno == EDQUOT ? " - make room, or write elsewhere" : "";
  return Status(Code::kIo, std::string(what) + " '" + path + "': " + std::strerror(errno) + hint);
}
}  // namespace

Status check_output(const std::string& path, const std::vector<std::string>& inputs,
                    std::span<const platform::File> files) {
  std::error_code error;
  std::vector<std::string> all = inputs;
  for (const platform::File& file : files) all.push_back(file.path());
  for (const std::string& input : all) {
    if (std::filesystem::equivalent(path, input, error))
      return Status(Code::kInvalidArgument, "the output would overwrite '" + input + "'");
  }
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (!std::filesystem::exists(there) || std::filesystem::is_regular_file(there) ||
      std::filesystem::is_directory(there)) {  // What a directory is refused with says more.
    return base::ok_status();
  }
  return Status(Code::kInvalidArgument, "'" + path + "' is no regular file: nothing is written there");
}

GgufWriter::~GgufWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(part_path().c_str());
}

void GgufWriter::put(const void* bytes, size_t count) {
  metadata_.append(static_cast<const char*>(bytes), count);
}

void GgufWriter::put_string(const std::string& text) {
  const uint64_t length = text.size();
  put(&length, sizeof length);
  put(text.data(), text.size());
}

void GgufWriter::put_key(const std::string& key, uint32_t kind) {
  put_string(key);
  put(&kind, sizeof kind);
  ++key_count_;
}

void GgufWriter::put_array(const std::string& key, uint32_t kind, uint64_t count) {
  put_key(key, kArray);
  put(&kind, sizeof kind);
  put(&count, sizeof count);
}

void GgufWriter::add_uint(const std::string& key, uint32_t value) {
  put_key(key, kUint32);
  put(&value, sizeof value);
}

void GgufWriter::add_float(const std::string& key, float value) {
  put_key(key, kFloat32);
  float_at_[key] = metadata_.size();
  put(&value, sizeof value);
}

void GgufWriter::add_bool(const std::string& key, bool value) {
  put_key(key, kBool);
  const uint8_t byte = value ? 1 : 0;
  put(&byte, 1);
}

void GgufWriter::add_string(const std::string& key, const std::string& value) {
  put_key(key, kString);
  put_string(value);
}

void GgufWriter::add_strings(const std::string& key, const std::vector<std::string>& values) {
  put_array(key, kString, values.size());
  for (const std::string& value : values) put_string(value);
}

void GgufWriter::add_floats(const std::string& key, const std::vector<float>& values) {
  put_array(key, kFloat32, values.size());
  put(values.data(), values.size() * sizeof(float));
}

void GgufWriter::add_ints(const std::string& key, const std::vector<int32_t>& values) {
  put_array(key, kInt32, values.size());
  put(values.data(), values.size() * sizeof(int32_t));
}

void GgufWriter::add_value(const std::string& key, const base::Value& value) {
  using base::ValueKind;
  switch (value.kind) {
    case ValueKind::kUint:
      if (value.uint_value <= UINT32_MAX) return add_uint(key, static_cast<uint32_t>(value.uint_value));
      put_key(key, kUint64);
      return put(&value.uint_value, sizeof value.uint_value);
    case ValueKind::kInt: {
      const auto narrow = static_cast<int32_t>(value.int_value);
      const bool fits = narrow == value.int_value;
      put_key(key, fits ? kInt32 : kInt64);
      return fits ? put(&narrow, sizeof narrow) : put(&value.int_value, sizeof value.int_value);
    }
    case ValueKind::kFloat:
      return add_float(key, static_cast<float>(value.float_value));
    case ValueKind::kBool:
      return add_bool(key, value.bool_value);
    case ValueKind::kString:
      return add_string(key, value.text);
    case ValueKind::kArray:
      break;
  }
  // Packed arrays have the file's own form.
  const auto kind = [&]() -> uint32_t {
    const uint32_t wide = value.element_bytes == 1   ? 0
                          : value.element_bytes == 2 ? 1
                          : value.element_bytes == 4 ? 2
                                                     : 3;
    constexpr uint32_t kUnsigned[] = {0, 2, kUint32, kUint64};
    constexpr uint32_t kSigned[] = {1, 3, kInt32, kInt64};
    switch (value.element_kind) {
      case ValueKind::kUint:
        return kUnsigned[wide];
      case ValueKind::kInt:
        return kSigned[wide];
      case ValueKind::kFloat:
        return value.element_bytes == 8 ? kFloat64 : kFloat32;
      case ValueKind::kBool:
        return kBool;
      default:
        return kString;
    }
  };
  put_array(key, kind(), value.count);
  put(value.packed.data(), value.packed.size());
}

void GgufWriter::add_tensor(const std::string& name, base::TensorType type,
                            const std::vector<uint64_t>& dims) {
  Tensor tensor{name, type, dims, data_bytes_, base::row_bytes(type, dims[0])};
  for (size_t i = 1; i < dims.size(); ++i) tensor.bytes *= dims[i];
  data_bytes_ = base::round_up(data_bytes_ + tensor.bytes, alignment_);
  tensors_.push_back(std::move(tensor));
}

Status GgufWriter::raw_write(const void* bytes, size_t count) {
  if (count == 0 || std::fwrite(bytes, 1, count, file_) == count) return base::ok_status();
  return system_error("cannot write", part_path());
}

Status GgufWriter::begin_data() {
  GANGLION_RETURN_IF_ERROR(check_output(path_, {}));
  if (alignment_ != 32) add_uint("general.alignment", static_cast<uint32_t>(alignment_));
  const std::string part = part_path();
  file_ = std::fopen(part.c_str(), "wb");
  if (file_ == nullptr) return system_error("cannot create", part);
  std::string keys;
  std::swap(keys, metadata_);
  const uint32_t version = 3;
  const uint64_t tensor_count = tensors_.size();
  put("GGUF", 4);
  put(&version, sizeof version);
  put(&tensor_count, sizeof tensor_count);
  put(&key_count_, sizeof key_count_);
  put(keys.data(), keys.size());
  for (const Tensor& tensor : tensors_) {
    put_string(tensor.name);
    const auto dim_count = static_cast<uint32_t>(tensor.dims.size());
    put(&dim_count, sizeof dim_count);
    put(tensor.dims.data(), tensor.dims.size() * sizeof(uint64_t));
    put(&tensor.type, sizeof(uint32_t));
    put(&tensor.offset, sizeof tensor.offset);
  }
  metadata_.resize(base::round_up(metadata_.size(), alignment_), '\0');
  data_at_ = metadata_.size();
  const Status status = raw_write(metadata_.data(), metadata_.size());
  std::string().swap(metadata_);
  return status;
}

Status GgufWriter::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    GANGLION_CHECK(current_ < tensors_.size());
    const Tensor& tensor = tensors_[current_];
    const auto step = static_cast<size_t>(std::min<uint64_t>(bytes.size(), tensor.bytes - current_done_));
    GANGLION_RETURN_IF_ERROR(raw_write(bytes.data(), step));
    bytes = bytes.subspan(step);
    current_done_ += step;
    if (current_done_ < tensor.bytes) continue;
    const std::vector<uint8_t> padding(base::round_up(tensor.bytes, alignment_) - tensor.bytes, 0);
    GANGLION_RETURN_IF_ERROR(raw_write(padding.data(), padding.size()));
    ++current_;
    current_done_ = 0;
  }
  return base::ok_status();
}

Status GgufWriter::flush() {
  GANGLION_CHECK(current_ == tensors_.size());
  return std::fflush(file_) == 0 ? base::ok_status() : system_error("cannot write", part_path());
}

Status GgufWriter::raw_overwrite(uint64_t offset, const void* bytes, size_t count) {
  if (::fseeko(file_, static_cast<off_t>(offset), SEEK_SET) != 0)
    return system_error("cannot write", part_path());
  GANGLION_RETURN_IF_ERROR(raw_write(bytes, count));
  return flush();
}

Status GgufWriter::overwrite_tensor(const std::string& name, std::span<const uint8_t> bytes) {
  const auto tensor =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  GANGLION_CHECK(tensor != tensors_.end() && tensor->bytes == bytes.size());
  return raw_overwrite(data_at_ + tensor->offset, bytes.data(), bytes.size());
}

Status GgufWriter::overwrite_float(const std::string& key, float value) {
  const auto at = float_at_.find(key);
  GANGLION_CHECK(at != float_at_.end());
  return raw_overwrite(kFixedHeader + at->second, &value, sizeof value);
}

Status GgufWriter::finish() {
  GANGLION_CHECK(current_ == tensors_.size());
  const std::string part = part_path();
  const bool flushed = std::fflush(file_) == 0 && ::fsync(::fileno(file_)) == 0;
  const int error = errno;
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!flushed) errno = error;
  if (flushed && closed && std::rename(part.c_str(), path_.c_str()) == 0) return base::ok_status();
  const Status status = system_error("cannot write", path_);
  ::unlink(part.c_str());
  return status;
}

}  // namespace ganglion::format
