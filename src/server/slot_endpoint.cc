// POST /slots/N?action=...: what a slot holds is saved to a file, restored or forgotten, as llama-server has
// it.
#include <algorithm>
#include <filesystem>

#include "server/endpoint.h"

namespace ganglion::server {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "/slots/";
constexpr size_t kMostNameBytes = 200;

// The slot's number in the path, or -1.
int64_t slot_number(const std::string& path) {
  const std::string digits = path.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoll(digits);
}

// The value of `action` in "a=b&action=save".
std::string query_action(const std::string& query) {
  constexpr std::string_view kName = "action=";
  for (size_t at = 0; at <= query.size();) {
    const size_t end = std::min(query.find('&', at), query.size());
    if (query.compare(at, kName.size(), kName) == 0)
      return query.substr(at + kName.size(), end - at - kName.size());
    at = end + 1;
  }
  return "";
}

// A plain name, so that nothing outside the folder can be named, and no file that is being written.
bool is_file_name(const std::string& name) {
  constexpr std::string_view kPart = ".part";
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  const bool part =
      name.size() >= kPart.size() && name.compare(name.size() - kPart.size(), kPart.size(), kPart) == 0;
  return plain && !part && !name.empty() && name[0] != '.' && name.size() <= kMostNameBytes;
}

// What all other files in the folder leave of `limit`.
Result<uint64_t> bytes_left(const std::string& folder, const std::string& name, uint64_t limit) {
  std::error_code error;
  uint64_t used = 0;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (at->path().filename() == name || !at->is_regular_file(gone)) continue;
    const uint64_t bytes = at->file_size(gone);
    if (!gone) used += bytes;
  }
  if (error) return Status(Code::kIo, "cannot look into '" + folder + "': " + error.message());
  return limit - std::min(limit, used);
}

ApiError slot_error(const Status& status, SlotVerb verb) {
  ApiError error = api_error(status);
  if (status.code() == Code::kModelFile) error = bad_request(status.message());
  if (status.code() == Code::kResources && verb == SlotVerb::kSave) {
    error.http = 507;
    error.message += " - delete saved slots, or raise --slot-save-limit";
  }
  return error;
}

Json answer(const SlotAction& action, const std::string& name, const SlotOutcome& outcome) {
  Json body = {{"id_slot", action.slot}};
  if (action.verb == SlotVerb::kErase) {
    body["n_erased"] = outcome.tokens;
    return body;
  }
  const bool save = action.verb == SlotVerb::kSave;
  body["filename"] = name;
  body[save ? "n_saved" : "n_restored"] = outcome.tokens;
  body[save ? "n_written" : "n_read"] = outcome.bytes;
  body["timings"] = {{save ? "save_ms" : "restore_ms", outcome.ms}};
  return body;
}

}  // namespace

std::optional<ApiError> slot_action(Call& call) {
  const ServedModel& model = call.model;
  const int64_t slot = slot_number(call.head.path);
  if (slot < 0) return bad_request("'" + call.head.path + "' names no slot - it is /slots/NUMBER?action=...");
  if (slot >= static_cast<int64_t>(model.slots)) return no_such_slot(slot, model.slots);
  const std::string verb = query_action(call.head.query);
  if (verb != "save" && verb != "restore" && verb != "erase")
    return bad_request("action: must be save, restore or erase, in the query");
  SlotAction action;
  action.slot = static_cast<size_t>(slot);
  action.verb = verb == "save" ? SlotVerb::kSave : verb == "restore" ? SlotVerb::kRestore : SlotVerb::kErase;
  std::string name;
  if (action.verb != SlotVerb::kErase) {
    if (model.slot_save_path.empty()) {
      return api_error(Status(Code::kUnsupported,
                              "slots are not saved by this server - start it with --slot-save-path FOLDER"));
    }
    Fields fields(call.request);
    fields.read("filename", &name);
    if (!fields.status().ok()) return api_error(fields.status());
    if (!is_file_name(name)) return bad_request("filename: must be a plain file name of up to 200 bytes");
    action.path = (fs::path(model.slot_save_path) / name).string();
    action.most_bytes = [&model, name] {
      return bytes_left(model.slot_save_path, name, model.slot_save_bytes);
    };
  }
  SlotAction told = action;
  action.done = [reply = call.reply, told = std::move(told), name](const Result<SlotOutcome>& outcome) {
    if (outcome.ok()) return reply->respond_json(200, answer(told, name, outcome.value()));
    const ApiError error = slot_error(outcome.status(), told.verb);
    reply->respond_json(error.http, openai_error(error));
  };
  call.scheduler.submit(std::move(action));
  return std::nullopt;
}

}  // namespace ganglion::server
