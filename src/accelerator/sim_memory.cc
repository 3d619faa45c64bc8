#include "accelerator/sim_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/units.h"

namespace ganglion::accelerator {

base::Result<SimMemory> SimMemory::create(size_t bytes) {
  SimMemory memory;
  memory.bytes_ = base::round_up(bytes, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  const base::Status none(base::Code::kResources,
                          "sim: no memory for a buffer of " + base::format_bytes(bytes));
  const int file = ::memfd_create("ganglion-sim", MFD_CLOEXEC);
  if (file < 0) return none;
  bool ok = ::ftruncate(file, static_cast<off_t>(memory.bytes_)) == 0;
  const auto map = [&](int protection, uint8_t** to) {
    void* at = ok ? ::mmap(nullptr, memory.bytes_, protection, MAP_SHARED, file, 0) : MAP_FAILED;
    ok = at != MAP_FAILED;
    if (ok) *to = static_cast<uint8_t*>(at);
  };
  map(PROT_NONE, &memory.processor_);
  map(PROT_READ | PROT_WRITE, &memory.device_);
  ::close(file);
  if (!ok) return none;
  return memory;
}

SimMemory::SimMemory(SimMemory&& other) noexcept {
  *this = std::move(other);
}

SimMemory& SimMemory::operator=(SimMemory&& other) noexcept {
  std::swap(processor_, other.processor_);
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SimMemory::~SimMemory() {
  if (processor_ != nullptr) ::munmap(processor_, bytes_);
  if (device_ != nullptr) ::munmap(device_, bytes_);
}

void SimMemory::protect(Protection protection) const {
  int bits = PROT_NONE;
  if (protection == Protection::kRead) bits = PROT_READ;
  if (protection == Protection::kReadWrite) bits = PROT_READ | PROT_WRITE;
  GANGLION_CHECK(::mprotect(processor_, bytes_, bits) == 0);
}

}  // namespace ganglion::accelerator
