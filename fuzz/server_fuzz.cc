// What the server reads from clients and models before any of it is trusted: JSON, grammars, output of models
// in each family's format. The same output must be parsed alike however it is cut.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/gbnf.h"
#include "server/json.h"
#include "server/output_parser.h"
#include "server/stop_text.h"

namespace {

using namespace ganglion::server;

std::string parsed(const OutputFormat& format, const std::string& text, size_t piece) {
  const std::unique_ptr<OutputParser> parser = OutputParser::create(format);
  std::vector<OutputDelta> deltas;
  for (size_t i = 0; i < text.size(); i += piece) parser->push(text.substr(i, piece), &deltas);
  parser->finish(&deltas);
  std::string all;
  OutputDelta last = {.kind = OutputDelta::Kind::kToolArguments, .text = "", .tool = SIZE_MAX};
  for (const OutputDelta& delta : deltas) {
    const bool begins =
        delta.kind != last.kind || delta.tool != last.tool || delta.kind == OutputDelta::Kind::kToolStart;
    if (begins) all += "|" + std::to_string(static_cast<int>(delta.kind)) + std::to_string(delta.tool) + ":";
    all += delta.text;
    last = delta;
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const ganglion::Result<Json> json = parse_object(text);
  if (json.ok()) (void)to_text(json.value());
  (void)lark_of(text);
  StopText stop({"ab", "b\n", "\xc3"});
  (void)stop.push(text);
  for (int format = 0; format <= static_cast<int>(ToolFormat::kGeneric); ++format) {
    for (const bool reasoning : {false, true}) {
      const OutputFormat how = {.tools = static_cast<ToolFormat>(format), .reasoning = reasoning};
      if (parsed(how, text, 1) != parsed(how, text, size + 1)) std::abort();
    }
  }
  return 0;
}
