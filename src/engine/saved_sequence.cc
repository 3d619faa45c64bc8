#include "engine/saved_sequence.h"

#include <fcntl.h>

#include <cstring>
#include <memory>

#include "base/units.h"
#include "format/bundle_checksum.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"

namespace ganglion::engine {

using base::Code;
using base::Result;
using base::Status;
using base::TensorType;
using format::TensorInfo;
using model::kPagePositions;
using model::KvSequence;
using model_config::ModelConfig;

namespace {

constexpr uint32_t kVersion = 1;
constexpr const char* kTokens = "tokens";
constexpr const char* kChecksums = "checksums";

std::string pages_name(size_t layer) {
  return "blk." + std::to_string(layer) + ".pages";
}

std::string type_name(kernels::KvType type) {
  return type == kernels::KvType::kF32 ? "f32" : type == kernels::KvType::kF16 ? "f16" : "q8_0";
}

std::span<const uint8_t> bytes_of(std::span<const int32_t> tokens) {
  return {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()};
}

/// Checksum of several pieces in order: of each, over the one before.
uint64_t chained(uint64_t before, std::span<const uint8_t> bytes) {
  return before * 0x9E3779B97F4A7C15u + format::bundle_checksum(bytes);
}

// What lies behind the last position of a page is somebody else's old keys and values.
void clear_unused(const model::KvLayout& layout, uint32_t used, std::vector<uint8_t>* page) {
  const auto clear = [&](size_t first, size_t row_bytes) {
    std::memset(page->data() + first + used * row_bytes, 0, (kPagePositions - used) * row_bytes);
  };
  for (uint32_t head = 0; head < layout.kv_heads; ++head) {
    clear(layout.key_offset(head, 0), layout.key_bytes);
    if (!layout.value_in_key) clear(layout.value_offset(head, 0), layout.value_bytes);
  }
}

/// A saved file's header, opened and checked against the model.
class SavedFile {
 public:
  SavedFile(std::string path, const ModelConfig& config, const KvOrigin& origin)
      : path_(std::move(path)), config_(config), origin_(origin) {}

  Status open(size_t context) {
    GANGLION_ASSIGN_OR_RETURN(platform::File file, platform::File::open(path_));
    file_ = std::make_unique<platform::File>(std::move(file));
    GANGLION_ASSIGN_OR_RETURN(format::GgufModel header, format::GgufModel::open_single(path_));
    header_ = std::make_unique<format::GgufModel>(std::move(header));
    GANGLION_RETURN_IF_ERROR(check_origin());
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* tokens, tensor(kTokens, TensorType::kI32));
    length_ = tokens->elements();
    if (length_ > context) {
      return Status(Code::kContextOverflow,
                    base::format("the %zu tokens in '%s' exceed the context of %zu - raise it with -c",
                                 length_, path_.c_str(), context));
    }
    return base::ok_status();
  }

  size_t length() const { return length_; }

  Result<std::vector<int32_t>> tokens() const {
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* info, tensor(kTokens, TensorType::kI32));
    std::vector<int32_t> tokens(length_);
    GANGLION_RETURN_IF_ERROR(file_->read_exact(
        info->offset, {reinterpret_cast<uint8_t*>(tokens.data()), tokens.size() * sizeof(int32_t)}));
    for (const int32_t token : tokens) {
      if (token < 0 || static_cast<uint32_t>(token) >= config_.vocab)
        return wrong(base::format("token %d is outside the vocabulary of %u", token, config_.vocab));
    }
    return tokens;
  }

  /// By layer, the first page that is there.
  Result<std::vector<size_t>> first_pages(const KvSequence& sequence) const {
    std::vector<size_t> first;
    const size_t end = base::ceil_div(length_, kPagePositions);
    for (size_t layer = 0; layer < config_.layers.size(); ++layer) {
      GANGLION_ASSIGN_OR_RETURN(const TensorInfo* info, tensor(pages_name(layer), TensorType::kI8));
      const size_t page_bytes = model::kv_layout(config_, config_.layers[layer], origin_.type).page_bytes;
      const size_t count = info->dims[1];
      if (info->dims[0] != page_bytes || info->elements() != page_bytes * count || count > end ||
          end - count > sequence.last_first_page(layer, length_)) {
        return wrong("tensor '" + info->name + "' has the shape " + info->shape() + ", which does not fit");
      }
      first.push_back(end - count);
    }
    return first;
  }

