// The golden texts of known templates (they belong to others and are not in the repository), and small
// templates of our own for every place where the library alone would differ from jinja2.
#include "ganglion/chat.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace ganglion {
namespace {

using Json = nlohmann::ordered_json;

class Chat : public testing::Test {
 protected:
  void SetUp() override {
    if (!chat_available()) GTEST_SKIP() << "CHAT TEMPLATES ARE NOT TESTED: built without Rust";
  }
};

std::string request(const std::string& messages = R"([{"role": "user", "content": "hi"}])",
                    const std::string& kwargs = "{}") {
  return R"({"messages": )" + messages + R"(, "tools": null, "kwargs": )" + kwargs +
         R"(, "special_tokens": {"bos_token": "<s>"}, "now": "2025-03-14T15:09:26"})";
}

/// The text, or "code: message".
std::string render(std::string_view source, const std::string& json) {
  auto result = render_chat(source, json);
  return result.ok() ? result.take()
                     : std::string(code_name(result.status().code())) + ": " + result.status().message();
}

std::string render(std::string_view source) {
  return render(source, request());
}

/// Renders with variables.
std::string with(std::string_view source, const std::string& kwargs) {
  return render(source, request("[]", kwargs));
}

Status failure(std::string_view source, const std::string& json = request()) {
  const auto result = render_chat(source, json);
  EXPECT_FALSE(result.ok()) << "rendered " << (result.ok() ? result.value().substr(0, 200) : "");
  return result.status();
}

bool has(const Status& status, std::string_view part) {
  return status.message().find(part) != std::string::npos;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void check_case(const std::string& source, const Json& head, const Json& entry, const std::string& where) {
  Json json;
  for (const char* field : {"messages", "tools", "kwargs"}) json[field] = entry.at(field);
  for (const char* field : {"special_tokens", "now"}) json[field] = head.at(field);
  const auto result = render_chat(source, json.dump());
  if (entry.contains("expected")) {
    ASSERT_TRUE(result.ok()) << where << ": " << result.status().message();
    EXPECT_EQ(result.value(), entry.at("expected").get<std::string>()) << where;
    return;
  }
  const Json& error = entry.at("error");
  const auto kind = error.at("kind").get<std::string>();
  if (kind == "security") {
    ASSERT_TRUE(result.ok()) << where << ": " << result.status().message();
    EXPECT_EQ(result.value(), entry.at("expected_mutable").get<std::string>()) << where;
  } else if (kind == "raise_exception") {
    ASSERT_FALSE(result.ok()) << where;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << where;
    EXPECT_TRUE(has(result.status(), error.at("message").get<std::string>()))
        << where << ": " << result.status().message();
  } else if (!result.ok()) {
    EXPECT_EQ(
        result.status().code() == Code::kInvalidArgument || result.status().code() == Code::kUnsupported,
        true)
        << where << ": " << result.status().message();
  }
}

TEST_F(Chat, GoldenTextsOfKnownTemplates) {
  const std::filesystem::path folder = std::filesystem::path(GANGLION_SHARED_FIXTURES) / "chat_templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "GOLDEN TEXTS ARE NOT TESTED: no folder " << folder;
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".json" || file.path().stem() == "features") continue;
    const Json head = Json::parse(read_file(file.path()));
    const std::string source = read_file(folder / head.at("template").get<std::string>());
    for (const Json& entry : head.at("cases")) {
      check_case(source, head, entry,
                 file.path().stem().string() + "/" + entry.at("name").get<std::string>());
      ++count;
    }
  }
  EXPECT_GT(count, 500U);
}

