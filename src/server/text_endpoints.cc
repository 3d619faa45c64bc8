// Endpoints that need no generation: tokens, templates; and embeddings, which need only a prompt's
// evaluation.
#include <cmath>
#include <cstring>

#include "server/base64.h"
#include "server/chat_prompt.h"
#include "server/endpoint.h"
#include "server/prompts.h"
#include "server/sampling_fields.h"

namespace ganglion::server {

namespace {

class EmbeddingSink final : public ReplySink {
 public:
  EmbeddingSink(std::shared_ptr<Reply> reply, const ServedModel& model, bool base64, size_t count)
      : ReplySink(std::move(reply), false), model_(model), base64_(base64), vectors_(count) {}

  void text(size_t, std::string_view, std::span<const TokenProbs>, const ChoiceFacts&) override {}

  // Scaled to length 1, as clients that compare by dot product expect.
  void hidden(size_t index, std::span<const float> hidden) override {
    double sum = 0;
    for (const float value : hidden) sum += static_cast<double>(value) * static_cast<double>(value);
    const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
    for (const float value : hidden)
      vectors_[index].push_back(static_cast<float>(static_cast<double>(value) * scale));
  }

  void finished(size_t, const ChoiceFacts& facts) override { usage_.add(facts, true); }

  void completed() override {
    Json data = Json::array();
    for (size_t i = 0; i < vectors_.size(); ++i) {
      Json vector = vectors_[i];
      if (base64_) {
        std::string bytes(vectors_[i].size() * sizeof(float), '\0');
        std::memcpy(bytes.data(), vectors_[i].data(), bytes.size());
        vector = base64(bytes);
      }
      data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", vector}});
    }
    reply_->respond_json(
        200, {{"object", "list"},
              {"data", data},
              {"model", model_.name},
              {"usage", {{"prompt_tokens", usage_.prompt_tokens}, {"total_tokens", usage_.prompt_tokens}}}});
  }

 private:
  const ServedModel& model_;
  const bool base64_;
  std::vector<std::vector<float>> vectors_;
  Usage usage_;
};

}  // namespace

std::optional<ApiError> embeddings(Call& call) {
  Json request = call.request;
  if (!request.contains("input") && request.contains("content")) request["input"] = request["content"];
  if (!request.contains("input")) return bad_request("input: is missing");
  request["prompt"] = request["input"];
  Fields fields(request);
  std::string format = "float";
  fields.read("encoding_format", &format);
  if (!fields.status().ok()) return api_error(fields.status());
  if (format != "float" && format != "base64")
    return bad_request("encoding_format: '" + format + "' is not float or base64");
  auto generation = std::make_unique<Generation>();
  Status status = refuse_fields(request, {"dimensions"});
  if (status.ok()) status = read_prompts(request, call.model, generation.get());
  if (!status.ok()) return api_error(status);
  if (const auto error = check_prompts(*generation, call.model)) return error;
  generation->only_hidden = true;
  generation->sink =
      std::make_unique<EmbeddingSink>(call.reply, call.model, format == "base64", generation->prompts.size());
  submit(call, std::move(generation));
  return std::nullopt;
}

std::optional<ApiError> tokenize(Call& call) {
  Fields fields(call.request);
  bool add_special = false;
  bool parse_special = true;
  bool with_pieces = false;
  fields.read("add_special", &add_special);
  fields.read("parse_special", &parse_special);
  fields.read("with_pieces", &with_pieces);
  std::string content;
  fields.read("content", &content);
  if (!fields.has("content")) fields.fail("content", "is missing");
  if (!fields.status().ok()) return api_error(fields.status());
  const Result<std::vector<int32_t>> tokens = call.model.text.encode(content, add_special, parse_special);
  if (!tokens.ok()) return api_error(tokens.status());
  Json list = Json::array();
  for (const int32_t token : tokens.value()) {
    if (!with_pieces) {
      list.push_back(token);
      continue;
    }
    const std::string piece = token_text(call.model.text, token);
    // Parts of characters are no text: their bytes then.
    const bool is_text = Json(piece).dump(-1, ' ', false, Json::error_handler_t::ignore) ==
                         Json(piece).dump(-1, ' ', false, Json::error_handler_t::replace);
    Json shown = piece;
    if (!is_text) {
      shown = Json::array();
      for (const char byte : piece) shown.push_back(static_cast<uint8_t>(byte));
    }
    list.push_back({{"id", token}, {"piece", shown}});
  }
  call.reply->respond_json(200, {{"tokens", list}});
  return std::nullopt;
}

std::optional<ApiError> detokenize(Call& call) {
  const Json* list = Fields(call.request).find("tokens");
  if (list == nullptr || !list->is_array()) return bad_request("tokens: must be a list of tokens");
  std::vector<int32_t> tokens;
  for (const Json& entry : *list) {
    if (!entry.is_number_integer() || entry.get<int64_t>() < 0 ||
        entry.get<int64_t>() >= call.model.text.vocab_size())
      return bad_request("tokens: " + to_text(entry) + " is no token of the vocabulary");
    tokens.push_back(entry.get<int32_t>());
  }
  call.reply->respond_json(200, {{"content", call.model.text.decode(tokens, true)}});
  return std::nullopt;
}

std::optional<ApiError> apply_template(Call& call) {
  ChatInput input;
  const Status status = read_chat(call.request, &input);
  if (!status.ok()) return api_error(status);
  const Result<ChatPrompt> prompt = make_chat_prompt(call.model, input);
  if (!prompt.ok()) return api_error(prompt.status());
  call.reply->respond_json(200, {{"prompt", prompt.value().text}, {"tokens", prompt.value().tokens.size()}});
  return std::nullopt;
}

}  // namespace ganglion::server
