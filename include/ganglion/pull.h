// Fetches models: from Hugging Face's hub (or what speaks like it) by name, or by URL. Used by cli/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ganglion/error.h"

namespace ganglion {

struct PullOptions {
  std::string source;  ///< "user/repo", "user/repo:Q4_K_M", or the http(s) URL of a GGUF file, any shard.
  std::string folder;  ///< Models lie in folder/user/repo/, or folder/ by their URL's name.
  std::string endpoint = "https://huggingface.co";
  std::string token;     ///< For models that need one; empty: none.
  bool offline = false;  ///< Only what is there already.
};

struct PullReport {
  std::string path;         ///< The model's first file.
  size_t files = 0;         ///< All shards.
  uint64_t bytes = 0;       ///< Of all files.
  uint64_t downloaded = 0;  ///< Of them now.
  bool checked = false;     ///< Against the hub's SHA-256, those downloaded now.
};

/// Fetches all shards of a model, going on where an earlier attempt ended; a file appears under its name when
/// it is whole and, where the hub tells its SHA-256, right. Without a quantisation named: Q4_K_M, else Q4_0,
/// else the only one there is. `progress` (or null) is told bytes done and in total (0: unknown), and may
/// return false to stop (kCancelled); what came stays for the next attempt.
/// Errors: kInvalidArgument (source), kNotFound (no such model or file, with those there are), kIo (network,
/// disk, wrong hash), kResources (disk space), kUnsupported (a build without libcurl).
Result<PullReport> pull_model(const PullOptions& options,
                              bool (*progress)(void* context, uint64_t done, uint64_t total), void* context);

struct LocalModel {
  std::string name;  ///< Path below the folder, without ".gguf" and the shard's number.
  std::string path;  ///< Its first file.
  uint64_t bytes = 0;
};

/// The models in `folder`, by name.
std::vector<LocalModel> list_models(const std::string& folder);

}  // namespace ganglion