TEST_F(Chat, VariablesAndWhitespace) {
  EXPECT_EQ(
      render("{{ bos_token }}{% for m in messages %}\n  [{{ m.role }}] {{ m['content'] }}\n{% endfor %}\n"),
      "<s>  [user] hi\n");
  EXPECT_EQ(render("  {% if true %}\nx\n  {% endif %}\ny\n\n"), "x\ny\n")
      << "trim, lstrip, one final newline";
  EXPECT_EQ(render("a\r\nb\r\n"), "a\nb");
  EXPECT_EQ(render("{{ tools is none }} {{ documents is none }} {{ nothing is defined }} {{ nothing }}"),
            "True True False ");
  EXPECT_EQ(with("{{ bos_token }}", R"({"bos_token": "own"})"), "own");
  EXPECT_EQ(render("{{ '<&>' }}"), "<&>") << "no escaping";
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break "
                   "%}{% endif %}"
                   "{{ i }}{% endfor %}"),
            "013");
}

// 1. An unknown tag of the library.
TEST_F(Chat, GenerationTagsRenderTheirBody) {
  EXPECT_EQ(render("a {%- generation -%} b {% endgeneration %} c"), "ab  c");
  EXPECT_EQ(render("{%generation%}x{%endgeneration%}{% raw %}{% generation %}{% endraw %}"),
            "x{% generation %}");
  EXPECT_EQ(render("{# {% generation %} #}{{ '{% generation %}' }}"), "{% generation %}");
}

// 2. Immutable lists.
TEST_F(Chat, ListsGrowAndShrink) {
  EXPECT_EQ(
      render("{% set ns = namespace(a=[]) %}{% for i in range(3) %}{% set _ = ns.a.append(i) %}{% endfor %}"
             "{{ ns.a.pop(0) }} {{ ns.a }} {{ ns.a.pop() }} {{ ns.a | length }}"),
      "0 [1, 2] 2 1");
  EXPECT_EQ(render("{% set a = [1] %}{% set b = a %}{% set _ = b.append(2) %}{% set _ = b.extend([3]) %}"
                   "{% set _ = b.insert(0, 0) %}{{ a }}"),
            "[0, 1, 2, 3]")
      << "two names, one list";
  EXPECT_EQ(render("{% for i in range(2) %}{% set a = [] %}{% set _ = a.append(i) %}{{ a }}{% endfor %}"),
            "[0][1]");
  EXPECT_TRUE(has(failure("{% set a = [] %}{{ a.pop() }}"), "pop index out of range"));
  EXPECT_TRUE(has(failure("{% set a = [] %}{{ a.append([a]) }}"), "cannot contain itself"));
  EXPECT_EQ(failure("{% set a = [1] %}{% for i in range(99) %}{% set _ = a.extend(a) %}{% endfor %}").code(),
            Code::kResources);
}

// 3. and 5. Tests and length.
TEST_F(Chat, TestsAndLengthAreThoseOfJinja) {
  EXPECT_EQ(render("{{ none is iterable }} {{ 1 is iterable }} {{ 'a' is iterable }} {{ [] is iterable }} {{ "
                   "x is iterable }}"),
            "False False True True True");
  EXPECT_EQ(
      render(
          "{{ 'a' is sequence }} {{ {} is sequence }} {{ messages[0:] is sequence }} {{ none is sequence }}"),
      "True True True False");
  EXPECT_EQ(render("{{ x | length }} {{ 'Zü' | length }} {{ {'a': 1} | length }} {{ [1, 2] | count }}"),
            "0 2 1 2");
  EXPECT_FALSE(render_chat("{{ 1 | length }}", request()).ok());
}

// 4. A filter that loses the last newline.
TEST_F(Chat, IndentKeepsTheFinalNewline) {
  EXPECT_EQ(render("[{{ 'a\n\nb\n' | indent }}]"), "[a\n\n    b\n]");
  EXPECT_EQ(render("[{{ 'a\nb' | indent(2, true) }}]"), "[  a\n  b]");
  EXPECT_EQ(render("[{{ 'a\n\nb' | indent(width='> ', first=true, blank=true) }}]"), "[> a\n> \n> b]");
}

