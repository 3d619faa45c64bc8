// Which files a model's name stands for, and fetching them.
#include "ganglion/pull.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "pull/download.h"

namespace ganglion {

namespace {

namespace fs = std::filesystem;
using pull::DownloadRequest;

constexpr size_t kMostListBytes = size_t{32} << 20;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// "name-00002-of-00005.gguf" in parts.
struct ShardName {
  std::string stem;
  int count = 1;

  std::string shard(int number) const {
    if (count == 1) return stem + ".gguf";
    char text[40];
    std::snprintf(text, sizeof text, "-%05d-of-%05d.gguf", number, count);
    return stem + text;
  }
};

ShardName shard_name(const std::string& path) {
  static const std::regex kShard("(.*)-[0-9]{5}-of-([0-9]{5})\\.gguf");
  std::smatch match;
  if (std::regex_match(path, match, kShard)) return {match[1], std::max(1, std::stoi(match[2]))};
  return {path.substr(0, path.size() - 5), 1};
}

/// A name that a server gave: must not lead out of the folder.
bool is_safe_path(const std::string& path) {
  if (path.empty() || path[0] == '/' || path.find('\\') != path.npos || path.find('\0') != path.npos)
    return false;
  for (const fs::path& part : fs::path(path)) {
    if (part == ".." || part == ".") return false;
  }
  return true;
}

struct Source {
  std::string repo;   ///< user/repo, or empty for a URL.
  std::string quant;  ///< As named, or empty.
};

Result<Source> parse_source(const std::string& text) {
  static const std::regex kName(
      "([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?::([A-Za-z0-9._-]+))?");
  std::smatch match;
  if (text.size() > 300 || !std::regex_match(text, match, kName)) {
    return Status(Code::kInvalidArgument,
                  "'" + text.substr(0, 100) +
                      "' names no model - write user/repo, user/repo:Q4_K_M or the URL "
                      "of a GGUF file");
  }
  return Source{match[1], match[2]};
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The model's first file among those of a repository.
Result<std::string> choose(const std::string& repo, const std::string& quant,
                           const std::vector<std::string>& files) {
  std::vector<std::string> models;
  for (const std::string& file : files) {
    const bool helper =
        lower(file).find("mmproj") != std::string::npos || lower(file).find("imatrix") != std::string::npos;
    if (!helper && shard_name(file).shard(1) == file) models.push_back(file);
  }
  if (models.empty()) return Status(Code::kNotFound, repo + " has no GGUF files");
  const std::vector<std::string> wanted =
      quant.empty() ? std::vector<std::string>{"q4_k_m", "q4_0"} : std::vector<std::string>{lower(quant)};
  for (const std::string& word : wanted) {
    for (const std::string& model : models) {
      const std::string name = lower(shard_name(model).stem);
      const size_t at = name.rfind(word);
      // Whole words: Q4_K is not Q4_K_M.
      if (at == std::string::npos) continue;
      const size_t end = at + word.size();
      if (end == name.size() ||
          (std::isalnum(static_cast<unsigned char>(name[end])) == 0 && name[end] != '_'))
        return model;
    }
  }
  if (quant.empty() && models.size() == 1) return models[0];
  return Status(Code::kNotFound, repo + (quant.empty() ? " has several models" : " has no '" + quant + "'") +
                                     ": name one of " + joined(models));
}

// All files of a repository's main branch.
Result<std::vector<DownloadRequest>> list_files(const PullOptions& options, const std::string& repo) {
  const std::string url = options.endpoint + "/api/models/" + repo + "/tree/main?recursive=true";
  const Result<std::string> text = pull::fetch_text(url, options.token, kMostListBytes);
  if (!text.ok()) return text.status();
  const auto tree = nlohmann::json::parse(text.value(), nullptr, false);
  if (!tree.is_array()) return Status(Code::kIo, url + ": the answer is no list of files");
  std::vector<DownloadRequest> files;
  for (const auto& entry : tree) {
    if (!entry.is_object() || !entry.contains("path") || !entry["path"].is_string()) continue;
    const auto path = entry["path"].get<std::string>();
    if (!ends_with(path, ".gguf") || !is_safe_path(path)) continue;
    DownloadRequest file = {.url = options.endpoint + "/" + repo + "/resolve/main/" + path,
                            .path = path,
                            .sha256 = "",
                            .token = options.token};
    if (entry.contains("size") && entry["size"].is_number_unsigned())
      file.bytes = entry["size"].get<uint64_t>();
    if (entry.contains("lfs") && entry["lfs"].is_object() && entry["lfs"].contains("oid") &&
        entry["lfs"]["oid"].is_string())
      file.sha256 = lower(entry["lfs"]["oid"].get<std::string>());
    files.push_back(std::move(file));
  }
  return files;
}

// The files of one model, with their places below `folder`.
Result<std::vector<DownloadRequest>> files_of(const PullOptions& options, const Source& source) {
  Result<std::vector<DownloadRequest>> all = list_files(options, source.repo);
  if (!all.ok()) return all.status().with_context(source.repo);
  std::vector<std::string> names;
  for (const DownloadRequest& file : all.value()) names.push_back(file.path);
  const Result<std::string> first = choose(source.repo, source.quant, names);
  if (!first.ok()) return first.status();
  const ShardName name = shard_name(first.value());
  std::vector<DownloadRequest> files;
  for (int number = 1; number <= name.count; ++number) {
    const auto found = std::find_if(all.value().begin(), all.value().end(), [&](const DownloadRequest& file) {
      return file.path == name.shard(number);
    });
    if (found == all.value().end())
      return Status(Code::kNotFound, source.repo + " lacks " + name.shard(number));
    files.push_back(*found);
    files.back().path = options.folder + "/" + source.repo + "/" + found->path;
  }
  return files;
}

Result<std::vector<DownloadRequest>> files_at_url(const PullOptions& options) {
  const std::string url = options.source.substr(0, options.source.find_first_of("?#"));
  const std::string query = options.source.substr(url.size());
  const size_t slash = url.rfind('/');
  const std::string file = url.substr(slash + 1);
  if (!ends_with(file, ".gguf") || !is_safe_path(file))
    return Status(Code::kInvalidArgument, "'" + options.source + "' is no GGUF file's URL");
  const ShardName name = shard_name(file);
  std::vector<DownloadRequest> files;
  for (int number = 1; number <= name.count; ++number) {
    files.push_back({.url = url.substr(0, slash + 1) + name.shard(number) + query,
                     .path = options.folder + "/" + name.shard(number),
                     .sha256 = "",
                     .token = options.token});
  }
  return files;
}

// A model that is there already, for working without a network.
Result<PullReport> find_local(const PullOptions& options, const Source& source) {
  const std::string folder = options.folder + "/" + source.repo;
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (ends_with(entry.path().string(), ".gguf")) names.push_back(entry.path().string());
  }
  const Result<std::string> first = choose(folder, source.quant, names);
  if (!first.ok()) return first.status();
  PullReport report;
  report.path = first.value();
  const ShardName name = shard_name(first.value());
  for (int number = 1; number <= name.count; ++number) {
    const uint64_t size = fs::file_size(name.shard(number), error);
    if (error) return Status(Code::kNotFound, "'" + name.shard(number) + "' is missing");
    report.bytes += size;
    ++report.files;
  }
  return report;
}

}  // namespace

Result<PullReport> pull_model(const PullOptions& options,
                              bool (*progress)(void* context, uint64_t done, uint64_t total), void* context) {
  const bool is_url = options.source.rfind("http://", 0) == 0 || options.source.rfind("https://", 0) == 0;
  Source source;
  if (!is_url) {
    GANGLION_ASSIGN_OR_RETURN(source, parse_source(options.source));
  }
  if (options.offline && !is_url) return find_local(options, source);
  Result<std::vector<DownloadRequest>> listed = is_url ? files_at_url(options) : files_of(options, source);
  if (!listed.ok()) return listed.status();
  const std::vector<DownloadRequest> files = listed.take();
  uint64_t total = 0;
  for (const DownloadRequest& file : files) total = file.bytes == 0 ? 0 : total + file.bytes;
  PullReport report;
  report.path = files[0].path;
  report.files = files.size();
  report.checked =
      std::all_of(files.begin(), files.end(), [](const auto& file) { return !file.sha256.empty(); });
  for (const DownloadRequest& file : files) {
    std::error_code error;
    const uint64_t there = fs::file_size(file.path, error);
    // A file under its name is whole.
    if (!error && (file.bytes == 0 || there == file.bytes)) {
      report.bytes += there;
      continue;
    }
    const auto tell = [&](uint64_t done, uint64_t) {
      return progress == nullptr || progress(context, report.bytes + done, total);
    };
    const Result<uint64_t> received = pull::download(file, tell);
    if (!received.ok()) return received.status();
    report.downloaded += received.value();
    report.bytes += fs::file_size(file.path, error);
  }
  return report;
}

std::vector<LocalModel> list_models(const std::string& folder) {
  std::vector<LocalModel> models;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (!ends_with(path, ".gguf")) continue;
    const ShardName name = shard_name(path);
    if (name.shard(1) != path) continue;
    LocalModel model = {.name = name.stem.substr(std::min(folder.size() + 1, name.stem.size())),
                        .path = path};
    for (int number = 1; number <= name.count; ++number) {
      const uint64_t size = fs::file_size(name.shard(number), error);
      if (!error) model.bytes += size;
    }
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return models;
}

}  // namespace ganglion
