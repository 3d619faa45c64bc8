// inspect, verify and plan: what a file holds, whether it is whole, what a run would do with it.
#include "ganglion/inspect.h"

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/progress.h"

namespace ganglion::cli {

using nlohmann::ordered_json;

namespace {

struct InspectFlags {
  EngineOptions engine;
  std::vector<std::string> overrides;
  bool json = false;
};

std::string shape_text(const TensorEntry& tensor) {
  std::string text;
  for (const uint64_t size : tensor.shape) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text + "]";
}

std::string one_line(std::string text, size_t limit) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32) c = ' ';
  }
  return text.size() > limit ? text.substr(0, limit) + "..." : text;
}

std::string inspect_text(const ModelContents& contents) {
  std::string text;
  uint64_t bytes = 0;
  for (const ShardEntry& shard : contents.shards) {
    bytes += shard.bytes;
    text += "file " + shard.path + ": " + bytes_text(static_cast<double>(shard.bytes)) + ", GGUF v" +
            std::to_string(shard.version) + (shard.powerinfer ? " of PowerInfer (to be packed)" : "") + ", " +
            std::to_string(shard.tensors) + " tensors\n";
  }
  text += std::to_string(contents.parameters) + " parameters in " + bytes_text(static_cast<double>(bytes)) +
          "\n\nmetadata\n";
  for (const MetadataEntry& entry : contents.metadata) {
    const std::string count = entry.count > 1 ? " x " + std::to_string(entry.count) : "";
    text += "  " + entry.key + " (" + entry.kind + count + "): " + one_line(entry.text, 100) + "\n";
  }
  text += "\ntensors\n";
  for (const TensorEntry& tensor : contents.tensors) {
    char line[256];
    std::snprintf(line, sizeof line, "  %-36s %-8s %-22s %10s\n", tensor.name.c_str(), tensor.type.c_str(),
                  shape_text(tensor).c_str(), bytes_text(static_cast<double>(tensor.bytes)).c_str());
    text += line;
  }
  return text;
}

std::string inspect_json(const ModelContents& contents) {
  ordered_json out;
  out["parameters"] = contents.parameters;
  for (const ShardEntry& shard : contents.shards) {
    out["files"].push_back({{"path", shard.path},
                            {"bytes", shard.bytes},
                            {"version", shard.version},
                            {"powerinfer", shard.powerinfer},
                            {"tensors", shard.tensors}});
  }
  for (const MetadataEntry& entry : contents.metadata) {
    out["metadata"][entry.key] = {{"kind", entry.kind}, {"value", entry.text}, {"count", entry.count}};
  }
  out["tensors"] = ordered_json::array();
  for (const TensorEntry& tensor : contents.tensors) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"type", tensor.type},
                              {"shape", tensor.shape},
                              {"bytes", tensor.bytes},
                              {"file", tensor.shard},
                              {"offset", tensor.offset}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int run_inspect(const InspectFlags& flags) {
  const Result<Overrides> overrides = parse_overrides(flags.overrides);
  if (!overrides.ok()) return fail(overrides.status());
  const Result<ModelContents> contents = inspect_model(flags.engine.model_path, overrides.value());
  if (!contents.ok()) return fail(contents.status());
  const Status written =
      write_out(flags.json ? inspect_json(contents.value()) : inspect_text(contents.value()));
  return written.ok() ? 0 : fail(written);
}

std::string verify_text(const std::vector<ShardVerdict>& verdicts) {
  std::string text;
  std::string told;  // The last fault; that of a single file is the model's, too.
  for (const ShardVerdict& verdict : verdicts) {
    const std::string name = verdict.path.empty() ? "model" : verdict.path;
    if (verdict.status.ok()) {
      text += "ok   " + name;
      if (!verdict.path.empty()) text += "  " + bytes_text(static_cast<double>(verdict.bytes));
    } else if (verdict.path.empty() && verdict.status.message() == told) {
      continue;
    } else {
      told = verdict.status.message();
      text += "BAD  " + name + ": " + told;
    }
    text += verdict.sha256.empty() ? "\n" : "  sha256 " + verdict.sha256 + "\n";
  }
  return text;
}

