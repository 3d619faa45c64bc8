// Writes a GGUF file front to back: header first, then each tensor's data in the order in which they were
// declared. Used by tools and by pack; holds no tensor data.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/metadata.h"
#include "base/status.h"
#include "base/tensor_type.h"
#include "platform/file.h"

namespace ganglion::format {

/// The file appears under its name only when finish() succeeds; until then it is "<path>.part".
class GgufWriter {
 public:
  explicit GgufWriter(std::string path, uint64_t alignment = 32)
      : path_(std::move(path)), alignment_(alignment) {}
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Metadata, before begin_data().
  void add_uint(const std::string& key, uint32_t value);
  void add_float(const std::string& key, float value);
  void add_bool(const std::string& key, bool value);
  void add_string(const std::string& key, const std::string& value);
  void add_strings(const std::string& key, const std::vector<std::string>& values);
  void add_floats(const std::string& key, const std::vector<float>& values);
  void add_ints(const std::string& key, const std::vector<int32_t>& values);
  /// A value as a header held it; integers get the smallest of 32 and 64 bits that holds them.
  void add_value(const std::string& key, const base::Value& value);

  /// Declares a tensor; dims[0] is the row length.
  void add_tensor(const std::string& name, base::TensorType type, const std::vector<uint64_t>& dims);

  /// Bytes of all data that will be written.
  uint64_t data_bytes() const { return data_bytes_; }

  /// Creates the file and writes the header. Errors: kIo.
  base::Status begin_data();
  /// The next bytes of the tensors' data, in order, without the padding between tensors. Errors: kIo.
  base::Status write(std::span<const uint8_t> bytes);
  /// Requires: all data written, which stands in part_path() then. Errors: kIo.
  base::Status flush();
  std::string part_path() const { return path_ + ".part"; }
  /// After flush(): replaces a whole tensor, or the value of add_float(). Errors: kIo.
  base::Status overwrite_tensor(const std::string& name, std::span<const uint8_t> bytes);
  base::Status overwrite_float(const std::string& key, float value);
  /// Requires: all data written. Renames the file to its name. Errors: kIo.
  base::Status finish();

 private:
  struct Tensor {
    std::string name;
    base::TensorType type;
    std::vector<uint64_t> dims;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  void put(const void* bytes, size_t count);
  void put_key(const std::string& key, uint32_t kind);
  void put_string(const std::string& text);
  void put_array(const std::string& key, uint32_t kind, uint64_t count);
  base::Status raw_write(const void* bytes, size_t count);
  base::Status raw_overwrite(uint64_t offset, const void* bytes, size_t count);

  std::string path_;
  uint64_t alignment_;
  std::string metadata_;  // the header's bytes so far
  uint64_t key_count_ = 0;
  std::map<std::string, uint64_t> float_at_;  // where values stand among the keys
  uint64_t data_at_ = 0;                      // of the first tensor in the file
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;
  std::FILE* file_ = nullptr;
  size_t current_ = 0;         // tensor being written
  uint64_t current_done_ = 0;  // its bytes written
};

/// Whether a file may be written there: not onto what it is made of (`inputs`, where "" is none, and
/// `files`), nor in place of a device or pipe. Errors: kInvalidArgument.
base::Status check_output(const std::string& path, const std::vector<std::string>& inputs,
                          std::span<const platform::File> files = {});

}  // namespace ganglion::format