// 6. Values print as Python's.
TEST_F(Chat, ValuesPrintAsPythons) {
  const std::string kwargs = R"({"v": {"b": [1, 2.0, "x'y", "q\"'", null, true], "a": "Zü\n\\"}})";
  const std::string text = R"({'b': [1, 2.0, "x'y", 'q"\'', None, True], 'a': 'Zü\n\\'})";
  EXPECT_EQ(with("{{ v }}", kwargs), text);
  EXPECT_EQ(with("{{ v | string }}", kwargs), text);
  EXPECT_EQ(with("{{ '' ~ v }}", kwargs), text);
  EXPECT_EQ(with("{{ '' + (v | string) }}", kwargs), text);
  EXPECT_EQ(with("{{ [v.b[0], v] | join('-') }}", kwargs), "1-" + text);
  EXPECT_EQ(render("{{ '' ~ [1, 'a', {'k': none}] }}{{ {'x': 'y'} }}"), "[1, 'a', {'k': None}]{'x': 'y'}")
      << "literals";
  EXPECT_EQ(
      with("{{ v }}", R"({"v": [1e16, 1e15, 0.0001, 0.00001, -0.0, 1.5e300, 123456789012345678901, 0.1]})"),
      "[1e+16, 1000000000000000.0, 0.0001, 1e-05, -0.0, 1.5e+300, 123456789012345678901, 0.1]");
  EXPECT_FALSE(render_chat("{{ 'a' + v }}", request("[]", R"({"v": ["b"]})")).ok()) << "a string and a list";
}

