#include "cli/pass_log.h"

#include <cerrno>
#include <charconv>
#include <cstring>

namespace ganglion::cli {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
// Digits of a 64-bit number and what follows it.
constexpr size_t kMostNumberBytes = 21;

Status cannot_write(const std::string& path) {
  return Status(Code::kIo, "cannot write '" + path + "': " + std::strerror(errno));
}

}  // namespace

void LogFlags::add_to(CLI::App& app) {
  app.add_option("--record-routing", routing_file, "Write which experts each token goes to in each layer")
      ->type_name("FILE");
  app.add_option("--stats", stats_file,
                 "Write what each pass read, waited for and computed, as CSV (-: to standard error)")
      ->type_name("FILE");
}

Result<std::unique_ptr<RoutingRecorder>> RoutingRecorder::create(const std::string& path,
                                                                 const std::string& model) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write(path);
  std::unique_ptr<RoutingRecorder> recorder(new RoutingRecorder(path, file));
  recorder->buffer_.resize(kBufferBytes);
  std::fprintf(file, "# ganglion routing 1: pass position layer expert ...; %s\n", model.c_str());
  return recorder;
}

RoutingRecorder::~RoutingRecorder() {
  if (file_ != nullptr) std::fclose(file_);
}

void RoutingRecorder::begin_pass(size_t first_position) {
  ++passes_;
  first_position_ = first_position;
}

void RoutingRecorder::routed(size_t row, size_t layer, std::span<const uint32_t> experts) {
  if (buffer_.size() - used_ < (experts.size() + 3) * kMostNumberBytes) flush();
  put(passes_ - 1, ' ');
  put(first_position_ + row, ' ');
  put(layer, ' ');
  for (size_t i = 0; i < experts.size(); ++i) put(experts[i], i + 1 < experts.size() ? ' ' : '\n');
}

void RoutingRecorder::put(uint64_t number, char after) {
  char* const at = buffer_.data() + used_;
  char* const end = std::to_chars(at, buffer_.data() + buffer_.size(), number).ptr;
  *end = after;
  used_ += static_cast<size_t>(end - at) + 1;
}

void RoutingRecorder::flush() {
  if (std::fwrite(buffer_.data(), 1, used_, file_) != used_) failed_ = true;
  used_ = 0;
}

Status RoutingRecorder::finish() {
  flush();
  if (std::fclose(std::exchange(file_, nullptr)) != 0 || failed_) return cannot_write(path_);
  return ok_status();
}

Result<std::unique_ptr<StatsLog>> StatsLog::create(const std::string& path, const Engine& engine) {
  std::FILE* file = path == "-" ? stderr : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return cannot_write(path);
  std::fputs(kHeader, file);
  return std::unique_ptr<StatsLog>(new StatsLog(path, file, engine));
}

StatsLog::~StatsLog() {
  if (file_ != nullptr && file_ != stderr) std::fclose(file_);
}

std::string StatsLog::line(const char* phase, size_t tokens, const EngineStats& from, const EngineStats& to) {
  const uint64_t hits = to.expert_hits - from.expert_hits;
  const uint64_t misses = to.expert_misses - from.expert_misses;
  const int64_t pass_ns = to.pass_ns - from.pass_ns;
  const int64_t wait_ns = to.io_wait_ns - from.io_wait_ns;
  char rate[16] = "";  // Empty where no expert was asked for.
  if (hits + misses > 0) {
    std::snprintf(rate, sizeof rate, "%.4f", static_cast<double>(hits) / static_cast<double>(hits + misses));
  }
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  char text[320];
  std::snprintf(text, sizeof text, "%s,%zu,%.3f,%llu,%llu,%llu,%.3f,%.3f,%llu,%llu,%s,%llu,%llu,%llu\n",
                phase, tokens, static_cast<double>(pass_ns) / 1e6,
                number(to.device_bytes - from.device_bytes), number(to.cached_bytes - from.cached_bytes),
                number(to.reads - from.reads), static_cast<double>(wait_ns) / 1e6,
                static_cast<double>(pass_ns - wait_ns) / 1e6, number(hits), number(misses), rate,
                number(to.ahead_reads + to.neurons_ahead - from.ahead_reads - from.neurons_ahead),
                number(to.ahead_used + to.neurons_ahead_used - from.ahead_used - from.neurons_ahead_used),
                number(to.ahead_wasted - from.ahead_wasted));
  return text;
}

void StatsLog::add(const char* phase, size_t tokens) {
  const EngineStats now = engine_.stats();
  std::fputs(line(phase, tokens, last_, now).c_str(), file_);
  last_ = now;
  tokens_ += tokens;
}

Status StatsLog::finish() {
  std::fputs(line("total", tokens_, start_, last_).c_str(), file_);
  const bool failed = std::fflush(file_) != 0 || std::ferror(file_) != 0;
  return failed ? cannot_write(path_) : ok_status();
}

Result<std::unique_ptr<PassLog>> PassLog::create(const LogFlags& flags, Engine& engine,
                                                 const std::string& model) {
  std::unique_ptr<PassLog> log(new PassLog(engine));
  if (!flags.routing_file.empty()) {
    Result<std::unique_ptr<RoutingRecorder>> routing = RoutingRecorder::create(flags.routing_file, model);
    if (!routing.ok()) return routing.status();
    log->routing_ = routing.take();
    engine.set_routing_sink(log->routing_.get());
  }
  if (!flags.stats_file.empty()) {
    Result<std::unique_ptr<StatsLog>> stats = StatsLog::create(flags.stats_file, engine);
    if (!stats.ok()) return stats.status();
    log->stats_ = stats.take();
  }
  return log;
}

PassLog::~PassLog() {
  if (routing_ != nullptr) engine_.set_routing_sink(nullptr);
}

void PassLog::add(const char* phase, size_t tokens) {
  if (stats_ != nullptr) stats_->add(phase, tokens);
}

Status PassLog::finish() {
  Status status;
  if (stats_ != nullptr) status = stats_->finish();
  if (routing_ != nullptr && status.ok()) {
    engine_.set_routing_sink(nullptr);
    status = routing_->finish();
    routing_.reset();
  }
  return status;
}

}  // namespace ganglion::cli
