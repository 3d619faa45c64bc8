// What run and bench write down while they evaluate: expert routing (--record-routing) and what each pass
// took
// (--stats).
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace ganglion::cli {

struct LogFlags {
  std::string routing_file;
  std::string stats_file;  ///< "-" is stderr.

  void add_to(CLI::App& app);
};

/// Writes routing as text; docs/routing_trace.md has the format. Lines go through one buffer that is made at
/// the start and written out when it is full.
class RoutingRecorder final : public RoutingSink {
 public:
  /// Errors: kIo. `model`: what the first line says.
  static Result<std::unique_ptr<RoutingRecorder>> create(const std::string& path, const std::string& model);
  ~RoutingRecorder() override;
  void begin_pass(size_t first_position) override;
  void routed(size_t row, size_t layer, std::span<const uint32_t> experts) override;
  /// Writes what is left. Errors: kIo if any of it could not be written.
  Status finish();

 private:
  RoutingRecorder(const std::string& path, std::FILE* file) : path_(path), file_(file) {}
  void put(uint64_t number, char after);
  void flush();

  std::string path_;
  std::FILE* file_;
  std::vector<char> buffer_;
  size_t used_ = 0;
  size_t passes_ = 0;
  size_t first_position_ = 0;
  bool failed_ = false;
};

/// One line of comma-separated values per pass: counters of the engine, as differences. Columns: see kHeader.
class StatsLog {
 public:
  static constexpr const char* kHeader =
      "phase,tokens,ms,read_bytes,cached_bytes,reads,io_wait_ms,compute_ms,expert_hits,expert_misses,hit_"
      "rate,"
      "ahead_reads,ahead_used,ahead_wasted\n";
  /// Errors: kIo.
  static Result<std::unique_ptr<StatsLog>> create(const std::string& path, const Engine& engine);
  ~StatsLog();
  /// A pass (or several) that evaluated `tokens` ended.
  void add(const char* phase, size_t tokens);
  /// Writes a line with the totals, phase "total". Errors: kIo.
  Status finish();

  /// One line; `ms` is pass time.
  static std::string line(const char* phase, size_t tokens, const EngineStats& from, const EngineStats& to);

 private:
  StatsLog(const std::string& path, std::FILE* file, const Engine& engine)
      : path_(path), file_(file), engine_(engine), start_(engine.stats()), last_(start_) {}

  std::string path_;
  std::FILE* file_;
  const Engine& engine_;
  EngineStats start_;
  EngineStats last_;
  size_t tokens_ = 0;
};

/// Both, as the flags ask for them.
class PassLog {
 public:
  /// Errors: kIo.
  static Result<std::unique_ptr<PassLog>> create(const LogFlags& flags, Engine& engine,
                                                 const std::string& model);
  ~PassLog();
  /// `drafted`: evaluated and thrown away is not told apart.
  void add(const char* phase, size_t tokens);
  Status finish();

 private:
  explicit PassLog(Engine& engine) : engine_(engine) {}
  Engine& engine_;
  std::unique_ptr<RoutingRecorder> routing_;
  std::unique_ptr<StatsLog> stats_;
};

}  // namespace ganglion::cli
