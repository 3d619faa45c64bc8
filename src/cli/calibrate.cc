// `ganglion calibrate`: what a model with sparse activations does on a text, kept in a file; and merging such
// files.
#include "ganglion/calibration.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/progress.h"

namespace ganglion::cli {

namespace {

using nlohmann::ordered_json;

struct CalibrateFlags {
  CalibrateOptions options;
  std::vector<std::string> overrides;
  std::vector<std::string> merge;
  std::vector<uint32_t> ranks = {64, 128, 192, 256};
  bool json = false;
};

ordered_json layer_json(const CalibrationLayerReport& layer, const std::vector<uint32_t>& batches) {
  ordered_json out = {
      {"active", layer.active}, {"top_30_share", layer.top_30}, {"top_50_share", layer.top_50}};
  for (size_t b = 0; b < batches.size(); ++b)
    out["active_by_batch"][std::to_string(batches[b])] = layer.active_by_batch[b];
  out["predictors"] = ordered_json::array();
  for (const RankReport& rank : layer.ranks) {
    out["predictors"].push_back({{"rank", rank.rank},
                                 {"recall", rank.recall},
                                 {"mass_recall", rank.mass_recall},
                                 {"over_prediction", rank.over_prediction}});
  }
  return out;
}

std::string report_json(const CalibrateOptions& options, const CalibrationReport& report) {
  ordered_json out = {{"calibration", options.output_path},
                      {"model_fingerprint", report.model},
                      {"tokens", report.tokens},
                      {"samples", report.samples},
                      {"bytes", report.bytes},
                      {"layers", ordered_json::array()}};
  for (const CalibrationLayerReport& layer : report.layers)
    out["layers"].push_back(layer_json(layer, report.batches));
  return out.dump(1) + "\n";
}

std::string report_text(const CalibrateOptions& options, const CalibrationReport& report) {
  CalibrationLayerReport mean;
  const double n = static_cast<double>(report.layers.size());
  mean.active_by_batch.assign(report.batches.size(), 0);
  for (const CalibrationLayerReport& layer : report.layers) {
    mean.active += layer.active / n;
    mean.top_30 += layer.top_30 / n;
    mean.top_50 += layer.top_50 / n;
    for (size_t b = 0; b < report.batches.size(); ++b)
      mean.active_by_batch[b] += layer.active_by_batch[b] / n;
  }
  char text[400];
  std::snprintf(
      text, sizeof text,
      "%s: %s, %zu tokens, inputs of %zu\n"
      "active %.1f %% of the neurons; the most frequent 30 %% have %.0f %% of the activations, half of "
      "them %.0f %%\n",
      options.output_path.c_str(), bytes_text(static_cast<double>(report.bytes)).c_str(), report.tokens,
      report.samples, 100 * mean.active, 100 * mean.top_30, 100 * mean.top_50);
  std::string out = text;
  for (size_t b = 0; b < report.batches.size(); ++b) {
    std::snprintf(text, sizeof text, "%s %u: %.1f %%", b == 0 ? "fired by some token of a batch of" : ",",
                  report.batches[b], 100 * mean.active_by_batch[b]);
    out += text;
  }
  return out + "\n";
}

int run_calibrate(CalibrateFlags& flags) {
  CalibrateOptions& options = flags.options;
  const Result<Overrides> overrides = parse_overrides(flags.overrides);
  if (!overrides.ok()) return fail(overrides.status());
  options.overrides = overrides.value();
  if (options.model_path.empty() == flags.merge.empty()) {
    return fail(Status(Code::kInvalidArgument,
                       "calibrate takes a model (-m MODEL) or calibrations to join (--merge A B ...)"));
  }
  if (flags.json) options.ranks = flags.ranks;
  install_signal_handlers();
  Stages stages;
  const Result<CalibrationReport> report =
      flags.merge.empty() ? calibrate_model(options, show_stage, &stages)
                          : merge_calibrations(flags.merge, options.output_path, show_stage, &stages);
  stages.line.reset();
  if (!report.ok()) return fail(report.status());
  const Status written =
      write_out(flags.json ? report_json(options, report.value()) : report_text(options, report.value()));
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_calibrate(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Run a model with sparse activations over a text and keep what its neurons did, for pack");
  auto flags = std::make_shared<CalibrateFlags>();
  CalibrateOptions& o = flags->options;
  CLI::Option* model =
      command->add_option("-m,--model,model", o.model_path, "GGUF file, any shard, or a directory");
  command->add_option("-o,--output", o.output_path, "The calibration to write")->required();
  CLI::Option* text =
      command->add_option("-f,--file", o.text_path, "Text to calibrate on (default: one is shipped)");
  command->add_flag("--random-tokens", o.random_tokens, "Calibrate on random tokens (synthetic models)")
      ->excludes(text);
  bounded(command->add_option("--tokens", o.tokens, "Tokens to calibrate on, spread evenly over the text")
              ->capture_default_str(),
          kMostCalibrationTokens);
  command->add_option("--merge", flags->merge, "Join these calibrations of one model")
      ->excludes(model)
      ->excludes(text)
      ->type_name("PATH ...");
  command->add_option("--mem", o.memory, "Memory budget")->capture_default_str();
  command->add_option("-t,--threads", o.threads, "Threads; 0: one per core")->capture_default_str();
  command->add_option("--ranks", flags->ranks, "Ranks of predictors to judge for --json; 0: what fires alone")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--recall", o.recall, "Share of the activation mass that those have to find")
      ->capture_default_str()
      ->check(CLI::Range(0.5, 1.0));
  command->add_option("--isa", o.isa, "Kernels by name");
  command->add_option("--override", flags->overrides, "Replace a metadata key: KEY=VALUE");
  command->add_flag("--json", flags->json, "Print a report of every layer as JSON; judges predictors");
  command->callback([flags, body] { *body = [flags] { return run_calibrate(*flags); }; });
}

}  // namespace ganglion::cli