std::string verify_json(const std::vector<ShardVerdict>& verdicts, bool ok) {
  ordered_json out = {{"ok", ok}, {"files", ordered_json::array()}};
  for (const ShardVerdict& verdict : verdicts) {
    ordered_json entry;
    if (!verdict.path.empty()) entry = {{"path", verdict.path}, {"bytes", verdict.bytes}};
    entry["ok"] = verdict.status.ok();
    if (!verdict.status.ok()) entry["error"] = verdict.status.message();
    if (!verdict.sha256.empty()) entry["sha256"] = verdict.sha256;
    if (verdict.path.empty()) {
      out["model"] = entry;
    } else {
      out["files"].push_back(entry);
    }
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int run_verify(const std::string& path, const VerifyOptions& options, bool json) {
  Stages stages;
  const Result<std::vector<ShardVerdict>> verdicts = verify_model(
      path, options,
      [](void* shown, const char* stage, uint64_t done, uint64_t total) {
        (void)show_stage(shown, stage, done, total);
      },
      &stages);
  stages.line.reset();
  if (!verdicts.ok()) return fail(verdicts.status());
  int code = 0;
  for (const ShardVerdict& verdict : verdicts.value()) {
    if (code == 0 && !verdict.status.ok()) code = exit_code(verdict.status.code());
  }
  const Status written =
      write_out(json ? verify_json(verdicts.value(), code == 0) : verify_text(verdicts.value()));
  return written.ok() ? code : fail(written);
}

std::string plan_json(const PlanSummary& plan, const Prediction* prediction) {
  ordered_json out = {{"architecture", plan.architecture},
                      {"sparsity", plan.sparsity},
                      {"model_bytes", plan.model_bytes},
                      {"budget_bytes", plan.budget_bytes},
                      {"planned_bytes", plan.planned_bytes}};
  for (const MemoryItem& item : plan.items)
    out["items"].push_back({{"name", item.name}, {"bytes", item.bytes}});
  out["streams"] = plan.streams;
  out["resident_weight_bytes"] = plan.resident_weight_bytes;
  out["streamed_bytes_per_token"] = plan.streamed_bytes_per_token;
  out["expert_bytes_per_token"] = plan.expert_bytes_per_token;
  out["expert_cache_bytes"] = plan.expert_cache_bytes;
  if (plan.sparse_bytes_per_token > 0) {
    out["sparse_bytes_per_token"] = plan.sparse_bytes_per_token;
    out["sparse_streamed_bytes_per_token"] = plan.sparse_streamed_bytes_per_token;
    out["neurons_per_token"] = plan.neurons_per_token;
    out["neurons_read_per_token"] = plan.neurons_read_per_token;
  }
  out["context"] = plan.context;
  out["context_trained"] = plan.context_trained;
  out["chunk"] = plan.chunk;
  out["threads"] = plan.threads;
  out["isa"] = plan.isa;
  out["kv_type"] = plan.kv_type;
  out["io"] = plan.io;
  out["device"] = plan.device;
  out["hot_neurons"] = plan.hot_neurons;
  out["notes"] = plan.notes;
  if (prediction != nullptr) {
    out["predicted_decode_tokens_per_s"] = prediction->decode_tokens_per_s;
    out["predicted_prefill_tokens_per_s"] = prediction->prefill_tokens_per_s;
    out["decode_limit"] = prediction->decode_limit;
    out["prefill_limit"] = prediction->prefill_limit;
  }
  return out.dump(1) + "\n";
}

int run_plan(ModelFlags& flags, bool json) {
  const Status finished = flags.finish();
  if (!finished.ok()) return fail(finished);
  const Result<std::unique_ptr<Engine>> engine = Engine::open(flags.engine);
  if (!engine.ok()) return fail(engine.status());
  const PlanSummary& plan = engine.value()->plan();
  const Result<Prediction> predicted = predict_speed(plan);
  const Prediction* prediction = predicted.ok() ? &predicted.value() : nullptr;
  std::string text = json ? plan_json(plan, prediction) : plan_text(plan, prediction);
  if (!json) {
    for (const std::string& note : plan.notes) text += "note: " + note + "\n";
  }
  const Status written = write_out(text);
  return written.ok() ? 0 : fail(written);
}

}  // namespace

void register_inspect(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("inspect", "Print metadata, tensors and sizes of a model file");
  auto flags = std::make_shared<InspectFlags>();
  add_header_flags(*command, &flags->engine, &flags->overrides);
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, body] { *body = [flags] { return run_inspect(*flags); }; });
}

void register_verify(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("verify", "Check every part of a model file; names the bad one");
  auto path = std::make_shared<std::string>();
  auto options = std::make_shared<VerifyOptions>();
  command->add_option("-m,--model,model", *path, "GGUF file, any shard, or a directory")->required();
  command->add_flag("--sha256", options->sha256, "Print each file's SHA-256 (reads all of it)");
  command->add_flag_callback(
      "--no-bundles", [options] { options->bundles = false; },
      "A pack: do not compare its bundles with their checksums (which reads them all)");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([path, options, json, body] {
    *body = [path, options, json] { return run_verify(*path, *options, *json); };
  });
}

void register_plan(CLI::App& app, CommandBody* body) {
  CLI::App* command =
      app.add_subcommand("plan", "Print where the memory of a run would go; reads no weights");
  auto flags = std::make_shared<ModelFlags>();
  auto json = std::make_shared<bool>(false);
  flags->add_to(*command);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([flags, json, body] { *body = [flags, json] { return run_plan(*flags, *json); }; });
}

}  // namespace ganglion::cli
