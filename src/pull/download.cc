#include "pull/download.h"

#include <curl/curl.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace ganglion::pull {

namespace {

namespace fs = std::filesystem;

constexpr int kMostAttempts = 5;
constexpr long kConnectSeconds = 30;
// Slower than this for so long is a broken connection.
constexpr long kLeastBytesPerSecond = 1024;
constexpr long kSlowSeconds = 60;

using Curl = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

Curl new_request(const std::string& url, const std::string& token) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)ready;
  Curl curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return curl;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  // What began encrypted stays so.
  curl_easy_setopt(curl.get(), CURLOPT_REDIR_PROTOCOLS_STR,
                   url.rfind("https:", 0) == 0 ? "https" : "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, kSlowSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "ganglion");
  if (!token.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl.get(), CURLOPT_XOAUTH2_BEARER, token.c_str());
  }
  return curl;
}

Status http_error(long http, const std::string& url) {
  const std::string what = url + ": the server answers " + std::to_string(http);
  if (http == 404) return Status(Code::kNotFound, what);
  if (http == 401 || http == 403) return Status(Code::kIo, what + " - a token may be needed (HF_TOKEN)");
  return Status(Code::kIo, what);
}

/// The part that is there already, and what is added to it.
class Part {
 public:
  Part(const DownloadRequest& request, const DownloadProgress& progress)
      : request_(request), progress_(progress), path_(request.path + ".part") {}
  ~Part() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  // Opens the part and hashes what it holds.
  Status open() {
    file_ = std::fopen(path_.c_str(), "a+b");
    if (file_ == nullptr) return Status(Code::kIo, "cannot write '" + path_ + "': " + std::strerror(errno));
    std::vector<uint8_t> buffer(size_t{1} << 20);
    std::rewind(file_);
    while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file_)) {
      hash_.update({buffer.data(), count});
      size_ += count;
      if (!progress_(size_, request_.bytes)) return Status(Code::kCancelled, "interrupted");
    }
    return ok_status();
  }

  Status check_space() const {
    struct statvfs facts = {};
    if (request_.bytes <= size_ || ::statvfs(path_.c_str(), &facts) != 0) return base::ok_status();
    const uint64_t free = uint64_t{facts.f_bavail} * facts.f_frsize;
    const uint64_t needed = request_.bytes - size_;
    if (free >= needed) return base::ok_status();
    return Status(Code::kResources, "'" + request_.path + "' needs " + std::to_string(needed) +
                                        " more bytes of disk space, " + std::to_string(free) + " are free");
  }

  // One request from where the part ends.
  Status attempt() {
    Curl curl = new_request(request_.url, request_.token);
    if (curl == nullptr) return Status(Code::kIo, "libcurl gives no handle");
    curl_ = curl.get();
    started_ = false;
    status_ = base::ok_status();
    // A range, since "resume" would refuse a server that sends all of it again.
    const std::string range = std::to_string(size_) + "-";
    if (size_ > 0) curl_easy_setopt(curl_, CURLOPT_RANGE, range.c_str());
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &Part::on_data);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl_, CURLOPT_XFERINFOFUNCTION, &Part::on_progress);
    curl_easy_setopt(curl_, CURLOPT_XFERINFODATA, this);
    const CURLcode code = curl_easy_perform(curl_);
    long http = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &http);
    if (!status_.ok()) return status_;
    // All of it was there already, or more: finish() judges.
    if (http == 416 && size_ > 0) return base::ok_status();
    if (http >= 400) {
      retry_ = http >= 500 || http == 429;
      return http_error(http, request_.url);
    }
    retry_ = true;
    if (code != CURLE_OK) return Status(Code::kIo, request_.url + ": " + curl_easy_strerror(code));
    if (request_.bytes > 0 && size_ < request_.bytes)
      return Status(Code::kIo, request_.url + ": ended early");
    return base::ok_status();
  }

  bool worth_another() const { return retry_; }
  uint64_t received() const { return received_; }

  // Checks size and hash, and gives the file its name.
  Status finish() {
    if (std::fflush(file_) != 0) return write_error();
    std::fclose(std::exchange(file_, nullptr));
    std::error_code error;
    const bool right_size = request_.bytes == 0 || size_ == request_.bytes;
    const std::string sha256 = hash_.finish();
    if (!right_size || (!request_.sha256.empty() && sha256 != request_.sha256)) {
      fs::remove(path_, error);
      return Status(Code::kIo,
                    "'" + request_.path + "' is not what the server promised: " + std::to_string(size_) +
                        " bytes with SHA-256 " + sha256 + ", not " + std::to_string(request_.bytes) +
                        " with " + request_.sha256 + " - it was removed, try again");
    }
    fs::rename(path_, request_.path, error);
    if (error) return Status(Code::kIo, "cannot rename '" + path_ + "': " + error.message());
    return base::ok_status();
  }

 private:
  Status write_error() const {
    return Status(Code::kIo, "cannot write '" + path_ + "': " + std::strerror(errno));
  }

  static size_t on_data(char* data, size_t, size_t count, void* self) {
    return static_cast<Part*>(self)->write(data, count);
  }

  size_t write(const char* data, size_t count) {
    long http = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &http);
    if (http >= 400) return count;
    // A server that cannot resume sends all of it again.
    if (!std::exchange(started_, true) && http == 200 && size_ > 0) {
      if (std::freopen(path_.c_str(), "wb", file_) == nullptr) {
        file_ = nullptr;
        status_ = write_error();
        return 0;
      }
      hash_ = base::Sha256();
      size_ = 0;
    }
    if (std::fwrite(data, 1, count, file_) != count) {
      status_ = write_error();
      return 0;
    }
    hash_.update({reinterpret_cast<const uint8_t*>(data), count});
    size_ += count;
    received_ += count;
    return count;
  }

  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto* part = static_cast<Part*>(self);
    if (part->progress_(part->size_, part->request_.bytes)) return 0;
    part->status_ = Status(Code::kCancelled, "interrupted");
    return 1;
  }

  const DownloadRequest& request_;
  const DownloadProgress& progress_;
  const std::string path_;
  std::FILE* file_ = nullptr;
  base::Sha256 hash_;
  uint64_t size_ = 0;
  uint64_t received_ = 0;
  CURL* curl_ = nullptr;
  bool started_ = false;
  bool retry_ = false;
  Status status_;
};

