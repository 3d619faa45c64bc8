// tokenize, detokenize and template: the text side of a model, one item or a JSON object per line.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "ganglion/chat.h"

namespace ganglion::cli {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMostTextBytes = size_t{64} << 20;

struct TokenFlags {
  EngineOptions engine;
  std::vector<std::string> overrides;
  std::string prompt;
  std::string file;
  std::string ids;
  bool add_special = true;
  bool parse_special = true;
  bool json = false;
  bool jsonl = false;
};

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<std::unique_ptr<TextModel>> open_text(const TokenFlags& flags) {
  const Result<Overrides> overrides = parse_overrides(flags.overrides);
  if (!overrides.ok()) return overrides.status();
  Result<std::unique_ptr<TextModel>> model = TextModel::open(flags.engine.model_path, overrides.value());
  if (model.ok()) {
    for (const std::string& warning : model.value()->warnings())
      std::fprintf(stderr, "note: %s\n", warning.c_str());
  }
  return model;
}

// Calls answer(object) for every line of standard input (or of `file`) that holds a JSON object, and prints
// what it returns. A line that is none is answered by an "error".
int for_each_line(const std::string& file, const std::function<ordered_json(const ordered_json&)>& answer) {
  std::ifstream opened;
  if (!file.empty()) {
    opened.open(file);
    if (!opened) return fail(Status(Code::kNotFound, "cannot open '" + file + "'"));
  }
  std::istream& in = file.empty() ? std::cin : opened;
  std::string line;
  while (std::getline(in, line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ordered_json object;
    if (!nests_too_deeply(line)) object = ordered_json::parse(line, nullptr, false);
    ordered_json result = {{"error", "the line is not a JSON object"}};
    if (object.is_object()) {
      try {
        result = answer(object);
      } catch (const ordered_json::exception& error) {
        result = {
            {"error", std::string("the object lacks a field or has one of another kind: ") + error.what()}};
      }
    }
    const Status written = write_out(dump(result));
    if (!written.ok()) return fail(written);
  }
  return 0;
}

ordered_json encode_object(const TextModel& model, const TokenFlags& flags, const ordered_json& object) {
  const Result<std::vector<int32_t>> ids =
      model.encode(object.at("text").get<std::string>(), object.value("add_special", flags.add_special),
                   object.value("parse_special", flags.parse_special));
  if (!ids.ok()) return {{"error", ids.status().message()}};
  return {{"ids", ids.value()}};
}

int run_tokenize(const TokenFlags& flags) {
  const Result<std::unique_ptr<TextModel>> model = open_text(flags);
  if (!model.ok()) return fail(model.status());
  if (flags.jsonl) {
    return for_each_line(
        flags.file, [&](const ordered_json& object) { return encode_object(*model.value(), flags, object); });
  }
  bool given = false;
  const Result<std::string> text = read_prompt(flags.prompt, flags.file, kMostTextBytes, &given);
  if (!text.ok()) return fail(text.status());
  const Result<std::vector<int32_t>> ids =
      model.value()->encode(text.value(), flags.add_special, flags.parse_special);
  if (!ids.ok()) return fail(ids.status());
  std::string out;
  if (flags.json) {
    out = dump({{"ids", ids.value()}});
  } else {
    for (const int32_t id : ids.value()) out += (out.empty() ? "" : " ") + std::to_string(id);
    out += "\n";
  }
  const Status written = write_out(out);
  return written.ok() ? 0 : fail(written);
}

// Ids separated by commas or spaces, brackets allowed.
Result<std::vector<int32_t>> parse_ids(std::string text, const TextModel& model) {
  for (char& c : text) {
    if (c == ',' || c == '[' || c == ']') c = ' ';
  }
  std::istringstream words(text);
  std::vector<int32_t> ids;
  int64_t id = 0;
  while (words >> id) {
    if (id < 0 || id >= model.vocab_size()) {
      return Status(Code::kInvalidArgument, "token " + std::to_string(id) + " is outside the vocabulary of " +
                                                std::to_string(model.vocab_size()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (!words.eof()) return Status(Code::kInvalidArgument, "token ids must be integers");
  return ids;
}

int run_detokenize(const TokenFlags& flags) {
  const Result<std::unique_ptr<TextModel>> model = open_text(flags);
  if (!model.ok()) return fail(model.status());
  if (flags.jsonl) {
    return for_each_line(flags.file, [&](const ordered_json& object) -> ordered_json {
      const auto ids = object.at("ids").get<std::vector<int32_t>>();
      for (const int32_t id : ids) {
        if (id < 0 || id >= model.value()->vocab_size()) {
          return {{"error", "token " + std::to_string(id) + " is outside the vocabulary"}};
        }
      }
      return {{"text", model.value()->decode(ids, object.value("parse_special", flags.parse_special))}};
    });
  }
  bool given = true;
  const Result<std::string> text = flags.ids.empty()
                                       ? read_prompt(flags.prompt, flags.file, kMostTextBytes, &given)
                                       : Result<std::string>(flags.ids);
  if (!text.ok()) return fail(text.status());
  const Result<std::vector<int32_t>> ids = parse_ids(text.value(), *model.value());
  if (!ids.ok()) return fail(ids.status());
  const std::string decoded = model.value()->decode(ids.value(), flags.parse_special);
  const Status written = write_out(flags.json ? dump({{"text", decoded}}) : decoded + "\n");
  return written.ok() ? 0 : fail(written);
}

struct TemplateFlags {
  TokenFlags model;
  std::string template_file;
  std::string messages_file;
  bool jsonl = false;
};

int run_template(TemplateFlags& flags) {
  std::string source;
  ordered_json special;
  if (!flags.template_file.empty()) {
    Result<std::string> text = read_small_file(flags.template_file);
    if (!text.ok()) return fail(text.status());
    source = text.take();
  }
  if (!flags.model.engine.model_path.empty()) {
    const Result<std::unique_ptr<TextModel>> model = open_text(flags.model);
    if (!model.ok()) return fail(model.status());
    special["bos_token"] = model.value()->token_name(model.value()->bos());
    special["eos_token"] = model.value()->token_name(model.value()->eos());
    if (source.empty()) source = model.value()->chat_template();
  }
  if (source.empty() && (flags.model.engine.model_path.empty() || !flags.template_file.empty())) {
    return fail(
        Status(Code::kInvalidArgument, flags.template_file.empty()
                                           ? "nothing to render with - give -m MODEL or --template FILE"
                                           : "the template '" + flags.template_file + "' is empty"));
  }
  if (source.empty()) {
    return fail(Status(Code::kUnsupported,
                       "there is no chat template: the model has none - give one with --template FILE"));
  }
  const auto render = [&](ordered_json request) {
    if (!request.contains("special_tokens") && !special.is_null()) request["special_tokens"] = special;
    return render_chat(source, request.dump());
  };
  if (flags.jsonl) {
    return for_each_line(flags.messages_file, [&](const ordered_json& object) -> ordered_json {
      const Result<std::string> text = render(object);
      if (!text.ok()) return {{"error", text.status().message()}};
      return {{"text", text.value()}};
    });
  }
  bool given = false;
  const Result<std::string> messages = read_prompt("", flags.messages_file, kMostTextBytes, &given);
  if (!messages.ok()) return fail(messages.status());
  if (nests_too_deeply(messages.value())) {
    return fail(Status(Code::kInvalidArgument, "the messages nest more than 200 levels deep"));
  }
  const ordered_json request = ordered_json::parse(messages.value(), nullptr, false);
  if (!request.is_object()) return fail(Status(Code::kInvalidArgument, "the messages are not a JSON object"));
  const Result<std::string> text = render(request);
  if (!text.ok()) return fail(text.status());
  const Status written = write_out(text.value());
  return written.ok() ? 0 : fail(written);
}

void add_token_flags(CLI::App& command, TokenFlags* flags) {
  add_header_flags(command, &flags->engine, &flags->overrides);
  command.add_option("-p,--prompt", flags->prompt, "Text");
  command.add_option("-f,--file", flags->file, "File with the text (default: standard input)");
  command.add_flag("--add-special,!--no-add-special", flags->add_special,
                   "Add begin and end tokens as the model asks");
  command.add_flag("--parse-special,!--no-parse-special", flags->parse_special,
                   "Control tokens in the text are tokens; in detokenize: write them out");
  command.add_flag("--json", flags->json, "Print JSON");
  command.add_flag("--jsonl", flags->jsonl, "A JSON object per input line, one per output line");
}

}  // namespace

void register_tokenize(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids");
  auto flags = std::make_shared<TokenFlags>();
  add_token_flags(*command, flags.get());
  command->callback([flags, body] { *body = [flags] { return run_tokenize(*flags); }; });
}

void register_detokenize(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("detokenize", "Turn token ids into text");
  auto flags = std::make_shared<TokenFlags>();
  add_token_flags(*command, flags.get());
  command->add_option("--ids", flags->ids, "Ids, separated by commas");
  command->callback([flags, body] { *body = [flags] { return run_detokenize(*flags); }; });
}

void register_template(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("template", "Render messages with a chat template");
  auto flags = std::make_shared<TemplateFlags>();
  command->add_option("-m,--model", flags->model.engine.model_path, "Model whose template is used");
  command->add_option("--override,--override-kv", flags->model.overrides, "Replace a metadata key")
      ->type_name("KEY=VALUE");
  command->add_option("--template", flags->template_file, "File with a Jinja template");
  command->add_option(
      "--messages", flags->messages_file,
      "JSON object with messages, tools, kwargs, special_tokens, now (default: standard input)");
  command->add_flag("--jsonl", flags->jsonl, "One such object per line, answered by text or error");
  command->callback([flags, body] { *body = [flags] { return run_template(*flags); }; });
}

}  // namespace ganglion::cli
