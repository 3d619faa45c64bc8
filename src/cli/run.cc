// run: one prompt, or a chat on the terminal.
#include <unistd.h>

#include <iostream>

#include "cli/conversation.h"
#include "cli/drafting.h"
#include "cli/sampling_flags.h"
#include "ganglion/chat.h"

namespace ganglion::cli {

namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  LogFlags log;
  DraftFlags draft;
  std::string prompt;
  std::string prompt_file;
  std::string system_prompt;
  std::string template_file;
  int64_t most = -1;
  bool raw = false;
  bool single_turn = false;
};

// Which template a chat uses. Never another one than the model's or the one asked for.
Result<std::string> chat_template(const RunFlags& flags, const TextModel& text) {
  if (flags.template_file.empty()) return text.chat_template();
  return read_small_file(flags.template_file);
}

Status cannot_chat(const std::string& source) {
  if (!chat_available()) {
    return Status(Code::kUnsupported,
                  "chat needs the template engine, which this build lacks (built without Rust) - "
                  "give a plain prompt with --raw -p");
  }
  if (source.empty()) {
    return Status(Code::kUnsupported,
                  "the model has no chat template - give one with --chat-template-file, or a plain "
                  "prompt with --raw -p");
  }
  return ok_status();
}

void report(const RunFlags& flags, const AnswerFacts& facts, const PlanSummary& plan) {
  if (facts.context_full) {
    std::fprintf(stderr, "note: the context of %zu tokens is full - raise it with -c\n", plan.context);
  }
  if (!flags.model.quiet) std::fprintf(stderr, "\n%s", facts_text(facts, plan).c_str());
}

// Longer prompts than these are refused unread: splitting them into tokens would itself take memory.
constexpr size_t kMostPromptBytes = size_t{4} << 20;
constexpr size_t kMostBytesPerToken = 64;

// One line, or several between """ and """. False at the end of the input or an interruption at the prompt.
bool read_turn(std::string* text) {
  std::fprintf(stderr, "> ");
  if (!std::getline(std::cin, *text)) return false;
  if (text->rfind("\"\"\"", 0) != 0) return true;
  text->erase(0, 3);
  const auto ends = [&] { return text->size() >= 3 && text->compare(text->size() - 3, 3, "\"\"\"") == 0; };
  std::string line;
  while (!ends()) {
    std::fprintf(stderr, ". ");
    if (!std::getline(std::cin, line)) {
      if (!interrupted()) return false;
      // Only this message is given up.
      interrupted() = false;
      std::cin.clear();
      std::fprintf(stderr, "\n");
      text->clear();
      return true;
    }
    *text += (text->empty() ? "" : "\n") + line;
  }
  text->resize(text->size() - 3);
  return true;
}

void start_over(const RunFlags& flags, Conversation& conversation) {
  conversation.clear();
  if (!flags.system_prompt.empty()) conversation.add_message("system", flags.system_prompt);
}

int chat(const RunFlags& flags, const PlanSummary& plan, Conversation& conversation) {
  std::fprintf(
      stderr, "Ctrl-C stops an answer, /clear forgets, /bye leaves, \"\"\" begins and ends several lines.\n");
  for (;;) {
    std::string text;
    if (!read_turn(&text)) return interrupted() ? 130 : 0;
    if (text == "/bye" || text == "/exit" || text == "/quit") return 0;
    if (text.empty()) continue;
    if (text == "/clear") {
      start_over(flags, conversation);
      continue;
    }
    if (text[0] == '/') {
      std::fprintf(stderr, "unknown command '%s'; there are /clear and /bye\n", text.c_str());
      continue;
    }
    conversation.add_message("user", text);
    Result<AnswerFacts> facts = conversation.answer(flags.most);
    if (facts.status().code() == Code::kContextOverflow) {
      std::fprintf(stderr, "note: the context is full, the conversation starts over with this message\n");
      start_over(flags, conversation);
      conversation.add_message("user", text);
      facts = conversation.answer(flags.most);
    }
    if (!facts.ok()) {
      const int code = fail(facts.status());
      if (facts.status().code() != Code::kContextOverflow) return code;
      start_over(flags, conversation);
      continue;
    }
    report(flags, facts.value(), plan);
    interrupted() = false;
    if (flags.single_turn) return 0;
  }
}

int answer_once(const RunFlags& flags, const PlanSummary& plan, Conversation& conversation,
                const std::string& prompt, bool plain) {
  if (!plain) conversation.add_message("user", prompt);
  const Result<AnswerFacts> facts =
      plain ? conversation.complete(prompt, flags.most) : conversation.answer(flags.most);
  if (!facts.ok()) return fail(facts.status());
  report(flags, facts.value(), plan);
  return facts.value().interrupted ? 130 : 0;
}