size_t collect(char* data, size_t, size_t count, void* to) {
  auto* text = static_cast<std::pair<std::string, size_t>*>(to);
  if (text->first.size() + count > text->second) return 0;
  text->first.append(data, count);
  return count;
}

}  // namespace

Result<uint64_t> download(const DownloadRequest& request, const DownloadProgress& progress) {
  std::error_code error;
  fs::create_directories(fs::path(request.path).parent_path(), error);
  if (error) return Status(Code::kIo, "cannot make the folder of '" + request.path + "': " + error.message());
  Part part(request, progress);
  GANGLION_RETURN_IF_ERROR(part.open());
  GANGLION_RETURN_IF_ERROR(part.check_space());
  Status status;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200 << attempt));
    status = part.attempt();
    if (status.ok() || !part.worth_another()) break;
  }
  GANGLION_RETURN_IF_ERROR(status);
  GANGLION_RETURN_IF_ERROR(part.finish());
  return part.received();
}

Result<std::string> fetch_text(const std::string& url, const std::string& token, size_t most_bytes) {
  const Curl curl = new_request(url, token);
  if (curl == nullptr) return Status(Code::kIo, "libcurl gives no handle");
  std::pair<std::string, size_t> text{"", most_bytes};
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &collect);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &text);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return Status(Code::kIo, url + ": " + curl_easy_strerror(code));
  long http = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &http);
  if (http >= 400) return http_error(http, url);
  return text.first;
}

}  // namespace ganglion::pull
