#include "format/gguf.h"

#include <algorithm>
#include <cstdio>

#include "base/units.h"
#include "format/header_reader.h"

namespace ganglion::format {

using base::Code;
using base::Metadata;
using base::Result;
using base::Status;
using base::Value;
using base::ValueKind;
using platform::File;

namespace {

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxStringBytes = 64 * base::kMiB;
constexpr uint64_t kMaxTensorNameBytes = 1024;
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;  // length, one letter, kind, smallest value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint32_t kArrayKind = 9;

struct KindInfo {
  ValueKind kind;
  uint8_t bytes;
};
// By the number of a value's kind in the file.
constexpr KindInfo kKinds[] = {
    {ValueKind::kUint, 1},   {ValueKind::kInt, 1},   {ValueKind::kUint, 2},  {ValueKind::kInt, 2},
    {ValueKind::kUint, 4},   {ValueKind::kInt, 4},   {ValueKind::kFloat, 4}, {ValueKind::kBool, 1},
    {ValueKind::kString, 0}, {ValueKind::kArray, 0}, {ValueKind::kUint, 8},  {ValueKind::kInt, 8},
    {ValueKind::kFloat, 8},
};

Status read_scalar(HeaderReader& in, const KindInfo& kind, const char* what, Value* value) {
  uint8_t raw[8] = {};
  GANGLION_RETURN_IF_ERROR(in.read_bytes(raw, kind.bytes, what));
  uint64_t bits = 0;
  std::memcpy(&bits, raw, 8);
  value->kind = kind.kind;
  value->uint_value = bits;
  const unsigned shift = 64 - 8U * kind.bytes;
  value->int_value = static_cast<int64_t>(bits << shift) >> shift;
  value->bool_value = bits != 0;
  if (kind.kind == ValueKind::kFloat && kind.bytes == 4) {
    float f;
    std::memcpy(&f, raw, 4);
    value->float_value = static_cast<double>(f);
  } else if (kind.kind == ValueKind::kFloat) {
    std::memcpy(&value->float_value, raw, 8);
  }
  return base::ok_status();
}

Status read_array(HeaderReader& in, const std::string& key, Value* value) {
  const std::string what = "array '" + key + "'";
  GANGLION_ASSIGN_OR_RETURN(const uint32_t element, in.read<uint32_t>(what.c_str()));
  if (element >= std::size(kKinds) || element == kArrayKind) {
    return in.error(
        base::format("%s has elements of type %u, which is not a GGUF element type", what.c_str(), element));
  }
  GANGLION_ASSIGN_OR_RETURN(value->count, in.read<uint64_t>(what.c_str()));
  value->kind = ValueKind::kArray;
  value->element_kind = kKinds[element].kind;
  value->element_bytes = kKinds[element].bytes;
  const uint64_t least = value->element_kind == ValueKind::kString ? 8 : value->element_bytes;
  if (value->count > in.remaining() / least) {
    return in.error(base::format("%s claims %llu elements, beyond the end of the file", what.c_str(),
                                 static_cast<unsigned long long>(value->count)));
  }
  if (value->element_kind != ValueKind::kString) {
    return in.append_bytes(value->count * value->element_bytes, what.c_str(), &value->packed);
  }
  for (uint64_t i = 0; i < value->count; ++i) {
    GANGLION_ASSIGN_OR_RETURN(const uint64_t length, in.read<uint64_t>(what.c_str()));
    const auto* bytes = reinterpret_cast<const uint8_t*>(&length);
    value->packed.insert(value->packed.end(), bytes, bytes + 8);
    GANGLION_RETURN_IF_ERROR(in.append_bytes(length, what.c_str(), &value->packed));
  }
  value->packed.shrink_to_fit();
  return base::ok_status();
}

Status read_key_value(HeaderReader& in, Metadata* metadata) {
  GANGLION_ASSIGN_OR_RETURN(std::string key, in.read_string("a metadata key", kMaxKeyBytes));
  if (key.empty()) return in.error("a metadata key is empty");
  if (metadata->has(key)) return in.error("metadata key '" + key + "' occurs twice");
  GANGLION_ASSIGN_OR_RETURN(const uint32_t kind, in.read<uint32_t>("a value's type"));
  if (kind >= std::size(kKinds)) {
    return in.error(base::format("metadata key '%s' has value type %u, expected 0 to 12", key.c_str(), kind));
  }
  Value value;
  if (kind == kArrayKind) {
    GANGLION_RETURN_IF_ERROR(read_array(in, key, &value));
  } else if (kKinds[kind].kind == ValueKind::kString) {
    value.kind = ValueKind::kString;
    GANGLION_ASSIGN_OR_RETURN(value.text,
                              in.read_string(("the value of '" + key + "'").c_str(), kMaxStringBytes));
  } else {
    GANGLION_RETURN_IF_ERROR(read_scalar(in, kKinds[kind], key.c_str(), &value));
  }
  metadata->set(std::move(key), std::move(value));
  return base::ok_status();
}

// One entry of the tensor list; `offset` still counts from the data section.
Result<TensorInfo> read_tensor_info(HeaderReader& in) {
  TensorInfo tensor;
  GANGLION_ASSIGN_OR_RETURN(tensor.name, in.read_string("a tensor name", kMaxTensorNameBytes));
  const char* name = tensor.name.c_str();
  GANGLION_ASSIGN_OR_RETURN(tensor.dim_count, in.read<uint32_t>("a tensor's dimensions"));
  if (tensor.dim_count < 1 || tensor.dim_count > 4) {
    return in.error(base::format("tensor '%s' has %u dimensions, expected 1 to 4", name, tensor.dim_count));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < tensor.dim_count; ++i) {
    GANGLION_ASSIGN_OR_RETURN(tensor.dims[i], in.read<uint64_t>("a tensor's dimensions"));
    if (tensor.dims[i] == 0) return in.error(base::format("tensor '%s' has a dimension of size 0", name));
    if (!base::try_mul(elements, tensor.dims[i], &elements) || elements > (1ULL << 62)) {
      return in.error(base::format("the size of tensor '%s' overflows", name));
    }
  }
  GANGLION_ASSIGN_OR_RETURN(const uint32_t type, in.read<uint32_t>("a tensor's type"));
  GANGLION_ASSIGN_OR_RETURN(tensor.offset, in.read<uint64_t>("a tensor's offset"));
  const base::TensorTypeInfo* info = base::find_tensor_type(type);
  if (info == nullptr) {
    return Status(
        Code::kUnsupported,
        in.error(base::format("tensor '%s' has type number %u, which is not supported - a newer or a "
                              "private quantisation?",
                              name, type))
            .message());
  }
  tensor.type = info->type;
  if (tensor.dims[0] % info->block_elems != 0) {
    return in.error(
        base::format("tensor '%s' of type %s has rows of %llu elements, expected a multiple of %u", name,
                     info->name.data(), static_cast<unsigned long long>(tensor.dims[0]), info->block_elems));
  }
  if (!base::try_mul(elements / info->block_elems, info->block_bytes, &tensor.bytes)) {
    return in.error(base::format("the size of tensor '%s' overflows", name));
  }
  return tensor;
}

Result<uint64_t> read_alignment(const HeaderReader& in, const Metadata& metadata) {
  const Result<uint64_t> alignment = metadata.uint_or("general.alignment", 32);
  if (!alignment.ok()) return in.error(alignment.status().message());
  const uint64_t value = alignment.value();
  if (value == 0 || value > base::kMiB || (value & (value - 1)) != 0) {
    return in.error(base::format("general.alignment is %llu, expected a power of two up to 1 MiB",
                                 static_cast<unsigned long long>(value)));
  }
  return value;
}

struct Prologue {
  bool powerinfer = false;
  uint32_t version = 0;
  uint64_t tensor_count = 0;
  uint64_t key_value_count = 0;
};

Result<Prologue> read_prologue(HeaderReader& in) {
  Prologue prologue;
  char magic[4] = {};
  if (in.remaining() < 4) return in.error("not a GGUF file: it is too short for the magic 'GGUF'");
  GANGLION_RETURN_IF_ERROR(in.read_bytes(magic, 4, "the magic"));
  prologue.powerinfer = std::memcmp(magic, "PWRI", 4) == 0;
  if (std::memcmp(magic, "GGUF", 4) != 0 && !prologue.powerinfer) {
    return in.error("not a GGUF file: it does not start with the magic 'GGUF'");
  }
  GANGLION_ASSIGN_OR_RETURN(prologue.version, in.read<uint32_t>("the version"));
  if (prologue.version != 2 && prologue.version != 3) {
    const bool swapped = (prologue.version & 0xffffff) == 0 && prologue.version != 0;
    return Status(Code::kUnsupported,
                  in.error(swapped ? std::string("the file is big-endian, expected little-endian")
                                   : base::format("GGUF version %u, expected 2 or 3", prologue.version))
                      .message());
  }
  GANGLION_ASSIGN_OR_RETURN(prologue.tensor_count, in.read<uint64_t>("the tensor count"));
  GANGLION_ASSIGN_OR_RETURN(prologue.key_value_count, in.read<uint64_t>("the metadata count"));
  if (prologue.key_value_count > in.remaining() / kMinKeyValueBytes ||
      prologue.tensor_count > in.remaining() / kMinTensorBytes) {
    return in.error(
        base::format("the header claims %llu metadata keys and %llu tensors, more than the file can hold",
                     static_cast<unsigned long long>(prologue.key_value_count),
                     static_cast<unsigned long long>(prologue.tensor_count)));
  }
  return prologue;
}

}  // namespace

std::string TensorInfo::shape() const {
  std::string out = "[";
  for (uint32_t i = 0; i < dim_count; ++i) out += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

Status GgufModel::add_shard(const std::string& path, bool keep_metadata, Metadata* metadata) {
  auto opened = File::open(path);
  if (!opened.ok()) return Status(Code::kModelFile, opened.status().message());
  const File file = opened.take();
  HeaderReader in(file);
  GANGLION_ASSIGN_OR_RETURN(const Prologue prologue, read_prologue(in));
  for (uint64_t i = 0; i < prologue.key_value_count; ++i)
    GANGLION_RETURN_IF_ERROR(read_key_value(in, metadata));
  const size_t first = tensors_.size();
  for (uint64_t i = 0; i < prologue.tensor_count; ++i) {
    GANGLION_ASSIGN_OR_RETURN(TensorInfo tensor, read_tensor_info(in));
    tensor.shard = static_cast<uint32_t>(shards_.size());
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
      return in.error("tensor '" + tensor.name + "' occurs twice");
    }
    tensors_.push_back(std::move(tensor));
  }
  GANGLION_ASSIGN_OR_RETURN(const uint64_t alignment, read_alignment(in, *metadata));
  const uint64_t data_offset = base::round_up(in.position(), alignment);
  for (size_t i = first; i < tensors_.size(); ++i) {
    TensorInfo& tensor = tensors_[i];
    const uint64_t data_bytes = file.size() - std::min(file.size(), data_offset);
    if (tensor.offset % alignment != 0) {
      return in.error(base::format("tensor '%s' starts at offset %llu, not a multiple of the alignment %llu",
                                   tensor.name.c_str(), static_cast<unsigned long long>(tensor.offset),
                                   static_cast<unsigned long long>(alignment)));
    }
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      return in.error(base::format(
          "tensor '%s' (%s %s, %llu bytes at offset %llu) reaches beyond the end of the file, which holds "
          "%llu bytes of "
          "data - the file is truncated, fetch it again",
          tensor.name.c_str(), base::tensor_type_info(tensor.type).name.data(), tensor.shape().c_str(),
          static_cast<unsigned long long>(tensor.bytes), static_cast<unsigned long long>(tensor.offset),
          static_cast<unsigned long long>(data_bytes)));
    }
    tensor.offset += data_offset;
  }
  shards_.push_back(
      {path, file.size(), data_offset, prologue.version, tensors_.size() - first, prologue.powerinfer});
  if (keep_metadata) metadata_ = std::move(*metadata);
  return base::ok_status();
}

