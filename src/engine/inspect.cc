// The public inspect and verify.
#include "ganglion/inspect.h"

#include <algorithm>

#include "base/sha256.h"
#include "base/units.h"
#include "engine/runtime.h"
#include "format/powerinfer.h"

namespace ganglion {

using base::Value;
using base::ValueKind;
using format::GgufModel;

namespace {

constexpr uint64_t kShownElements = 8;

std::string kind_word(ValueKind kind) {
  switch (kind) {
    case ValueKind::kUint:
      return "uint";
    case ValueKind::kInt:
      return "int";
    case ValueKind::kFloat:
      return "float";
    case ValueKind::kBool:
      return "bool";
    case ValueKind::kString:
      return "string";
    case ValueKind::kArray:
      return "array";
  }
  return "unknown";
}

std::string array_text(const base::Metadata& metadata, const std::string& key, const Value& value) {
  std::string text;
  const auto append = [&](const std::string& element) { text += (text.empty() ? "" : ", ") + element; };
  if (value.element_kind == ValueKind::kString) {
    base::StringArrayReader reader(value);
    std::string_view element;
    for (uint64_t i = 0; i < kShownElements && reader.next(&element); ++i)
      append("\"" + std::string(element) + "\"");
  } else if (const auto numbers = metadata.numbers(key); numbers.ok()) {
    for (size_t i = 0; i < std::min<size_t>(kShownElements, numbers.value().size()); ++i) {
      append(base::format("%g", numbers.value()[i]));
    }
  }
  return "[" + text + (value.count > kShownElements ? ", ..." : "") + "]";
}

MetadataEntry describe(const base::Metadata& metadata, const std::string& key, const Value& value) {
  MetadataEntry entry{key, kind_word(value.kind), "", 1};
  switch (value.kind) {
    case ValueKind::kUint:
      entry.text = std::to_string(value.uint_value);
      break;
    case ValueKind::kInt:
      entry.text = std::to_string(value.int_value);
      break;
    case ValueKind::kFloat:
      entry.text = base::format("%.9g", value.float_value);
      break;
    case ValueKind::kBool:
      entry.text = value.bool_value ? "true" : "false";
      break;
    case ValueKind::kString:
      entry.text = value.text;
      break;
    case ValueKind::kArray:
      entry.kind = "array of " + kind_word(value.element_kind);
      entry.text = array_text(metadata, key, value);
      entry.count = value.count;
      break;
  }
  return entry;
}

// Calls step(bytes) after each piece.
template <typename Step>
Result<std::string> hash_file(const std::string& path, Step&& step) {
  GANGLION_ASSIGN_OR_RETURN(const platform::File file, platform::File::open(path));
  base::Sha256 sha;
  std::vector<uint8_t> chunk(base::kMiB);
  for (uint64_t at = 0; at < file.size(); at += chunk.size()) {
    chunk.resize(std::min<uint64_t>(base::kMiB, file.size() - at));
    GANGLION_RETURN_IF_ERROR(file.read_exact(at, chunk));
    sha.update(chunk);
    step(chunk.size());
  }
  return sha.finish();
}

using StageProgress = void (*)(void*, const char*, uint64_t, uint64_t);

Status check_whole(const std::string& path, bool bundles, StageProgress progress, void* context) {
  GANGLION_ASSIGN_OR_RETURN(GgufModel file, GgufModel::open(path));
  if (file.tensors().empty()) return ok_status();  // A vocabulary.
  if (file.metadata().has("ganglion.calibration.version")) return ok_status();
  if (file.powerinfer()) {
    GANGLION_ASSIGN_OR_RETURN(file, format::plain_header(file));
  }
  GANGLION_ASSIGN_OR_RETURN(model_config::ModelConfig config,
                            model_config::read_model_config(file.metadata()));
  GANGLION_ASSIGN_OR_RETURN(const model::WeightMap weights, model::map_weights(file, &config));
  if (!config.pack.present) return ok_status();
  GANGLION_ASSIGN_OR_RETURN(const engine::BundleChecks checks, engine::BundleChecks::open(file, weights));
  if (!bundles) return ok_status();
  struct Told {
    StageProgress progress;
    void* context;
  } told = {progress, context};
  return checks.check_all(
      [](void* to, uint64_t done, uint64_t total) {
        const auto& t = *static_cast<Told*>(to);
        if (t.progress != nullptr) t.progress(t.context, "checking bundles", done, total);
      },
      &told);
}

}  // namespace

Result<ModelContents> inspect_model(const std::string& path, const Overrides& overrides) {
  GANGLION_ASSIGN_OR_RETURN(GgufModel file, GgufModel::open(path));
  GANGLION_RETURN_IF_ERROR(engine::apply_overrides(overrides, &file.metadata()));
  ModelContents contents;
  for (const auto& [key, value] : file.metadata().values()) {
    contents.metadata.push_back(describe(file.metadata(), key, value));
  }
  for (const format::TensorInfo& tensor : file.tensors()) {
    contents.tensors.push_back({tensor.name, std::string(base::tensor_type_info(tensor.type).name),
                                std::vector<uint64_t>(tensor.dims, tensor.dims + tensor.dim_count),
                                tensor.bytes, tensor.shard, tensor.offset});
    contents.parameters += tensor.elements();
  }
  for (const format::ShardInfo& shard : file.shards()) {
    contents.shards.push_back(
        {shard.path, shard.file_bytes, shard.version, shard.tensor_count, shard.powerinfer});
  }
  return contents;
}

Result<std::vector<ShardVerdict>> verify_model(const std::string& path, const VerifyOptions& options,
                                               StageProgress progress, void* context) {
  std::vector<ShardVerdict> verdicts;
  const Result<std::vector<std::string>> paths = format::resolve_model_files(path);
  // Where a part is missing, the others are still worth a look; the verdict on the whole names it.
  const std::vector<std::string> files = paths.ok() ? paths.value() : std::vector<std::string>{path};
  uint64_t total = 0;
  uint64_t done = 0;
  for (const std::string& file : files) {
    const Result<platform::File> opened = platform::File::open(file);
    if (opened.ok()) total += opened.value().size();
  }
  for (const std::string& file : files) {
    ShardVerdict verdict{file, 0, ok_status(), ""};
    const Result<GgufModel> shard = GgufModel::open_single(file);
    verdict.status = shard.ok() ? ok_status() : shard.status();
    if (shard.ok()) verdict.bytes = shard.value().file_bytes();
    if (options.sha256) {
      Result<std::string> hash = hash_file(file, [&](uint64_t bytes) {
        done += bytes;
        if (progress != nullptr) progress(context, "hashing", done, total);
      });
      if (hash.ok()) verdict.sha256 = hash.take();
      if (!hash.ok() && verdict.status.ok()) verdict.status = hash.status();
    }
    verdicts.push_back(std::move(verdict));
  }
  verdicts.push_back({"", 0, check_whole(path, options.bundles, progress, context), ""});
  return verdicts;
}

}  // namespace ganglion