  Status read_pages(std::span<const int32_t> tokens, KvSequence* sequence) const {
    const size_t layers = config_.layers.size();
    GANGLION_ASSIGN_OR_RETURN(const TensorInfo* sums, tensor(kChecksums, TensorType::kI64));
    if (sums->elements() != layers + 1) return wrong("checksums are missing");
    std::vector<uint64_t> expected(layers + 1);
    GANGLION_RETURN_IF_ERROR(file_->read_exact(
        sums->offset, {reinterpret_cast<uint8_t*>(expected.data()), expected.size() * sizeof(uint64_t)}));
    if (chained(0, bytes_of(tokens)) != expected[layers]) return wrong("the tokens are damaged");
    for (size_t layer = 0; layer < layers; ++layer) {
      GANGLION_ASSIGN_OR_RETURN(const TensorInfo* info, tensor(pages_name(layer), TensorType::kI8));
      const size_t bytes = info->dims[0];
      uint64_t sum = 0;
      uint64_t at = info->offset;
      for (size_t page = sequence->first_page(layer); page * kPagePositions < length_; ++page, at += bytes) {
        const std::span<uint8_t> memory(sequence->page(layer, page * kPagePositions), bytes);
        GANGLION_RETURN_IF_ERROR(file_->read_exact(at, memory));
        sum = chained(sum, memory);
      }
      ::posix_fadvise(file_->fd(), static_cast<off_t>(info->offset), static_cast<off_t>(info->bytes),
                      POSIX_FADV_DONTNEED);
      if (sum != expected[layer])
        return wrong(base::format("keys and values of layer %zu are damaged", layer));
    }
    return base::ok_status();
  }

 private:
  Status wrong(const std::string& what) const {
    return Status(Code::kModelFile, "'" + path_ + "': " + what + " - save it again");
  }

  Status check_origin() const {
    const base::Metadata& keys = header_->metadata();
    if (!keys.has("ganglion.kv.version"))
      return Status(Code::kModelFile, "'" + path_ + "' holds no saved keys and values");
    GANGLION_ASSIGN_OR_RETURN(const uint64_t version, keys.uint_required("ganglion.kv.version"));
    GANGLION_ASSIGN_OR_RETURN(const std::string model, keys.string_required("ganglion.kv.model"));
    GANGLION_ASSIGN_OR_RETURN(const std::string name, keys.string_required("ganglion.kv.model_name"));
    GANGLION_ASSIGN_OR_RETURN(const std::string type, keys.string_required("ganglion.kv.type"));
    GANGLION_ASSIGN_OR_RETURN(const bool sparse, keys.bool_or("ganglion.kv.sparse", false));
    if (version != kVersion) {
      return Status(Code::kUnsupported,
                    base::format("'%s' has version %llu, this program reads %u", path_.c_str(),
                                 static_cast<unsigned long long>(version), kVersion));
    }
    const auto other = [&](const std::string& what) {
      return Status(Code::kInvalidArgument, "'" + path_ + "' was saved " + what);
    };
    if (model != origin_.model)
      return other("with another model (" + (name.empty() ? "without a name" : name) + ")");
    if (type != type_name(origin_.type))
      return other("with --kv-type " + type + ", not " + type_name(origin_.type));
    if (sparse != origin_.sparse) return other(sparse ? "without --exact" : "with --exact");
    return base::ok_status();
  }

  Result<const TensorInfo*> tensor(const std::string& name, TensorType type) const {
    const TensorInfo* found = header_->find_tensor(name);
    if (found == nullptr || found->type != type) return wrong("tensor '" + name + "' is missing");
    return found;
  }