// 7. JSON as Python writes it.
TEST_F(Chat, TojsonIsPythons) {
  const std::string kwargs =
      R"({"v": {"b": [1, 2.50, 1e400], "a": "<ü'\"\u0001😀>", "e": [], "o": {}, "n": null}})";
  EXPECT_EQ(with("{{ v | tojson }}",
                 R"({"v": {"b": [1, 2.50], "a": "<ü'\"\u0001>", "e": [], "o": {}, "n": null}})"),
            R"({"b": [1, 2.5], "a": "<ü'\"\u0001>", "e": [], "o": {}, "n": null})");
  EXPECT_EQ(with("{{ v.a | tojson(ensure_ascii=true) }}", kwargs), R"("<\u00fc'\"\u0001\ud83d\ude00>")");
  EXPECT_EQ(with("{{ v | tojson(indent=2) }}", R"({"v": {"a": [1, {}], "b": []}})"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
  EXPECT_EQ(
      with("{{ v | tojson(separators=(',', ':'), sort_keys=true) }}", R"({"v": {"b": 1, "a": [1, 2]}})"),
      R"({"a":[1,2],"b":1})");
  EXPECT_TRUE(has(failure("{{ x | tojson }}"), "no JSON form"));
}

TEST_F(Chat, MethodsOfPython) {
  EXPECT_EQ(render("{{ ' a '.strip() }}{{ 'a-b'.split('-')[-1] }}{{ 'abc'.startswith(('x', 'a')) }}"),
            "abTrue");
  EXPECT_EQ(render("{{ 'ab'.count('') }} {{ 'üb'.find('b') }} {{ 'a.b.c'.rsplit('.', 1) }}"),
            "3 1 ['a.b', 'c']");
  EXPECT_EQ(
      render(
          "{{ messages[0].get('x', 'd') }}{% for k, v in messages[0].items() %} {{ k }}={{ v }}{% endfor %}"),
      "d role=user content=hi");
  EXPECT_EQ(with("{{ v.items }}", R"({"v": {"items": 3}})"), "3") << "a key before a method";
}

TEST_F(Chat, TheTimeIsTheRequests) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %A %H:%M:%S %j %-d %p %%') }}"),
            "14 Mar 2025, Friday 15:09:26 073 14 PM %");
  EXPECT_EQ(render("{{ strftime_now('%Y') | int > 2024 }}", R"({"messages": [], "now": null})"), "True")
      << "the clock";
  EXPECT_EQ(failure("x", R"({"messages": [], "now": "yesterday"})").code(), Code::kInvalidArgument);
}

TEST_F(Chat, WhatTheTemplateRaisesReachesTheUser) {
  const Status status =
      failure("{% macro m() %}{{ raise_exception('Roles must alternate!') }}{% endmacro %}{{ m() }}");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "the chat template refuses: Roles must alternate!");
}

TEST_F(Chat, ErrorsNameTheLine) {
  const Status syntax = failure("a\nb\n{% if %}\n");
  EXPECT_EQ(syntax.code(), Code::kModelFile);
  EXPECT_TRUE(has(syntax, "line 3")) << syntax.message();
  const Status open = failure("{% for m in messages %}\n");
  EXPECT_EQ(open.code(), Code::kModelFile);
  EXPECT_TRUE(has(open, "line ")) << open.message();
  const Status undefined = failure("a\n{{ nothing.at_all }}");
  EXPECT_EQ(undefined.code(), Code::kInvalidArgument);
  EXPECT_TRUE(has(undefined, "line 2")) << undefined.message();
  const Status filter = failure("{% macro m() %}\n{{ 1 | frobnicate }}{% endmacro %}\n{{ m() }}");
  EXPECT_EQ(filter.code(), Code::kUnsupported);
  EXPECT_TRUE(has(filter, "line 2") && has(filter, "frobnicate")) << filter.message();
  EXPECT_TRUE(has(failure("{{ if .System }}{{ .System }}{{ end }}"), "Go template"));
  EXPECT_EQ(failure("\xff").code(), Code::kModelFile);
  for (const char* broken :
       {"{{", "{%", "{#", "{{ '", "{{ [ }}", "{{ ]) }}", "{% raw %}", "{% generation %}", "{{ \"\\"}) {
    const auto result = render_chat(broken, request());
    if (result.ok()) continue;
    EXPECT_EQ(result.status().code(), Code::kModelFile) << broken << result.status().message();
  }
}

TEST_F(Chat, RequestsAreChecked) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "JSON"},
      {"[]", "must be a JSON object"},
      {"{\"messages\": 1}", "messages: must be an array"},
      {"{}", "messages: must be an array"},
      {"{\"messages\": [1]}", "messages[0]: must be an object"},
      {"{\"messages\": [], \"tools\": {}}", "tools: must be an array or null"},
      {"{\"messages\": [], \"kwargs\": 1}", "kwargs: must be an object"},
      {"{\"messages\": [], \"now\": 1}", "now: must be a string"},
      {"{\"messages\": [], \"template\": 1}", "template: not a field of the request"},
      {"{\"messages\": [{\"a\": \"\xff\"}]}", "not UTF-8 at byte 21"},
      {"{\"messages\": [{\"a\": \"\\ud800\"}]}", "JSON"},
  };
  for (const auto& [json, part] : bad) {
    const Status status = failure("x", json);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << json;
    EXPECT_TRUE(has(status, part)) << json << ": " << status.message();
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(failure("x", R"({"messages": [], "kwargs": {"a": )" + deep + "}}").code(),
            Code::kInvalidArgument);
  EXPECT_EQ(failure("x", R"({"messages": [], "kwargs": {"a": )" + std::string(60, '9') + "}}").code(),
            Code::kInvalidArgument);
}

TEST_F(Chat, RunawaysAreStopped) {
  const std::string loops =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_EQ(failure(loops).code(), Code::kResources);
  EXPECT_EQ(failure("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}").code(), Code::kResources);
  EXPECT_EQ(failure("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}").code(), Code::kResources);
  EXPECT_EQ(failure(std::string((256 << 10) + 1, 'x')).code(), Code::kResources);
  for (const char* opening : {"{{ (", "{{ [", "{{ {1:", "{{ not ", "{{ -", "{% if 1 %}", "{% for i in x %}",
                              "{% macro m() %}", "{{ a.b", "{{ a | e", "{{ a if b else "}) {
    const std::string part = std::string_view(opening).substr(0, 2) == "{{" ? opening + 2 : opening;
    std::string source = part == opening ? "" : "{{";
    for (int i = 0; i < 20000; ++i) source += part;
    const Code code = failure(source).code();
    EXPECT_TRUE(code == Code::kModelFile || code == Code::kResources) << opening << code_name(code);
  }
}