Result<GgufModel> GgufModel::open(const std::string& path) {
  GANGLION_ASSIGN_OR_RETURN(const std::vector<std::string> paths, resolve_model_files(path));
  GgufModel model;
  Metadata first;
  GANGLION_RETURN_IF_ERROR(model.add_shard(paths[0], true, &first));
  GANGLION_ASSIGN_OR_RETURN(const uint64_t count, model.metadata_.uint_or("split.count", 1));
  GANGLION_ASSIGN_OR_RETURN(const uint64_t number, model.metadata_.uint_or("split.no", 0));
  if (count > 1 && paths.size() == 1) {
    return Status(
        Code::kModelFile,
        base::format("'%s' is part %llu of %llu of a split model, but its name does not end in "
                     "-%05llu-of-%05llu.gguf - give the parts their original names",
                     paths[0].c_str(), static_cast<unsigned long long>(number + 1),
                     static_cast<unsigned long long>(count), static_cast<unsigned long long>(number + 1),
                     static_cast<unsigned long long>(count)));
  }
  if (paths.size() == 1) return model;
  for (size_t i = 0; i < paths.size(); ++i) {
    Metadata own;
    if (i > 0) GANGLION_RETURN_IF_ERROR(model.add_shard(paths[i], false, &own));
    const Metadata& metadata = i == 0 ? model.metadata_ : own;
    GANGLION_ASSIGN_OR_RETURN(const uint64_t shard_count, metadata.uint_required("split.count"));
    GANGLION_ASSIGN_OR_RETURN(const uint64_t shard_number, metadata.uint_required("split.no"));
    if (shard_count != paths.size() || shard_number != i) {
      return Status(
          Code::kModelFile,
          base::format(
              "'%s' says it is part %llu of %llu, its name says %zu of %zu - the parts do not belong "
              "together",
              paths[i].c_str(), static_cast<unsigned long long>(shard_number + 1),
              static_cast<unsigned long long>(shard_count), i + 1, paths.size()));
    }
  }
  GANGLION_ASSIGN_OR_RETURN(const uint64_t total,
                            model.metadata_.uint_or("split.tensors.count", model.tensors_.size()));
  if (total != model.tensors_.size()) {
    return Status(Code::kModelFile,
                  base::format("the parts of '%s' hold %zu tensors, expected %llu", path.c_str(),
                               model.tensors_.size(), static_cast<unsigned long long>(total)));
  }
  return model;
}

Result<GgufModel> GgufModel::open_single(const std::string& file_path) {
  GgufModel model;
  Metadata metadata;
  GANGLION_RETURN_IF_ERROR(model.add_shard(file_path, true, &metadata));
  return model;
}

const TensorInfo* GgufModel::find_tensor(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

GgufModel GgufModel::with_header(Metadata metadata, std::vector<TensorInfo> tensors) const {
  GgufModel model;
  model.metadata_ = std::move(metadata);
  model.tensors_ = std::move(tensors);
  model.shards_ = shards_;
  for (size_t i = 0; i < model.tensors_.size(); ++i) model.index_.emplace(model.tensors_[i].name, i);
  return model;
}

uint64_t GgufModel::file_bytes() const {
  uint64_t sum = 0;
  for (const ShardInfo& shard : shards_) sum += shard.file_bytes;
  return sum;
}

}  // namespace ganglion::format
