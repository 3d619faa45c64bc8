// Text to token ids and back, by the vocabulary in a model's metadata. Knows no file format and no chat
// template. Made by engine/ when a model is opened; used by chat/, server/ and cli/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/metadata.h"
#include "base/status.h"

namespace ganglion::tokenizer {

struct EncodeOptions {
  bool add_special = false;  ///< Put the begin and end tokens that the model asks for.
  bool parse_special =
      false;  ///< Control tokens written in the text become one id; otherwise they are plain text.
};

struct DecodeOptions {
  bool special = true;  ///< Write control tokens by their names; otherwise leave them out.
  /// Drop the one space that encoding put before the text (nothing where the vocabulary puts none). Off when
  /// decoding the continuation of a text.
  bool strip_leading_space = true;
};

/// Immutable after create; all const calls may run on several threads.
/// The metadata is not needed after create: its large arrays may be dropped.
class Tokenizer {
 public:
  /// Reads the keys tokenizer.ggml.*.
  /// Errors: kModelFile where a key is missing or damaged; kUnsupported for a tokenizer model or
  /// pre-tokenizer that is not known; kResources for want of memory.
  static base::Result<std::unique_ptr<Tokenizer>> create(const base::Metadata& metadata);
  ~Tokenizer();

  /// The ids of `text`, any bytes. User-defined tokens in it always become their id.
  /// Errors: kInvalidArgument above 1 GiB; kResources where splitting into words needs more than 256 MiB.
  /// Cost:   n log n in the text's length.
  base::Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  /// The bytes of `ids`: UTF-8 where the ids hold whole characters. Ids out of range write nothing.
  std::string decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  /// The bytes of one token (control tokens: their name); empty out of range. Lives as long as the tokenizer.
  std::string_view piece(int32_t id) const;

  int32_t n_tokens() const;
  /// The id of the special or user-defined token written `text`, -1 if there is none.
  int32_t find_special(std::string_view text) const;

  // -1 where the model has none.
  int32_t bos() const;
  int32_t eos() const;
  int32_t eot() const;
  int32_t eom() const;
  int32_t unk() const;
  int32_t pad() const;

  bool add_bos() const;
  bool add_eos() const;
  bool add_space_prefix() const;
  bool is_eog(int32_t id) const;
  /// True for control and unknown tokens, which `DecodeOptions::special` governs.
  bool is_control(int32_t id) const;
  /// The ids that end a generation, ascending.
  std::span<const int32_t> eog_ids() const;

  /// tokenizer.ggml.model and the pre-tokenizer in use ("default" where there is none).
  std::string_view kind_name() const;
  std::string_view pre_name() const;
  /// What is odd about the metadata but can be worked with; one line each.
  std::span<const std::string> warnings() const;

  /// Memory held, in bytes.
  size_t memory_bytes() const;

  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

 private:
  std::unique_ptr<const Parts> parts_;
};

}  // namespace ganglion::tokenizer
