// Everything that a model file's header goes through before weights are read: parser, configuration, tensors,
// vocabulary.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "format/gguf.h"
#include "format/powerinfer.h"
#include "model/weight_map.h"
#include "model_config/model_config.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ganglion;
  const int fd = ::memfd_create("fuzz", 0);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) return 0;
  auto file = format::GgufModel::open("/proc/self/fd/" + std::to_string(fd));
  if (file.ok() && file.value().powerinfer()) file = format::plain_header(file.value());
  if (file.ok()) {
    auto config = model_config::read_model_config(file.value().metadata());
    if (config.ok()) {
      model_config::ModelConfig chosen = config.take();
      (void)model::map_weights(file.value(), &chosen);
    }
    auto tokenizer = tokenizer::Tokenizer::create(file.value().metadata());
    if (tokenizer.ok()) {
      auto ids =
          tokenizer.value()->encode("Hello, w\xc3\xb6rld 123", {.add_special = true, .parse_special = true});
      if (ids.ok()) (void)tokenizer.value()->decode(ids.value());
    }
  }
  ::close(fd);
  return 0;
}