int run_run(RunFlags& flags) {
  const Status parsed = flags.model.finish();
  if (!parsed.ok()) return fail(parsed);
  bool given = false;
  const Result<std::string> prompt = read_prompt(flags.prompt, flags.prompt_file, kMostPromptBytes, &given);
  if (!prompt.ok()) return fail(prompt.status());
  if (given && prompt.value().empty() && !flags.raw) {
    return fail(Status(Code::kInvalidArgument, "the prompt is empty"));
  }
  Drafting drafting;
  const Status prepared = drafting.prepare(flags.draft, &flags.model.engine);
  if (!prepared.ok()) return fail(prepared);
  Result<std::unique_ptr<Engine>> opened = open_engine(flags.model);
  if (!opened.ok()) return fail(opened.status());
  Engine& engine = *opened.value();
  if (prompt.value().size() / kMostBytesPerToken > engine.plan().context) {
    return fail(Status(Code::kContextOverflow, "the prompt of " +
                                                   bytes_text(static_cast<double>(prompt.value().size())) +
                                                   " cannot fit the context of " +
                                                   std::to_string(engine.plan().context) + " tokens (-c)"));
  }
  const Status finished = flags.sampling.finish(engine.text());
  if (!finished.ok()) return fail(finished);
  const Result<std::string> source = chat_template(flags, engine.text());
  if (!source.ok()) return fail(source.status());
  const Status no_chat = cannot_chat(source.value());
  const bool asks_for_chat =
      !given || flags.single_turn || !flags.system_prompt.empty() || !flags.template_file.empty();
  if (!no_chat.ok() && asks_for_chat && !flags.raw) return fail(no_chat);
  if (!no_chat.ok() && !flags.raw && !flags.model.quiet) {
    std::fprintf(stderr, "note: the prompt is continued as it is: %s\n", no_chat.message().c_str());
  }
  Result<std::unique_ptr<Sampler>> sampler =
      Sampler::create(flags.sampling.options, engine.text().vocab_size(), &engine.text());
  if (!sampler.ok()) return fail(sampler.status());
  if (!flags.model.quiet) {
    std::fprintf(stderr, "sampling: %s\n\n", sampler.value()->describe().c_str());
  }
  Result<std::unique_ptr<Session>> session = engine.new_session();
  if (!session.ok()) return fail(session.status());
  const Result<GenerationOptions> generation = drafting.load(engine);
  if (!generation.ok()) return fail(generation.status());
  Conversation conversation(engine, *session.value(), *sampler.value(), generation.value());
  Result<std::unique_ptr<PassLog>> log = PassLog::create(flags.log, engine, flags.model.engine.model_path);
  if (!log.ok()) return fail(log.status());
  conversation.set_log(log.value().get());
  conversation.set_template(source.value());
  if (!flags.system_prompt.empty()) conversation.add_message("system", flags.system_prompt);
  const int code =
      given ? answer_once(flags, engine.plan(), conversation, prompt.value(), flags.raw || !no_chat.ok())
            : chat(flags, engine.plan(), conversation);
  const Status logged = log.value()->finish();
  return code == 0 && !logged.ok() ? fail(logged) : code;
}

}  // namespace

void register_run(CLI::App& app, CommandBody* body) {
  CLI::App* command = app.add_subcommand("run", "Answer a prompt, or chat");
  auto flags = std::make_shared<RunFlags>();
  flags->model.add_to(*command);
  command->add_option("-p,--prompt", flags->prompt,
                      "Prompt (default: chat on a terminal, else standard input)");
  command->add_option("-f,--file", flags->prompt_file, "File with the prompt");
  command->add_option("--system-prompt,--system", flags->system_prompt, "System message (also -sys)");
  command
      ->add_option("-n,--predict,--n-predict", flags->most, "Tokens to generate at most (-1: until it ends)")
      ->capture_default_str();
  command->add_flag("--single-turn", flags->single_turn, "Leave after one answer (also -st)");
  command->add_flag("--raw,--no-conversation", flags->raw,
                    "Continue the prompt as it is, without the chat template");
  command->add_option("--chat-template-file", flags->template_file, "Jinja template instead of the model's");
  flags->draft.add_to(*command);
  flags->log.add_to(*command);
  flags->sampling.add_to(*command);
  command->callback([flags, body] { *body = [flags] { return run_run(*flags); }; });
}

}  // namespace ganglion::cli
