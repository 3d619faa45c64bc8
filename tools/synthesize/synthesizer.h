// Writes the file of a request: metadata, then tensor after tensor with bounded memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/gguf_writer.h"
#include "planted.h"
#include "request.h"

namespace ganglion::synthesize {

/// Declares and later fills the tensors of a request, in one order.
class Synthesizer {
 public:
  /// Requires: check_request(request) is ok.
  explicit Synthesizer(const Request& request);
  ~Synthesizer();

  /// Errors: kIo.
  base::Status run();
  uint64_t data_bytes() const { return writer_.data_bytes(); }
  /// Null for random weights.
  const PlantedRows* planted() const { return planted_.get(); }

 private:
  void add_metadata();
  void add_vocabulary();
  void matrix(Role role, const std::string& name, uint32_t layer, uint64_t row, uint64_t rows,
              uint64_t slices = 1);
  void norm(const std::string& name, uint64_t size);
  void declare_all();
  void declare_layer(uint32_t layer);
  base::Status fill_random(const Declared& tensor);
  base::Status fill_planted(const Declared& tensor, uint64_t number);

  const Request request_;
  format::GgufWriter writer_;
  uint64_t random_;
  std::vector<Declared> declared_;
  std::unique_ptr<platform::ThreadPool> threads_;
  std::unique_ptr<PlantedRows> planted_;
};

}  // namespace ganglion::synthesize
