// The server's pure parts: requests read, output parsed, stops found, grammars rewritten.
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/base64.h"
#include "server/call_scanner.h"
#include "server/gbnf.h"
#include "server/json.h"
#include "server/output_parser.h"
#include "server/stop_text.h"

namespace ganglion::server {
namespace {

struct Parsed {
  std::string content = {};
  std::string reasoning = {};
  std::vector<std::string> names = {};
  std::vector<std::string> arguments = {};
};

Parsed parse(const OutputFormat& format, const std::string& text, size_t piece) {
  const std::unique_ptr<OutputParser> parser = OutputParser::create(format);
  std::vector<OutputDelta> deltas;
  for (size_t i = 0; i < text.size(); i += piece) parser->push(text.substr(i, piece), &deltas);
  parser->finish(&deltas);
  Parsed parsed;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::kContent:
        parsed.content += delta.text;
        break;
      case OutputDelta::Kind::kReasoning:
        parsed.reasoning += delta.text;
        break;
      case OutputDelta::Kind::kToolStart:
        EXPECT_EQ(delta.tool, parsed.names.size());
        parsed.names.push_back(delta.text);
        parsed.arguments.emplace_back();
        break;
      case OutputDelta::Kind::kToolArguments:
        EXPECT_LT(delta.tool, parsed.arguments.size());
        parsed.arguments[delta.tool] += delta.text;
        break;
    }
  }
  return parsed;
}

// However the text is cut into pieces, the outcome is the same.
void expect_parsed(const OutputFormat& format, const std::string& text, const Parsed& expected) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size() + 1}) {
    const Parsed parsed = parse(format, text, piece);
    EXPECT_EQ(parsed.content, expected.content) << text << " by " << piece;
    EXPECT_EQ(parsed.reasoning, expected.reasoning) << text << " by " << piece;
    EXPECT_EQ(parsed.names, expected.names) << text << " by " << piece;
    EXPECT_EQ(parsed.arguments, expected.arguments) << text << " by " << piece;
  }
}

TEST(StopText, HoldsBackWhatMayBecomeAStop) {
  StopText stop({"END", "\n\n"});
  EXPECT_EQ(stop.push("abE"), "ab");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_EQ(stop.push("x\n"), "ENx");
  EXPECT_EQ(stop.finish(), "\n");
  EXPECT_FALSE(stop.found());
}

TEST(StopText, ShowsNothingFromTheFirstStopOn) {
  StopText stop({"later", "END", ""});
  EXPECT_EQ(stop.push("one EN"), "one ");
  EXPECT_EQ(stop.push("D two later"), "");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.which(), "END");
  EXPECT_EQ(stop.push("three"), "");
}

TEST(OutputParser, PlainTextPassesUnchanged) {
  expect_parsed({}, "  Hello <tool_call> \n world \n", {.content = "  Hello <tool_call> \n world \n"});
  expect_parsed({.tools = ToolFormat::kHermes}, "a < b {\"x\": 1}", {.content = "a < b {\"x\": 1}"});
}

TEST(OutputParser, ReasoningIsSplitOff) {
  expect_parsed({.reasoning = true}, "<think>\nLet me see.\n</think>\n\nFour.",
                {.content = "Four.", .reasoning = "Let me see."});
  expect_parsed({.reasoning = true, .begins_in_reasoning = true}, "\nHm < 3\n</think>Four.",
                {.content = "Four.", .reasoning = "Hm < 3"});
  expect_parsed({.reasoning = true}, "No <think> here", {.content = "No <think> here"});
}

TEST(OutputParser, HermesCallsAmongText) {
  expect_parsed(
      {.tools = ToolFormat::kHermes},
      "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\\\"}rich\"}}\n"
      "</tool_call>\n<tool_call>{\"arguments\": [1, {}], \"name\": \"two\"}</tool_call>",
      {.content = "I look.",
       .names = {"get_weather", "two"},
       .arguments = {"{\"city\": \"Z\\\"}rich\"}", "[1, {}]"}});
}

TEST(OutputParser, HermesAfterReasoning) {
  expect_parsed({.tools = ToolFormat::kHermes, .reasoning = true},
                "<think>why</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
                {.reasoning = "why", .names = {"f"}, .arguments = {"{}"}});
}

TEST(OutputParser, WhatOnlyLooksLikeACallIsContent) {
  expect_parsed({.tools = ToolFormat::kHermes}, "<tool_call>nonsense", {.content = "<tool_call>nonsense"});
  expect_parsed({.tools = ToolFormat::kGeneric}, "{\"answer\": 42}", {.content = "{\"answer\": 42}"});
  expect_parsed({.tools = ToolFormat::kGeneric}, "{\"name\": \"f\", \"argum",
                {.content = "{\"name\": \"f\", \"argum"});
}

