// `ganglion convert`: a Hugging Face directory becomes a GGUF file.
#include "ganglion/convert.h"

#include <memory>

#include "cli/command.h"
#include "cli/progress.h"

namespace ganglion::cli {

namespace {

bool show(void* context, uint64_t done, uint64_t total) {
  static_cast<Progress*>(context)->update(done, total);
  return !interrupted().load();
}

std::string names(const std::vector<std::string>& all) {
  return all[0] + (all.size() > 1 ? " and " + std::to_string(all.size() - 1) + " more" : "");
}

int run_convert(const ConvertOptions& options) {
  install_signal_handlers();
  auto progress = std::make_unique<Progress>("converting");
  const Result<ConvertReport> report = convert_model(options, show, progress.get());
  progress.reset();
  if (!report.ok()) return fail(report.status());
  const ConvertReport& r = report.value();
  std::string text = options.output_path + ": " + r.architecture + " (" + r.activation + "), " +
                     std::to_string(r.tensors) + " tensors, " + bytes_text(static_cast<double>(r.bytes)) +
                     "\n";
  if (!r.skipped.empty()) text += "left out, not needed: " + names(r.skipped) + "\n";
  if (!r.other_type.empty())
    text += "F16, since their rows are no whole blocks: " + names(r.other_type) + "\n";
  const Status written = write_out(text);
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_convert(CLI::App& app, CommandBody* body) {
  CLI::App* command =
      app.add_subcommand("convert", "Turn a Hugging Face directory (safetensors) into a GGUF file");
  auto options = std::make_shared<ConvertOptions>();
  command->add_option("directory", options->directory, "With config.json, *.safetensors, tokenizer.json")
      ->required();
  command->add_option("-o,--output", options->output_path, "The GGUF file to write")->required();
  command->add_option(
      "--type", options->type,
      "Type of matrices: f32, f16, bf16, q8_0 or q4_0 (embedding and head then q8_0); default: "
      "as stored");
  command->add_option("--pre", options->pre_tokenizer,
                      "Name of the pre-tokenizer, where it is not recognised");
  command->callback([options, body] { *body = [options] { return run_convert(*options); }; });
}

}  // namespace ganglion::cli
