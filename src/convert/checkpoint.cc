#include "convert/checkpoint.h"

#include <algorithm>
#include <set>

#include "base/units.h"
#include "format/json.h"

namespace ganglion::convert {

using base::Code;
using base::Result;
using base::Status;
using format::Json;

namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 256 * base::kMiB;

bool ends_with(const std::string& name, std::string_view ending) {
  return name.size() >= ending.size() &&
         name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

// Where each tensor is said to be; empty without an index.
Result<std::map<std::string, std::string>> read_index(const std::string& directory) {
  std::map<std::string, std::string> places;
  const std::string path = directory + "/" + kIndexName;
  GANGLION_ASSIGN_OR_RETURN(const Json index, Json::read_file(path, kMaxIndexBytes));
  const Json& map = index["weight_map"];
  if (!map.is_object() || map.items().empty()) {
    return Status(Code::kModelFile, "'" + path + "': there is no weight_map");
  }
  for (size_t i = 0; i < map.keys().size(); ++i) {
    const std::string& file = map.items()[i].text();
    // A name, not a path: nothing outside the directory is opened.
    if (file.empty() || file.find('/') != std::string::npos || !ends_with(file, ".safetensors")) {
      return Status(Code::kModelFile, "'" + path + "': tensor '" + map.keys()[i].substr(0, 200) +
                                          "' is in no safetensors file of this directory");
    }
    places[map.keys()[i]] = file;
  }
  return places;
}

Status no_weights(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (ends_with(name, ".bin") || ends_with(name, ".pth") || ends_with(name, ".pt")) {
      return Status(Code::kUnsupported, "'" + directory + "' has weights as '" + name +
                                            "', which may run code when it is read - get the model as "
                                            "safetensors");
    }
  }
  return Status(Code::kModelFile, "'" + directory + "' holds no *.safetensors");
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  GANGLION_ASSIGN_OR_RETURN(const std::vector<std::string> names, platform::list_directory(directory));
  const auto there = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::map<std::string, std::string> places;
  std::set<std::string> shards;
  if (there(kIndexName)) {
    GANGLION_ASSIGN_OR_RETURN(places, read_index(directory));
    for (const auto& [tensor, file] : places) shards.insert(file);
  } else if (there("model.safetensors")) {
    shards.insert("model.safetensors");
  } else {
    for (const std::string& name : names) {
      if (ends_with(name, ".safetensors")) shards.insert(name);
    }
    if (shards.empty()) return no_weights(directory, names);
    if (shards.size() > 1) {
      return Status(Code::kModelFile,
                    base::format("'%s' holds %zu *.safetensors, but no %s says which belong to the model",
                                 directory.c_str(), shards.size(), kIndexName));
    }
  }
  Checkpoint checkpoint;
  for (const std::string& shard : shards) {
    if (!there(shard)) {
      return Status(Code::kModelFile, "'" + directory + "': the shard '" + shard +
                                          "' is missing - download the rest of the model");
    }
    GANGLION_ASSIGN_OR_RETURN(platform::File file, platform::File::open(directory + "/" + shard));
    GANGLION_ASSIGN_OR_RETURN(std::vector<format::SafeTensor> tensors, format::read_safetensors(file));
    for (format::SafeTensor& tensor : tensors) {
      const std::string name = tensor.name;
      const auto place = places.find(name);
      if (!places.empty() && (place == places.end() || place->second != shard)) continue;
      const CheckpointTensor entry{std::move(tensor), checkpoint.files.size()};
      checkpoint.tensors.emplace(name, entry);
    }
    checkpoint.files.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : places) {
    if (checkpoint.tensors.count(tensor) > 0) continue;
    return Status(Code::kModelFile, "'" + directory + "/" + file + "': tensor '" + tensor +
                                        "' is missing, which the index says is there");
  }
  return checkpoint;
}

}  // namespace ganglion::convert