TEST(OutputParser, Llama3CallsWithAndWithoutMark) {
  const Parsed call = {.names = {"f"}, .arguments = {"{\"x\": 1}"}};
  expect_parsed({.tools = ToolFormat::kLlama3}, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", call);
  expect_parsed(
      {.tools = ToolFormat::kLlama3},
      "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"x\": 1}}<|eom_id|>", call);
}

TEST(OutputParser, MistralListsAndNames) {
  const Parsed calls = {.names = {"f", "g"}, .arguments = {"{\"x\": 1}", "{}"}};
  expect_parsed(
      {.tools = ToolFormat::kMistral},
      "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
      calls);
  expect_parsed({.tools = ToolFormat::kMistral},
                "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[CALL_ID]a1[ARGS]{}", calls);
}

TEST(OutputParser, DeepSeekBothLayouts) {
  const Parsed call = {.content = "Yes.", .names = {"f"}, .arguments = {"{\"x\": 1}"}};
  expect_parsed({.tools = ToolFormat::kDeepSeek},
                "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": "
                "1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                call);
  expect_parsed({.tools = ToolFormat::kDeepSeek},
                "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": "
                "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                call);
}

TEST(OutputParser, HarmonyChannels) {
  expect_parsed(
      {.tools = ToolFormat::kHarmony},
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
      "<|constrain|>json<|message|>{\"x\":1}<|call|>",
      {.reasoning = "Hm.", .names = {"f"}, .arguments = {"{\"x\":1}"}});
  expect_parsed({.tools = ToolFormat::kHarmony}, "<|channel|>final<|message|>Four.<|return|>",
                {.content = "Four."});
  expect_parsed({.tools = ToolFormat::kHarmony}, "Plain.", {.content = "Plain."});
}

TEST(OutputParser, ArgumentsWrittenAsTextAndWrappedCalls) {
  expect_parsed(
      {.tools = ToolFormat::kGeneric},
      "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}",
      {.names = {"f"}, .arguments = {"{\"x\": 1}"}});
  expect_parsed({.tools = ToolFormat::kGeneric}, "[{\"name\": \"f\"}, {\"name\": \"g\"}]",
                {.names = {"f", "g"}, .arguments = {"{}", "{}"}});
}

TEST(Json, RefusesWhatIsMalformedByName) {
  EXPECT_FALSE(parse_object("[1]").ok());
  EXPECT_FALSE(parse_object("{\"a\": }").ok());
  EXPECT_FALSE(parse_object("{\"a\": \"\xff\"}").ok());
  EXPECT_FALSE(parse_object("").ok());
  EXPECT_NE(parse_object(std::string(100000, '[')).status().message().find("nested"), std::string::npos);
  EXPECT_TRUE(parse_object("{\"a\": \"[[[\\\"[\"}").ok());
}

TEST(Fields, NullAndAbsentKeepTheDefaultWrongKindsAreNamed) {
  const Json request = Json::parse(R"({"a": null, "b": "x", "c": 2.0, "d": 1e300, "e": 4000000000})");
  float number = 3;
  int32_t integer = 4;
  Fields fields(request);
  fields.read("a", &number);
  fields.read("absent", &number);
  fields.read("c", &integer);
  EXPECT_TRUE(fields.status().ok());
  EXPECT_EQ(number, 3);
  EXPECT_EQ(integer, 2);
  fields.read("e", &integer);
  EXPECT_NE(fields.status().message().find("e: "), std::string::npos);
  Fields others(request);
  others.read("b", &number);
  EXPECT_EQ(others.status().message(), "b: must be a number");
}

TEST(Gbnf, IsRewrittenAsLark) {
  const Result<std::string> lark =
      lark_of("root ::= greeting \" \" [a-z/]+ # end\ngreeting ::= \"hi\" |\n  \"ho\"\n");
  ASSERT_TRUE(lark.ok()) << lark.status().message();
  EXPECT_EQ(lark.value(), "start: rgreeting \" \" /[a-z\\/]/+\nrgreeting: \"hi\" | \"ho\"\n");
  EXPECT_EQ(lark_of("start: \"a\"").value(), "start: \"a\"");
}

TEST(Gbnf, ErrorsHaveALine) {
  EXPECT_NE(lark_of("root ::= \"a\n").status().message().find("line 1"), std::string::npos);
  EXPECT_NE(lark_of("x ::= \"a\"").status().message().find("root"), std::string::npos);
  EXPECT_NE(lark_of("root ::= y").status().message().find("'y'"), std::string::npos);
  EXPECT_FALSE(lark_of("root ::= (\"a\"").ok());
  EXPECT_FALSE(lark_of("root ::= ]").ok());
}

TEST(Base64, PadsByLength) {
  EXPECT_EQ(base64("Man"), "TWFu");
  EXPECT_EQ(base64("Ma"), "TWE=");
  EXPECT_EQ(base64("M"), "TQ==");
  EXPECT_EQ(base64(""), "");
}

TEST(ApiErrors, ContextErrorHasBothNumbersAndTheWord) {
  const Json error = openai_error(context_error(100, 64))["error"];
  EXPECT_EQ(error["n_prompt_tokens"], 100);
  EXPECT_EQ(error["n_ctx"], 64);
  EXPECT_EQ(error["type"], "exceed_context_size_error");
  EXPECT_NE(error["message"].get<std::string>().find("context_length_exceeded"), std::string::npos);
}

}  // namespace
}  // namespace ganglion::server
