// One file by HTTP: resumed, hashed, renamed when it is right. Wraps libcurl, which nothing else here sees.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace ganglion::pull {

using base::Code;
using base::Result;
using base::Status;

struct DownloadRequest {
  std::string url;
  std::string path;    ///< Where it goes; "path.part" until it is whole.
  std::string sha256;  ///< Lower-case hex; empty: unknown.
  std::string token;
  uint64_t bytes = 0;  ///< 0: unknown.
};

/// Told what this file has so far and will have (0: unknown); false stops.
using DownloadProgress = std::function<bool(uint64_t done, uint64_t total)>;

/// Returns the bytes that came over the network. Errors: kNotFound (404), kIo (other refusals, the network
/// after five attempts, the disk, a wrong hash or size), kResources (disk space), kCancelled.
Result<uint64_t> download(const DownloadRequest& request, const DownloadProgress& progress);

/// A small answer as text. Errors: as download.
Result<std::string> fetch_text(const std::string& url, const std::string& token, size_t most_bytes);

}  // namespace ganglion::pull
