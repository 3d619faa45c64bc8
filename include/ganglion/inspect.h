// What a model file contains, and whether it is whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/error.h"
#include "ganglion/text.h"

namespace ganglion {

struct MetadataEntry {
  std::string key;
  std::string kind;    ///< "uint", "int", "float", "bool", "string", "array of uint", ...
  std::string text;    ///< The value; an array's first elements.
  uint64_t count = 1;  ///< Elements of an array.
};

struct TensorEntry {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;  ///< Row length first.
  uint64_t bytes = 0;
  uint32_t shard = 0;
  uint64_t offset = 0;  ///< In the shard's file.
};

struct ShardEntry {
  std::string path;
  uint64_t bytes = 0;
  uint32_t version = 0;
  uint64_t tensors = 0;
  bool powerinfer = false;  ///< As PowerInfer's tools write models: to be packed.
};

struct ModelContents {
  std::vector<MetadataEntry> metadata;
  std::vector<TensorEntry> tensors;
  std::vector<ShardEntry> shards;
  uint64_t parameters = 0;
};

/// Reads the header of a model of any architecture. Errors: kModelFile, kUnsupported.
Result<ModelContents> inspect_model(const std::string& path, const Overrides& overrides = {});

struct ShardVerdict {
  std::string path;
  uint64_t bytes = 0;
  Status status;       ///< Why it is bad.
  std::string sha256;  ///< Lower-case hex, if asked for.
};

struct VerifyOptions {
  bool sha256 = false;  ///< Hash each file (reads all of it).
  bool bundles = true;  ///< Compare the bundles of a pack with their checksums (reads them all).
};

/// Checks every shard by itself (structure, sizes, optionally its SHA-256), then the model as a whole (all
/// parts, all tensors of the architecture with the right shapes, the bundles of a pack): that is the last
/// entry, with an empty path. Errors: only if no file can be found at all. `progress` (or null) is told what
/// is being done, the bytes so far and in all.
Result<std::vector<ShardVerdict>> verify_model(const std::string& path, const VerifyOptions& options,
                                               void (*progress)(void* context, const char* stage,
                                                                uint64_t done, uint64_t total) = nullptr,
                                               void* context = nullptr);

}  // namespace ganglion