  const std::string path_;
  const ModelConfig& config_;
  const KvOrigin& origin_;
  std::unique_ptr<format::GgufModel> header_;
  std::unique_ptr<platform::File> file_;
  size_t length_ = 0;
};

}  // namespace

Result<uint64_t> save_sequence(const std::string& path, const ModelConfig& config, const KvOrigin& origin,
                               const KvSequence& sequence, std::span<const int32_t> tokens,
                               uint64_t most_bytes) {
  GANGLION_CHECK(!tokens.empty() && tokens.size() == sequence.length());
  const size_t end = base::ceil_div(tokens.size(), kPagePositions);
  format::GgufWriter writer(path);
  writer.add_string("general.architecture", "kv");
  writer.add_string("general.type", "kv");
  writer.add_uint("ganglion.kv.version", kVersion);
  writer.add_string("ganglion.kv.model", origin.model);
  writer.add_string("ganglion.kv.model_name", origin.model_name);
  writer.add_string("ganglion.kv.type", type_name(origin.type));
  writer.add_bool("ganglion.kv.sparse", origin.sparse);
  writer.add_tensor(kTokens, TensorType::kI32, {tokens.size()});
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const model::KvLayout layout = model::kv_layout(config, config.layers[layer], origin.type);
    writer.add_tensor(pages_name(layer), TensorType::kI8,
                      {layout.page_bytes, end - sequence.first_page(layer)});
  }
  writer.add_tensor(kChecksums, TensorType::kI64, {config.layers.size() + 1});
  if (writer.data_bytes() > most_bytes) {
    return Status(Code::kResources,
                  base::format("keys and values of %zu tokens take %s, of which %s are left", tokens.size(),
                               base::format_bytes(writer.data_bytes()).c_str(),
                               base::format_bytes(most_bytes).c_str()));
  }
  GANGLION_RETURN_IF_ERROR(writer.begin_data());
  GANGLION_RETURN_IF_ERROR(writer.write(bytes_of(tokens)));
  std::vector<uint64_t> sums;
  std::vector<uint8_t> page;
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const model::KvLayout layout = model::kv_layout(config, config.layers[layer], origin.type);
    uint64_t sum = 0;
    for (size_t i = sequence.first_page(layer); i < end; ++i) {
      const uint8_t* data = sequence.page(layer, i * kPagePositions);
      page.assign(data, data + layout.page_bytes);
      const size_t used = std::min<size_t>(kPagePositions, tokens.size() - i * kPagePositions);
      clear_unused(layout, static_cast<uint32_t>(used), &page);
      sum = chained(sum, page);
      GANGLION_RETURN_IF_ERROR(writer.write(page));
    }
    sums.push_back(sum);
  }
  sums.push_back(chained(0, bytes_of(tokens)));
  GANGLION_RETURN_IF_ERROR(
      writer.write({reinterpret_cast<const uint8_t*>(sums.data()), sums.size() * sizeof(uint64_t)}));
  GANGLION_RETURN_IF_ERROR(writer.finish());
  GANGLION_ASSIGN_OR_RETURN(const platform::File file, platform::File::open(path));
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  return file.size();
}

Result<std::vector<int32_t>> restore_sequence(const std::string& path, const ModelConfig& config,
                                              const KvOrigin& origin, size_t context,
                                              const std::function<Status(size_t)>& make_room,
                                              KvSequence* sequence) {
  SavedFile saved(path, config, origin);
  GANGLION_RETURN_IF_ERROR(saved.open(context));
  GANGLION_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, saved.tokens());
  GANGLION_ASSIGN_OR_RETURN(const std::vector<size_t> first, saved.first_pages(*sequence));
  size_t pages = 0;
  for (const size_t page : first) pages += base::ceil_div(saved.length(), kPagePositions) - page;
  sequence->clear();
  GANGLION_RETURN_IF_ERROR(make_room(pages));
  GANGLION_RETURN_IF_ERROR(sequence->restore(saved.length(), first));
  const Status status = saved.read_pages(tokens, sequence);
  if (status.ok()) return tokens;
  sequence->clear();
  return status;
}

}  // namespace ganglion::engine
