// A build without libcurl: what is there can be listed, nothing fetched.
#include "pull/download.h"

namespace ganglion::pull {

namespace {

Status missing() {
  return Status(Code::kUnsupported, "built without libcurl: nothing can be downloaded - give a file with -m");
}

}  // namespace

Result<uint64_t> download(const DownloadRequest& /*request*/, const DownloadProgress& /*progress*/) {
  return missing();
}

Result<std::string> fetch_text(const std::string& /*url*/, const std::string& /*token*/,
                               size_t /*most_bytes*/) {
  return missing();
}

}  // namespace ganglion::pull
