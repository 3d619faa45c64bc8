// `ganglion pack`: a model with sparse activations becomes a pack.
#include "ganglion/pack.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/progress.h"
#include "ganglion/calibration.h"

namespace ganglion::cli {

namespace {

using nlohmann::ordered_json;

struct PackFlags {
  PackOptions options;
  std::vector<std::string> overrides;
  bool json = false;
};

std::string report_json(const PackOptions& options, const PackReport& report) {
  ordered_json out = {{"model", options.model_path},
                      {"pack", options.output_path},
                      {"bytes", report.bytes},
                      {"predictor_bytes", report.predictor_bytes},
                      {"calibration_tokens", report.tokens},
                      {"ranks", report.ranks},
                      {"carried_predictors", report.carried},
                      {"down", report.down},
                      {"layers", ordered_json::array()}};
  if (report.left_out > 0) out["left_out"] = report.left_out;
  if (!report.source_note.empty()) out["source"] = "PowerInfer: " + report.source_note;
  if (report.judged_tokens > 0) {
    out["judged_tokens"] = report.judged_tokens;
    out["kl_divergence"] = report.divergence;
    out["same_top"] = report.same_top;
    if (report.least_divergence > 0) out["kl_divergence_without_predictors"] = report.least_divergence;
  }
  for (const PackLayerReport& layer : report.layers) {
    out["layers"].push_back({{"active", layer.active},
                             {"recall", layer.recall},
                             {"mass_recall", layer.mass_recall},
                             {"over_prediction", layer.over_prediction},
                             {"top_30_share", layer.top_30}});
  }
  return out.dump(1) + "\n";
}

std::string report_text(const PackOptions& options, const PackReport& report) {
  PackLayerReport mean;
  const double n = static_cast<double>(report.layers.size());
  for (const PackLayerReport& layer : report.layers) {
    mean.active += layer.active / n;
    mean.recall += layer.recall / n;
    mean.mass_recall += layer.mass_recall / n;
    mean.over_prediction += layer.over_prediction / n;
    mean.top_30 += layer.top_30 / n;
  }
  const uint32_t rank = *std::max_element(report.ranks.begin(), report.ranks.end());
  const auto predicted =
      report.ranks.size() - static_cast<size_t>(std::count(report.ranks.begin(), report.ranks.end(), 0U));
  std::string text = options.output_path + ": " + bytes_text(static_cast<double>(report.bytes)) +
                     ", down rows in " + report.down + ", calibrated on " + std::to_string(report.tokens) +
                     " tokens\n";
  if (!report.source_note.empty()) text += "from a PowerInfer model: " + report.source_note + "\n";
  char line[256];
  std::snprintf(line, sizeof line,
                "active %.1f %% of the neurons; the most frequent 30 %% have %.0f %% of the activations\n",
                100 * mean.active, 100 * mean.top_30);
  text += line;
  if (report.left_out > 0) {
    std::snprintf(
        line, sizeof line,
        "lossy: %.0f %% of the SiLU activations are left out, the smallest; all gates are computed\n",
        100 * report.left_out);
    text += line;
  } else if (predicted == 0) {
    text += "no predictors: all gates are computed, and what they open\n";
  } else {
    std::snprintf(
        line, sizeof line,
        "predictors of rank %u in %zu of %zu layers, %s: %.2f neurons per active one, finding %.1f %% of "
        "them and %.2f %% of their mass\n",
        rank, predicted, report.ranks.size(), bytes_text(static_cast<double>(report.predictor_bytes)).c_str(),
        mean.over_prediction, 100 * mean.recall, 100 * mean.mass_recall);
    text += line;
    if (report.carried > 0)
      text += std::to_string(report.carried) + " of them are those that the model carries\n";
  }
  if (report.judged_tokens == 0) return text;
  std::snprintf(line, sizeof line,
                "against exact passes, %zu tokens held out: KL divergence %.5f nat, same most likely token "
                "%.1f %%\n",
                report.judged_tokens, report.divergence, 100 * report.same_top);
  text += line;
  if (report.divergence > options.divergence) {
    std::snprintf(line, sizeof line, "that is more than the %g asked for (--kl)", options.divergence);
    text += line;
    if (report.least_divergence > 0) {
      std::snprintf(line, sizeof line, ": with every neuron it is %.5f%s", report.least_divergence,
                    report.down == "q6" || report.down == "q4"
                        ? ", down rows of more bits come nearer (--down q8)"
                        : "");
      text += line;
    }
    text += "\n";
  }
  return text;
}

int run_pack(PackFlags& flags) {
  const Result<Overrides> overrides = parse_overrides(flags.overrides);
  if (!overrides.ok()) return fail(overrides.status());
  PackOptions& options = flags.options;
  options.overrides = overrides.value();
  install_signal_handlers();
  Stages stages;
  const Result<PackReport> report = pack_model(options, show_stage, &stages);
  stages.line.reset();
  if (!report.ok()) return fail(report.status());
  const Status written =
      write_out(flags.json ? report_json(options, report.value()) : report_text(options, report.value()));
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_pack(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand(
      "pack",
      "Pack a model with sparse activations (ReLU kinds), so that single neurons can be read and cached");
  auto flags = std::make_shared<PackFlags>();
  PackOptions& o = flags->options;
  command
      ->add_option("-m,--model,model", o.model_path,
                   "GGUF file (PowerInfer's, too), any shard, or a directory")
      ->required();
  command->add_option("-o,--output", o.output_path, "The pack to write")->required();
  CLI::Option* calibration =
      command->add_option("--calibration", o.calibration_path, "What ganglion calibrate made of this model");
  CLI::Option* text = command->add_option(
      "-f,--file", o.text_path, "Text to calibrate and judge the pack on (default: one is shipped)");
  command->add_flag("--random-tokens", o.random_tokens, "Calibrate on random tokens (synthetic models)")
      ->excludes(calibration)
      ->excludes(text);
  bounded(command->add_option("--tokens", o.tokens, "Tokens to calibrate on, spread evenly over the text")
              ->capture_default_str()
              ->excludes(calibration),
          kMostCalibrationTokens);
  command->add_option("--mem", o.memory, "Memory budget")->capture_default_str();
  command->add_option("-t,--threads", o.threads, "Threads; 0: one per core")->capture_default_str();
  command
      ->add_option("--down", o.down,
                   "Type of the transposed down rows: auto (by the source: q6, q8 or f16, and q4 of "
                   "PowerInfer's Q4_0), q4, q6, q8, f16, f32")
      ->capture_default_str();
  command->add_flag("--slim", o.slim,
                    "Leave out the down matrices as they are in the model: a smaller pack, whose prompts are "
                    "slower and use the transposed down rows");
  bounded(
      command->add_option("--rank", o.rank,
                          "Rank of the predictors, a multiple of 32; 0: none, exact (default: by layer, 192 "
                          "where it pays)"),
      4096);
  command
      ->add_option("--predictor", o.predictor,
                   "svd: fitted; mlp: those that the model carries (TurboSparse, PowerInfer); auto: by "
                   "layer, what costs less")
      ->capture_default_str();
  CLI::Option* sparsify = command->add_option(
      "--sparsify", o.sparsify,
      "For SiLU models, lossy: cats:0.5 leaves out the smaller half of the activations, cats "
      "as many as keep --kl (here 0.01 where it is not given)");
  CLI::Option* recall =
      command->add_option("--recall", o.recall, "Share of the activation mass to find, at least")
          ->capture_default_str()
          ->check(CLI::Range(0.5, 1.0));
  CLI::Option* divergence =
      command
          ->add_option(
              "--kl", o.divergence,
              "KL divergence in nat from exact passes to keep, on tokens held out: recall is raised until "
              "it is met; 0: not measured, as with --recall or --random-tokens")
          ->capture_default_str()
          ->check(CLI::Range(0.0, 10.0));
  command->add_option("--isa", o.isa, "Kernels by name");
  command->add_option("--override", flags->overrides, "Replace a metadata key: KEY=VALUE");
  command->add_flag("--json", flags->json, "Print a report of every layer as JSON");
  command->callback([flags, body, sparsify, recall, divergence] {
    constexpr double kSparsifiedDivergence = 0.01;
    if (sparsify->count() > 0 && divergence->count() == 0) flags->options.divergence = kSparsifiedDivergence;
    if (recall->count() > 0 && divergence->count() == 0) flags->options.divergence = 0;
    *body = [flags] { return run_pack(*flags); };
  });
}

}  // namespace ganglion::cli
