#include "server/sampling_fields.h"

#include <limits>

namespace ganglion::server {

namespace {

constexpr size_t kMostChoices = 128;
constexpr size_t kMostStops = 64;
constexpr size_t kMostStopBytes = 1024;
constexpr size_t kMostBiases = 65536;

// One bias: a token by number or all tokens of a text; false forbids.
void add_bias(const Json& key, const Json& value, const TextModel& text, Fields& fields,
              std::vector<LogitBias>* biases) {
  LogitBias bias;
  if (value.is_boolean() && !value.get<bool>()) {
    bias.bias = -std::numeric_limits<float>::infinity();
  } else if (value.is_number()) {
    bias.bias = value.get<float>();
  } else {
    return fields.fail("logit_bias", "a bias must be a number or false");
  }
  if (key.is_number_integer()) {
    const auto token = key.get<int64_t>();
    if (token < 0 || token >= text.vocab_size())
      return fields.fail("logit_bias", "token " + std::to_string(token) + " is outside the vocabulary");
    bias.token = static_cast<int32_t>(token);
    biases->push_back(bias);
    return;
  }
  if (!key.is_string()) return fields.fail("logit_bias", "a token must be a number or a text");
  const Result<std::vector<int32_t>> tokens = text.encode(key.get<std::string>(), false, true);
  if (!tokens.ok()) return fields.fail("logit_bias", tokens.status().message());
  for (const int32_t token : tokens.value()) {
    bias.token = token;
    biases->push_back(bias);
  }
}

// OpenAI's {"50256": -100}, or llama-server's [[50256, -100], ["text", false]].
void read_logit_bias(const TextModel& text, Fields& fields, std::vector<LogitBias>* biases) {
  const Json* field = fields.find("logit_bias");
  if (field == nullptr) return;
  if (!field->is_object() && !field->is_array())
    return fields.fail("logit_bias", "must be an object or a list of pairs");
  if (field->size() > kMostBiases) return fields.fail("logit_bias", "has too many entries");
  if (field->is_array()) {
    for (const Json& pair : *field) {
      if (!pair.is_array() || pair.size() != 2) return fields.fail("logit_bias", "must be a list of pairs");
      add_bias(pair[0], pair[1], text, fields, biases);
    }
    return;
  }
  for (const auto& [key, value] : field->items()) {
    const bool is_number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == key.npos;
    add_bias(is_number ? Json(std::stoll(key)) : Json(key), value, text, fields, biases);
  }
}

void read_penalties(Fields& fields, SamplingOptions* o) {
  fields.read("repeat_penalty", &o->repeat_penalty);
  fields.read("repeat_last_n", &o->repeat_last_n);
  fields.read("presence_penalty", &o->presence_penalty);
  fields.read("frequency_penalty", &o->frequency_penalty);
  fields.read("dry_multiplier", &o->dry_multiplier);
  fields.read("dry_base", &o->dry_base);
  fields.read("dry_allowed_length", &o->dry_allowed_length);
  fields.read("dry_penalty_last_n", &o->dry_penalty_last_n);
  fields.read("dry_sequence_breakers", &o->dry_sequence_breakers);
}

// A list of names, or names separated by ';'.
void read_samplers(Fields& fields, SamplingOptions* o) {
  std::vector<std::string> names;
  fields.read("samplers", &names);
  if (names.empty()) return;
  o->samplers.clear();
  for (const std::string& name : names) o->samplers += (o->samplers.empty() ? "" : ";") + name;
}

void read_steps(Fields& fields, SamplingOptions* o) {
  fields.read("temperature", &o->temperature);
  fields.read("dynatemp_range", &o->dynatemp_range);
  fields.read("dynatemp_exponent", &o->dynatemp_exponent);
  fields.read("top_k", &o->top_k);
  fields.read("top_p", &o->top_p);
  fields.read("min_p", &o->min_p);
  fields.read("typical_p", &o->typical_p);
  fields.read("top_n_sigma", &o->top_n_sigma);
  fields.read("min_keep", &o->min_keep);
  fields.read("xtc_probability", &o->xtc_probability);
  fields.read("xtc_threshold", &o->xtc_threshold);
  fields.read("mirostat", &o->mirostat);
  fields.read("mirostat_tau", &o->mirostat_tau);
  fields.read("mirostat_eta", &o->mirostat_eta);
  fields.read("post_sampling_probs", &o->post_sampling_probs);
  int64_t seed = o->seed;
  fields.read("seed", &seed);
  o->seed = seed < 0 ? -1 : seed;
}

void read_limits(Fields& fields, Generation* g) {
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    fields.read(name, &g->most_tokens);
  }
  if (g->most_tokens < -1) fields.fail("max_tokens", "must be 0 or more, or -1 for no limit");
  fields.read("t_max_predict_ms", &g->most_ms);
  fields.read("ignore_eos", &g->ignore_eos);
  fields.read("cache_prompt", &g->reuse_prefix);
  fields.read("id_slot", &g->slot);
  fields.read("stop", &g->stops);
  if (g->stops.size() > kMostStops) {
    fields.fail("stop",
                "has " + std::to_string(g->stops.size()) + " strings, at most " + std::to_string(kMostStops));
  }
  for (const std::string& stop : g->stops) {
    if (stop.size() > kMostStopBytes)
      fields.fail("stop", "has a string of more than " + std::to_string(kMostStopBytes) + " bytes");
  }
  fields.read_count("n", kMostChoices, &g->choices);
  if (g->choices == 0) fields.fail("n", "must be at least 1");
}

}  // namespace

Status read_sampling(const Json& request, const TextModel& text, Generation* generation) {
  Fields fields(request);
  SamplingOptions& o = generation->sampling;
  read_steps(fields, &o);
  read_penalties(fields, &o);
  read_samplers(fields, &o);
  read_logit_bias(text, fields, &o.logit_bias);
  read_limits(fields, generation);
  if (!fields.status().ok()) return fields.status();
  return o.validate();
}

Status refuse_fields(const Json& request, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto at = request.find(name);
    if (at == request.end() || at->is_null()) continue;
    const bool asks_nothing = (at->is_boolean() && !at->get<bool>()) || (at->is_number() && *at == 0) ||
                              ((at->is_array() || at->is_object() || at->is_string()) && at->empty()) ||
                              (at->is_string() && at->get<std::string>().empty());
    if (!asks_nothing) return Status(Code::kInvalidArgument, std::string(name) + ": is not supported");
  }
  return ok_status();
}

}  // namespace ganglion::server
