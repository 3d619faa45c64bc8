// Writes bench models: any llama, mixtral, qwen3moe or smallthinker shape, seeded, streamed to disk, loadable
// by any GGUF engine. Weights are random in any type (speed does not depend on them, text does), or planted
// such that FFN activations are sparse as published ones are; what they came out as can be measured.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/units.h"
#include "measure.h"
#include "request.h"
#include "synthesizer.h"

namespace ganglion::synthesize {
namespace {

struct CommandLine {
  Request request;
  std::string shape_name = "7b";
  std::map<std::string, uint32_t> changes;
  MeasureOptions measure;
};

void add_options(CLI::App& app, CommandLine* line) {
  Request& request = line->request;
  std::string names;
  for (const auto& [name, shape] : known_shapes()) names += (names.empty() ? "" : ", ") + name;
  app.add_option("--shape", line->shape_name, "Start from: " + names)->capture_default_str();
  for (const char* name : {"layers", "dim", "ffn", "heads", "kv-heads", "head-dims", "vocab", "context",
                           "experts", "experts-used"}) {
    app.add_option_function<uint32_t>(
        std::string("--") + name, [line, name](uint32_t value) { line->changes[name] = value; },
        "Overrides the shape");
  }
  app.add_option("--type", request.type, "Type of all matrices, or Q4_K_M")->capture_default_str();
  app.add_option("--activation", request.activation,
                 "silu: random weights; relu or drelu: planted sparsity, in Q4_0, Q8_0, F16 or F32")
      ->capture_default_str();
  app.add_option("--active", request.active,
                 "Mean share of active neurons (default 0.10, with experts 0.15)");
  app.add_option("--seed", request.seed, "Seed")->capture_default_str();
  app.add_option("--threads", request.threads, "Threads (default: one per core)");
  auto* output = app.add_option("-o,--output", request.output, "File to write");
  auto* measured =
      app.add_option("--measure", line->measure.path, "Measure the sparsity of this file instead");
  output->excludes(measured);
  app.add_option("--tokens", line->measure.tokens, "Random tokens to measure with; 0: do not measure")
      ->capture_default_str();
  app.add_option("--mem", line->measure.memory, "Memory budget of measuring")->capture_default_str();
}

int fail(const Status& status) {
  std::fprintf(stderr, "synthesize: %s\n", status.message().c_str());
  return exit_code(status.code());
}

Status apply_shape(CommandLine* line) {
  const auto found = known_shapes().find(line->shape_name);
  if (found == known_shapes().end())
    return Status(Code::kInvalidArgument, "shape '" + line->shape_name + "' is not known - see --help");
  line->request.shape = found->second;
  Shape& s = line->request.shape;
  const std::map<std::string, uint32_t*> fields = {
      {"layers", &s.layers},     {"dim", &s.dim},
      {"ffn", &s.ffn},           {"heads", &s.heads},
      {"kv-heads", &s.kv_heads}, {"head-dims", &s.head_dims},
      {"vocab", &s.vocab},       {"context", &s.context},
      {"experts", &s.experts},   {"experts-used", &s.experts_used}};
  for (const auto& [name, value] : line->changes) *fields.at(name) = value;
  return check_request(line->request);
}

Status write(const Request& request) {
  Synthesizer synthesizer(request);
  if (synthesizer.planted() != nullptr) {
    const Skew& skew = synthesizer.planted()->gate_skew();
    std::fprintf(
        stderr,
        "gate i fires with probability Phi(b_i), b_i = %.4f + %.4f t, t normal over the neurons: mean "
        "%.2f %%; %.1f %% of the activations from the top 30 %%, %.1f %% from the top 50 %%\n",
        skew.mu, skew.tau, 100 * skew.mean, 100 * skew.top_30_share, 100 * skew.top_50_share);
  }
  std::fprintf(stderr, "writing %s\n", base::format_bytes(synthesizer.data_bytes()).c_str());
  return synthesizer.run();
}

int run(int argc, char** argv) {
  CLI::App app("Writes a bench model with random weights or planted sparsity.", "synthesize");
  CommandLine line;
  add_options(app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Request& request = line.request;
  if (line.measure.path.empty()) {
    if (request.output.empty())
      return fail(Status(Code::kInvalidArgument, "say which file to write (-o) or to measure (--measure)"));
    Status status = apply_shape(&line);
    if (status.ok()) status = write(request);
    if (!status.ok()) return fail(status);
    if (!request.planted() || line.measure.tokens == 0) return 0;
    line.measure.path = request.output;
  }
  line.measure.seed = request.seed;
  line.measure.threads = request.threads;
  const Result<Measured> measured = measure(line.measure);
  if (!measured.ok()) return fail(measured.status());
  std::fputs(describe(measured.value()).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace ganglion::synthesize

int main(int argc, char** argv) {
  return ganglion::synthesize::run(argc, argv);
}
