// The public TextModel over tokenizer/ and the file's metadata.
#include "ganglion/text.h"

#include <algorithm>

#include "engine/runtime.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace ganglion {

namespace {

class TextStreamImpl final : public TextStream {
 public:
  TextStreamImpl(const tokenizer::Tokenizer& tokenizer, bool special) : decoder_(tokenizer, special) {}
  std::string push(int32_t token) override { return decoder_.push(token); }
  std::string finish() override { return decoder_.finish(); }

 private:
  tokenizer::StreamDecoder decoder_;
};

class TextModelImpl final : public TextModel {
 public:
  TextModelImpl(std::unique_ptr<tokenizer::Tokenizer> tokenizer, std::string chat_template)
      : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {}

  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special,
                                      bool parse_special) const override {
    return tokenizer_->encode(text, {.add_special = add_special, .parse_special = parse_special});
  }
  std::string decode(std::span<const int32_t> tokens, bool special) const override {
    return tokenizer_->decode(tokens, {.special = special});
  }
  std::unique_ptr<TextStream> new_stream(bool special) const override {
    return std::make_unique<TextStreamImpl>(*tokenizer_, special);
  }
  std::string_view bytes(int32_t token) const override {
    return tokenizer_->is_control(token) ? std::string_view() : tokenizer_->piece(token);
  }
  std::string token_name(int32_t token) const override { return std::string(tokenizer_->piece(token)); }
  int32_t vocab_size() const override { return tokenizer_->n_tokens(); }
  int32_t bos() const override { return tokenizer_->bos(); }
  int32_t eos() const override { return tokenizer_->eos(); }
  bool adds_bos() const override { return tokenizer_->add_bos(); }
  bool is_end_of_generation(int32_t token) const override { return tokenizer_->is_eog(token); }
  std::vector<std::string> warnings() const override {
    return {tokenizer_->warnings().begin(), tokenizer_->warnings().end()};
  }
  const std::string& chat_template() const override { return chat_template_; }

 private:
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::string chat_template_;
};

}  // namespace

Result<std::unique_ptr<TextModel>> engine::make_text_model(base::Metadata& metadata) {
  GANGLION_ASSIGN_OR_RETURN(std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                            tokenizer::Tokenizer::create(metadata));
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores",
                          "tokenizer.ggml.token_type"}) {
    metadata.drop_array(key);
  }
  GANGLION_ASSIGN_OR_RETURN(std::string chat_template, metadata.string_or("tokenizer.chat_template", ""));
  return std::unique_ptr<TextModel>(
      std::make_unique<TextModelImpl>(std::move(tokenizer), std::move(chat_template)));
}

Result<std::unique_ptr<TextModel>> TextModel::open(const std::string& path, const Overrides& overrides) {
  GANGLION_ASSIGN_OR_RETURN(format::GgufModel file, format::GgufModel::open(path));
  GANGLION_RETURN_IF_ERROR(engine::apply_overrides(overrides, &file.metadata()));
  return engine::make_text_model(file.metadata());
}

bool same_vocabulary(const TextModel& a, const TextModel& b) {
  constexpr int32_t kMostPadding = 256;
  const int32_t common = std::min(a.vocab_size(), b.vocab_size());
  if (std::max(a.vocab_size(), b.vocab_size()) - common > kMostPadding) return false;
  for (int32_t token = 0; token < common; ++token) {
    if (a.decode({&token, 1}, true) != b.decode({&token, 1}, true)) return false;
  }
  return true;
}

}  // namespace ganglion