/// `part` so often that it fills `bytes`.
std::string repeated(const std::string& part, size_t bytes) {
  std::string text;
  while (text.size() + part.size() <= bytes) text += part;
  return text;
}

TEST_F(Chat, NoValueIsTooDeepForTheStack) {
  const std::string loop = "{% for i in range(99999) %}";
  const std::string start = "{% set n = namespace(a=[1], b=[1]) %}";
  for (const char* step : {"[n.a]", "(n.a,)", "{'k': n.a}", "n.a | batch(1)", "dict(k=n.a)", "[[n.a][0:]]"}) {
    const Status status = failure(start + loop + "{% set n.a = " + step + " %}{% endfor %}");
    EXPECT_EQ(status.code(), Code::kResources) << step << status.message();
  }
  EXPECT_EQ(
      render(start + "{% for i in range(20000) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}{% endfor %}"
                     "{{ n.a == n.b }} {{ (n.a | string | length) < 999 }} {{ ('' ~ n.a) == n.a | string }}"),
      "True True True");
  EXPECT_EQ(render("{% set a = () %}" + repeated("{% set a = (a,) %}", 250000) + "{{ a == a }}"), "True");
  EXPECT_EQ(render("{% set a = [1] %}" + repeated("{% set a = a[0:] %}", 250000) + "{{ a }}"), "[1]");
  EXPECT_TRUE(has(failure("{% set n = namespace() %}{% set n.a = n %}{{ '' ~ n }}"), "cannot be kept"));
  EXPECT_TRUE(has(failure("{% set n = namespace() %}{% set l = [(n,)] %}"), "cannot be kept"));
}

TEST_F(Chat, SharedPartsDoNotMultiplyWithoutEnd) {
  const std::string laughs =
      "{% set n = namespace(a=['ha'], b=['ha']) %}{% for i in range(60) %}"
      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}";
  EXPECT_EQ(failure(laughs + "{{ n.a }}").code(), Code::kResources);
  EXPECT_EQ(failure(laughs + "{{ n.a | tojson }}").code(), Code::kResources);
  EXPECT_EQ(render(laughs + "{{ n.a == n.b }}"), "False") << "given up";
}

TEST_F(Chat, AssignmentsKeepTheirMeaning) {
  EXPECT_EQ(render("{% set n = namespace(a=1, b=2) %}{% set n.a, n.b = 3, [4] %}{{ n.a }}{{ n.b }}"), "3[4]");
  EXPECT_EQ(render("{% set a, b = 1, (2, 3) -%} {{ a }}{{ b[1] }}{% set c = 1, %}{{ c[0] }}"), "131");
  EXPECT_EQ(
      render("{% set n = namespace(x=1) %}{% set q = n.x == 1 %}{% set n.x = 5 if q %}{{ q }}{{ n.x }}"),
      "True5");
  EXPECT_EQ(
      render("{% set m = messages[0:] %}{% set _ = m.append(1) %}{{ m | length }}{{ messages | length }}"),
      "21");
}

TEST_F(Chat, APanicOfTheLibraryIsAStatus) {
  // Version 2.24 takes the last of no characters when it reverses an empty string by a slice.
  const Status status = failure("{{ ''[::-1] }}");
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_EQ(render("still {{ 1 + 1 }}"), "still 2");
}

TEST_F(Chat, ThreadsRenderAtOnce) {
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&texts, i] {
      for (int round = 0; round < 50; ++round) {
        texts[i] = with("{{ v }}", "{\"v\": " + std::to_string(i) + "}");
        (void)render("{{ raise_exception('x') }}");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], std::to_string(i));
}

TEST(ChatWithoutRust, RefusesByName) {
  if (chat_available()) GTEST_SKIP() << "built with Rust";
  const auto result = render_chat("x", request());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_TRUE(has(result.status(), "built without chat templates (no Rust)"));
}

}  // namespace
}  // namespace ganglion
