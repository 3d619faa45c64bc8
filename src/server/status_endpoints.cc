// What the server tells about itself.
#include <cstdio>

#include "ganglion/version.h"
#include "server/service.h"

namespace ganglion::server {

namespace {

Json sampling_json(const SamplingOptions& o) {
  return {{"seed", o.seed},
          {"temperature", o.temperature},
          {"top_k", o.top_k},
          {"top_p", o.top_p},
          {"min_p", o.min_p},
          {"typical_p", o.typical_p},
          {"top_n_sigma", o.top_n_sigma},
          {"xtc_probability", o.xtc_probability},
          {"xtc_threshold", o.xtc_threshold},
          {"repeat_penalty", o.repeat_penalty},
          {"repeat_last_n", o.repeat_last_n},
          {"presence_penalty", o.presence_penalty},
          {"frequency_penalty", o.frequency_penalty},
          {"dry_multiplier", o.dry_multiplier},
          {"mirostat", o.mirostat},
          {"samplers", o.samplers}};
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) / 1e9;
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

// Share of the weights touched that was in memory: experts or neurons by count, dense weights by bytes.
double hit_rate(const EngineView& view) {
  const EngineStats& s = view.stats;
  const auto experts = static_cast<double>(s.expert_hits + s.expert_misses);
  if (experts > 0) return static_cast<double>(s.expert_hits) / experts;
  const auto present = static_cast<double>(s.neurons_resident + s.neurons_cached);
  const double neurons = present + static_cast<double>(s.neurons_read);
  if (neurons > 0) return present / neurons;
  const auto resident = static_cast<double>(view.plan.resident_weight_bytes);
  const double dense = resident + static_cast<double>(view.plan.streamed_bytes_per_token);
  return dense > 0 ? resident / dense : 1;
}

}  // namespace

Json models_json(const ServedModel& model) {
  const Json entry = {{"id", model.name},
                      {"object", "model"},
                      {"created", model.created_s},
                      {"owned_by", "ganglion"},
                      {"meta", model.facts}};
  return {{"object", "list"}, {"data", Json::array({entry})}};
}

Json props_json(const ServedModel& model, const EngineView& view) {
  const PlanSummary& plan = view.plan;
  Json items = Json::object();
  for (const MemoryItem& item : plan.items) items[item.name] = item.bytes;
  return {
      {"default_generation_settings", {{"n_ctx", model.context}, {"params", sampling_json(model.sampling)}}},
      {"total_slots", model.slots},
      {"model_alias", model.name},
      {"model_path", model.path},
      {"chat_template", model.chat_template},
      {"build_info", build_facts()},
      {"plan",
       {{"architecture", plan.architecture},
        {"weight_type", plan.weight_type},
        {"sparsity", plan.sparsity},
        {"budget_bytes", plan.budget_bytes},
        {"planned_bytes", plan.planned_bytes},
        {"model_bytes", plan.model_bytes},
        {"resident_weight_bytes", plan.resident_weight_bytes},
        {"streamed_bytes_per_token", plan.streamed_bytes_per_token},
        {"expert_cache_bytes", plan.expert_cache_bytes},
        {"streams", plan.streams},
        {"chunk", plan.chunk},
        {"threads", plan.threads},
        {"isa", plan.isa},
        {"kv_type", plan.kv_type},
        {"io", plan.io},
        {"device", plan.device},
        {"items", items},
        {"notes", plan.notes}}}};
}

Json slots_json(const ServedModel& model, const EngineView& view) {
  Json list = Json::array();
  for (size_t i = 0; i < view.slots.size(); ++i) {
    const SlotState& slot = view.slots[i];
    list.push_back({{"id", i},
                    {"n_ctx", model.context},
                    {"is_processing", slot.busy},
                    {"n_past", slot.held_tokens},
                    {"n_prompt_tokens", slot.prompt_tokens},
                    {"n_decoded", slot.generated}});
  }
  return list;
}

std::string metrics_text(const EngineView& view, const HttpCounts& network) {
  std::string text;
  const auto add = [&](const std::string& name, const char* type, const char* help, double value) {
    char number[40];
    std::snprintf(number, sizeof number, "%.17g", value);
    text +=
        "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n" + name + " " + number + "\n";
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    add(name, "counter", help, static_cast<double>(value));
  };
  const auto gauge = [&](const char* name, const char* help, auto value) {
    add(name, "gauge", help, static_cast<double>(value));
  };
  const Totals& t = view.totals;
  const EngineStats& s = view.stats;
  size_t busy = 0;
  for (const SlotState& slot : view.slots) busy += slot.busy ? 1 : 0;
  counter("llamacpp:prompt_tokens_total", "Prompt tokens evaluated.", t.prompt_tokens);
  counter("llamacpp:prompt_seconds_total", "Time in prompts.", t.prompt_s);
  counter("llamacpp:tokens_predicted_total", "Tokens generated.", t.answer_tokens);
  counter("llamacpp:tokens_predicted_seconds_total", "Time in decoding passes.", t.answer_s);
  counter("llamacpp:n_decode_total", "Decoding passes.", t.decode_passes);
  counter("llamacpp:n_tokens_max", "Longest sequence in tokens.", t.most_tokens);
  gauge("llamacpp:n_busy_slots_per_decode", "Sequences per decoding pass.",
        ratio(static_cast<double>(t.decoded_rows), static_cast<double>(t.decode_passes)));
  gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second.",
        ratio(static_cast<double>(t.prompt_tokens), t.prompt_s));
  gauge("llamacpp:predicted_tokens_seconds", "Generated tokens per second.",
        ratio(static_cast<double>(t.answer_tokens), t.answer_s));
  gauge("llamacpp:requests_processing", "Slots in use.", busy);
  gauge("llamacpp:requests_deferred", "Requests that wait for a slot.", view.queued);
  counter("ganglion:requests_total", "Requests answered whole.", t.requests);
  counter("ganglion:requests_refused_total", "Requests refused because the queue was full.", t.refused);
  counter("ganglion:requests_cancelled_total", "Requests whose client left.", t.cancelled);
  counter("ganglion:requests_failed_total", "Requests that failed.", t.failed);
  counter("ganglion:cached_prompt_tokens_total", "Prompt tokens that were there already.", t.cached_tokens);
  counter("ganglion:io_bytes_total", "Bytes of weights read, page cache included.",
          s.device_bytes + s.cached_bytes);
  counter("ganglion:io_device_bytes_total", "Bytes of weights read from the device.", s.device_bytes);
  counter("ganglion:io_reads_total", "Reads.", s.reads);
  counter("ganglion:io_wait_seconds_total", "Time in which nothing could be computed.",
          seconds(s.io_wait_ns));
  counter("ganglion:pass_seconds_total", "Time in passes over the model.", seconds(s.pass_ns));
  counter("ganglion:hot_calls_total", "Calls of the accelerator.", s.hot_calls);
  counter("ganglion:hot_calls_recomputed_total", "Of those, failed ones that the processor computed.",
          s.hot_recomputed);
  counter("ganglion:hot_wait_seconds_total", "Time in which the processor waited for the accelerator.",
          seconds(s.hot_wait_ns));
  gauge("ganglion:device_lost", "1 once the accelerator was given up.", s.device_lost.empty() ? 0 : 1);
  gauge("ganglion:cache_hit_rate", "Share of the weights touched that was in memory.", hit_rate(view));
  gauge("ganglion:budget_bytes", "Memory budget.", view.plan.budget_bytes);
  gauge("ganglion:memory_peak_bytes", "Most memory used so far.", memory_peak().resident_bytes);
  gauge("ganglion:connections", "Open connections.", network.connections);
  gauge("ganglion:buffer_bytes", "Requests and unsent answers in memory.", network.buffer_bytes);
  return text;
}

}  // namespace ganglion::server
