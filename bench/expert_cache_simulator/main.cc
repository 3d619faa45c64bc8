// Compares replacement policies of the expert cache on recorded and generated routing; prints markdown.
//   expert_cache_simulator [--tokens N] [--sizes 13,25,50,75] [TRACE ...]
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "expert_cache_simulator/simulate.h"

namespace {

using ganglion::simulator::Misses;
using ganglion::simulator::Trace;

struct Totals {
  uint64_t engine = 0;
  uint64_t lru = 0;
  uint64_t optimum = 0;
};

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

double more_percent(uint64_t than, uint64_t base) {
  return percent(than, base) - 100;
}

void compare(const Trace& trace, const std::vector<uint32_t>& sizes,
             const ganglion::neuron_cache::EvictionOptions& options, Totals* totals) {
  uint32_t most = 0;
  for (const auto& step : trace.steps) most = std::max(most, static_cast<uint32_t>(step.experts.size()));
  uint32_t last = 0;
  for (const uint32_t size : sizes) {
    const uint32_t fits = std::max(most, trace.groups() * size / 100);
    if (std::exchange(last, fits) == fits) continue;  // What one layer needs has to fit.
    const Misses engine = simulate_engine(trace, fits, options);
    const Misses lru = simulate_lru(trace, fits);
    const Misses optimum = simulate_optimum(trace, fits);
    totals->engine += engine.missed;
    totals->lru += lru.missed;
    totals->optimum += optimum.missed;
    std::printf("| %s | %u %% | %.1f %% | %.1f %% | %.1f %% | %+.1f %% | %+.1f %% |\n", trace.name.c_str(),
                size, percent(optimum.missed, optimum.asked), percent(engine.missed, engine.asked),
                percent(lru.missed, lru.asked), more_percent(engine.missed, lru.missed),
                more_percent(engine.missed, optimum.missed));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Misses of the expert cache under the engine's policy, LRU and the offline optimum.");
  uint32_t tokens = 2000;
  uint64_t seed = 1;
  ganglion::neuron_cache::EvictionOptions options;
  std::vector<uint32_t> sizes = {13, 25, 50, 75};
  std::vector<std::string> files;
  app.add_option("--tokens", tokens, "Length of generated traces")->capture_default_str();
  app.add_option("--seed", seed, "Of generated traces")->capture_default_str();
  app.add_option("--short-half-life", options.short_half_life_ticks, "Tokens, of the estimate that follows")
      ->capture_default_str();
  app.add_option("--long-half-life", options.long_half_life_ticks, "Tokens, of the estimate that lasts")
      ->capture_default_str();
  app.add_option("--short-share", options.short_share, "Share of the former in an expert's heat")
      ->capture_default_str();
  app.add_option("--sizes", sizes, "Cache sizes in percent of all experts")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("traces", files, "Recorded traces (ganglion run --record-routing)");
  CLI11_PARSE(app, argc, argv);
  std::printf("uses count half after %.0f and %.0f tokens, mixed %.2f to %.2f\n\n",
              static_cast<double>(options.short_half_life_ticks),
              static_cast<double>(options.long_half_life_ticks), static_cast<double>(options.short_share),
              1 - static_cast<double>(options.short_share));
  std::printf("| trace | cache | optimum misses | engine | LRU | engine to LRU | engine to optimum |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  Totals totals;
  for (const auto& family : ganglion::simulator::families()) {
    Trace trace = generate(family, tokens, seed);
    trace.name += " (synthetic)";
    compare(trace, sizes, options, &totals);
  }
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const auto trace =
        ganglion::simulator::parse_trace(file.substr(file.find_last_of('/') + 1) + " (recorded)", text);
    if (!in || !trace.ok()) {
      std::fprintf(stderr, "%s\n",
                   trace.ok() ? ("cannot read " + file).c_str() : trace.status().message().c_str());
      return 1;
    }
    compare(trace.value(), sizes, options, &totals);
  }
  std::printf("| all | | | | | %+.2f %% | %+.2f %% |\n", more_percent(totals.engine, totals.lru),
              more_percent(totals.engine, totals.optimum));
  return 0;
}
