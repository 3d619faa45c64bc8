// `ganglion logits`: what a model says of given tokens.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace ganglion::cli {

namespace {

struct LogitsFlags {
  ModelFlags model;
  std::vector<int32_t> tokens;
  std::vector<size_t> positions;
  std::string output;
};

/// Keeps the logits of chosen positions.
class KeepRows final : public LogitSink {
 public:
  explicit KeepRows(std::vector<size_t> positions)
      : positions_(std::move(positions)), rows_(positions_.size()) {}
  void logits(size_t position, std::span<const float> values) override {
    for (size_t i = 0; i < positions_.size(); ++i) {
      if (positions_[i] == position) rows_[i].assign(values.begin(), values.end());
    }
  }
  const std::vector<std::vector<float>>& rows() const { return rows_; }

 private:
  std::vector<size_t> positions_;
  std::vector<std::vector<float>> rows_;
};

int run_logits(LogitsFlags& flags) {
  std::error_code error;
  if (std::filesystem::equivalent(flags.output, flags.model.engine.model_path, error)) {
    return fail(Status(Code::kInvalidArgument, "the output would overwrite the model"));
  }
  if (flags.positions.empty()) flags.positions = {flags.tokens.size() - 1};
  for (const size_t position : flags.positions) {
    if (position >= flags.tokens.size()) {
      return fail(Status(Code::kInvalidArgument, "position " + std::to_string(position) + " is beyond the " +
                                                     std::to_string(flags.tokens.size()) + " tokens"));
    }
  }
  Result<std::unique_ptr<Engine>> engine = open_engine(flags.model);
  if (!engine.ok()) return fail(engine.status());
  Result<std::unique_ptr<Session>> session = engine.value()->new_session();
  if (!session.ok()) return fail(session.status());
  KeepRows keep(flags.positions);
  const Status status = session.value()->evaluate(flags.tokens, &interrupted(), &keep);
  if (!status.ok()) return fail(status);
  std::ofstream out(flags.output, std::ios::binary | std::ios::trunc);
  for (const std::vector<float>& row : keep.rows()) {
    out.write(reinterpret_cast<const char*>(row.data()),
              static_cast<std::streamsize>(row.size() * sizeof(float)));
  }
  out.close();
  if (!out) return fail(Status(Code::kIo, "cannot write '" + flags.output + "'"));
  return 0;
}

}  // namespace

void register_logits(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("logits", "Write the logits after given tokens, for tests");
  auto flags = std::make_shared<LogitsFlags>();
  flags->model.add_to(*command);
  command->add_option("--tokens", flags->tokens, "Token ids, separated by commas")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->required();
  command->add_option("--positions", flags->positions, "Positions to write (default: the last)")
      ->delimiter(',');
  command->add_option("-o,--output", flags->output, "File for the rows: float32, little-endian")->required();
  command->callback([flags, body] { *body = [flags] { return run_logits(*flags); }; });
}

}  // namespace ganglion::cli
