// Which disk a file lies on, as far as the system tells without rights.
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/units.h"
#include "ganglion/doctor.h"
#include "platform/file.h"

namespace ganglion {

namespace {

// Magic numbers of linux/magic.h, and f2fs's.
std::string file_system_name(unsigned long type) {
  struct Known {
    unsigned long type;
    const char* name;
  };
  constexpr Known kKnown[] = {{0xEF53, "ext4"},      {0x58465342, "xfs"},   {0x9123683E, "btrfs"},
                              {0x01021994, "tmpfs"}, {0xF2F52010, "f2fs"},  {0x794C7630, "overlay"},
                              {0x6969, "nfs"},       {0x65735546, "fuse"},  {0x2FC12FC1, "zfs"},
                              {0x4D44, "fat"},       {0x2011BAB0, "exfat"}, {0xFF534D42, "cifs"}};
  for (const Known& known : kKnown) {
    if (known.type == type) return known.name;
  }
  return base::format("type %lx", type);
}

// The first of the files that can be read, trimmed; else empty.
std::string first_text(const std::string& folder, std::initializer_list<const char*> names) {
  constexpr uint64_t kMostBytes = 4096;
  for (const char* name : names) {
    const Result<std::string> text = platform::read_text_file(folder + name, kMostBytes);
    if (!text.ok()) continue;
    std::string line = text.value().substr(0, text.value().find('\n'));
    std::replace_if(
        line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    line.erase(0, line.find_first_not_of(' '));
    if (!line.empty()) return line;
  }
  return "";
}

}  // namespace

std::string device_identity(const std::string& path) {
  struct stat info = {};
  struct statfs system = {};
  if (::stat(path.c_str(), &info) != 0 || ::statfs(path.c_str(), &system) != 0) return "unknown";
  const unsigned major_number = major(info.st_dev);
  const unsigned minor_number = minor(info.st_dev);
  std::string identity =
      base::format("%u:%u %s", major_number, minor_number,
                   file_system_name(static_cast<unsigned long>(system.f_type) & 0xFFFFFFFFUL).c_str());
  // A partition's disk is the folder above.
  const std::string block = base::format("/sys/dev/block/%u:%u/", major_number, minor_number);
  for (const std::string& text :
       {first_text(block, {"device/model", "../device/model"}),
        first_text(block, {"device/serial", "../device/serial", "serial", "../serial"})}) {
    if (!text.empty()) identity += ", " + text;
  }
  return identity;
}

}  // namespace ganglion
