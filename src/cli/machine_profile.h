// What doctor measured, as JSON, and kept on disk: one file per device, believed for a while only.
#pragma once

#include <string>

#include "ganglion/doctor.h"

namespace ganglion::cli {

std::string profile_json(const DoctorReport& report);
/// Errors: kInvalidArgument for text that is not such a profile.
Result<DoctorReport> parse_profile(const std::string& text);

/// $XDG_CACHE_HOME/ganglion or ~/.cache/ganglion; empty if neither is named.
std::string cache_folder();

/// Writes a profile to `folder` (made if missing) through a temporary file and an atomic rename. Errors: kIo.
Status save_profile(const std::string& folder, const DoctorReport& report);
/// The profile of `device` on a processor named `cpu` in `folder`, at most `most_age_s` old.
/// Errors: kNotFound if there is none, or one of another device, processor or time; kInvalidArgument if it is
/// damaged.
Result<DoctorReport> load_profile(const std::string& folder, const std::string& device,
                                  const std::string& cpu, int64_t most_age_s);

}  // namespace ganglion::cli
