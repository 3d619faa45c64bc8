// Names of split models: "<prefix>-00002-of-00003.gguf", counted from 1.
#include <cstdio>
#include <cstdlib>

#include "base/units.h"
#include "format/gguf.h"

namespace ganglion::format {

using base::Code;
using base::Result;
using base::Status;

namespace {

constexpr std::string_view kPattern = "-00001-of-00001.gguf";

struct ShardName {
  std::string prefix;
  size_t number = 0;
  size_t count = 0;
};

bool parse_shard_name(const std::string& path, ShardName* out) {
  if (path.size() < kPattern.size()) return false;
  const std::string tail = path.substr(path.size() - kPattern.size());
  for (size_t i = 0; i < tail.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    const bool wants_digit = kPattern[i] == '0' || kPattern[i] == '1';
    if (wants_digit ? !digit : tail[i] != kPattern[i]) return false;
  }
  out->prefix = path.substr(0, path.size() - kPattern.size());
  out->number = std::strtoul(tail.c_str() + 1, nullptr, 10);
  out->count = std::strtoul(tail.c_str() + 10, nullptr, 10);
  return out->number >= 1 && out->number <= out->count;
}

// The one model that a directory holds: its first shard or only file.
Result<std::string> model_in_directory(const std::string& directory) {
  GANGLION_ASSIGN_OR_RETURN(const std::vector<std::string> names, platform::list_directory(directory));
  std::vector<std::string> models;
  std::string any_shard;
  for (const std::string& name : names) {
    if (name.size() < 5 || name.substr(name.size() - 5) != ".gguf") continue;
    ShardName shard;
    const bool is_shard = parse_shard_name(name, &shard);
    if (is_shard) any_shard = name;
    if (!is_shard || shard.number == 1) models.push_back(name);
  }
  if (models.empty() && !any_shard.empty()) models.push_back(any_shard);
  if (models.size() == 1) return directory + "/" + models[0];
  std::string list;
  for (const std::string& name : models) list += (list.empty() ? ": " : ", ") + name;
  return Status(Code::kModelFile, base::format("directory '%s' holds %zu GGUF models, expected one%s",
                                               directory.c_str(), models.size(), list.c_str()));
}

}  // namespace

Result<std::vector<std::string>> resolve_model_files(const std::string& path) {
  std::string file = path;
  if (platform::is_directory(path)) {
    GANGLION_ASSIGN_OR_RETURN(file, model_in_directory(path));
  }
  ShardName shard;
  if (!parse_shard_name(file, &shard) || shard.count == 1) return std::vector<std::string>{file};
  std::vector<std::string> paths;
  std::string missing;
  for (size_t i = 1; i <= shard.count; ++i) {
    paths.push_back(base::format("%s-%05zu-of-%05zu.gguf", shard.prefix.c_str(), i, shard.count));
    if (!platform::File::open(paths.back()).ok()) missing += (missing.empty() ? "" : ", ") + paths.back();
  }
  if (!missing.empty()) {
    return Status(Code::kModelFile,
                  base::format("split model of %zu parts: missing %s", shard.count, missing.c_str()));
  }
  return paths;
}

}  // namespace ganglion::format
