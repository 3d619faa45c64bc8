// The public Server: starts the threads, describes the model to clients, ends in order.
#include "ganglion/server.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "ganglion/inspect.h"
#include "ganglion/size.h"
#include "server/service.h"

namespace ganglion {

namespace {

using server::HttpServer;
using server::Json;
using server::Scheduler;
using server::ServedModel;
using server::Service;

/// Memory that is held while the engine plans and given back after: what requests will take later.
class HeldMemory {
 public:
  explicit HeldMemory(size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ != MAP_FAILED) std::memset(data_, 1, bytes);
  }
  ~HeldMemory() { release(); }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  void release() {
    if (data_ != MAP_FAILED) ::munmap(std::exchange(data_, MAP_FAILED), bytes_);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t bytes_;
};

// Of a slot: sampler and logits of a large vocabulary. Of a connection: a head and what is about to be sent.
constexpr size_t kSlotBytes = size_t{3} << 20;
constexpr size_t kConnectionBytes = 16 * 1024;

size_t bytes_needed(const ServerOptions& options) {
  return options.buffer_bytes + options.parallel * kSlotBytes + options.most_connections * kConnectionBytes;
}

std::string file_stem(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name.substr(name.rfind('/') + 1);
  if (name.size() > 5 && name.compare(name.size() - 5, 5, ".gguf") == 0) name.resize(name.size() - 5);
  return name.empty() ? "model" : name;
}

// "meta" of /v1/models.
Json model_facts(const std::string& path, const Engine& engine) {
  Json facts = {{"n_vocab", engine.text().vocab_size()},
                {"n_ctx_train", engine.plan().context_trained},
                {"n_ctx", engine.plan().context},
                {"size", engine.plan().model_bytes}};
  const Result<ModelContents> contents = inspect_model(path);
  if (!contents.ok()) return facts;
  facts["n_params"] = contents.value().parameters;
  for (const MetadataEntry& entry : contents.value().metadata) {
    if (entry.key == engine.plan().architecture + ".embedding_length")
      facts["n_embd"] = std::strtoull(entry.text.c_str(), nullptr, 10);
  }
  return facts;
}

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(const ServerOptions& options)
      : options_(options), held_(bytes_needed(options)), service_(options) {}

  ~ServerImpl() override {
    service_.stop_serving();
    if (network_ != nullptr && !finished_) network_->finish();
  }

  Status listen() {
    Result<std::unique_ptr<HttpServer>> network = HttpServer::listen(options_, service_);
    if (!network.ok()) return network.status();
    network_ = network.take();
    service_.set_network(network_.get());
    return ok_status();
  }

  uint16_t port() const override { return network_->port(); }

  Status run(Engine& engine, const SamplingOptions& sampling, const std::atomic<bool>& stop,
             const std::function<void()>& between_passes) override {
    held_.release();
    const std::string& path = engine.plan().first_file;
    model_.reset(new ServedModel{.text = engine.text(),
                                 .name = options_.alias.empty() ? file_stem(path) : options_.alias,
                                 .path = path,
                                 .chat_template = options_.chat_template.empty()
                                                      ? engine.text().chat_template()
                                                      : options_.chat_template,
                                 .sampling = sampling,
                                 .context = engine.plan().context,
                                 .slots = options_.parallel,
                                 .slot_save_path = options_.slot_save_path,
                                 .slot_save_bytes = parse_size(options_.slot_save_limit).value(),
                                 .created_s = server::unix_seconds(),
                                 .facts = model_facts(path, engine),
                                 .grammars = std::make_shared<GrammarVocabulary>(engine.text())});
    Result<std::unique_ptr<Scheduler>> scheduler =
        Scheduler::create(engine, options_.parallel, options_.most_queued);
    if (!scheduler.ok()) return scheduler.status();
    scheduler_ = scheduler.take();
    network_->follow(stop);
    service_.serve(model_.get(), scheduler_.get());
    scheduler_->run(stop, between_passes);
    service_.stop_serving();
    network_->finish();
    finished_ = true;
    return ok_status();
  }

 private:
  const ServerOptions options_;
  HeldMemory held_;
  Service service_;
  std::unique_ptr<HttpServer> network_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<Scheduler> scheduler_;
  bool finished_ = false;
};

Status check_options(const ServerOptions& options) {
  if (options.parallel == 0 || options.parallel > 256)
    return Status(Code::kInvalidArgument,
                  "--parallel " + std::to_string(options.parallel) + " is not 1 to 256");
  if (options.most_connections == 0)
    return Status(Code::kInvalidArgument, "--max-connections must be at least 1");
  std::error_code error;
  if (!options.slot_save_path.empty() && !std::filesystem::is_directory(options.slot_save_path, error))
    return Status(Code::kInvalidArgument, "--slot-save-path '" + options.slot_save_path + "' is no folder");
  const Result<uint64_t> limit = parse_size(options.slot_save_limit);
  return limit.ok() ? ok_status() : limit.status().with_context("--slot-save-limit");
}

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) {
  const Status status = check_options(options);
  if (!status.ok()) return status;
  auto server = std::make_unique<ServerImpl>(options);
  const Status listening = server->listen();
  if (!listening.ok()) return listening;
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace ganglion
