#!/usr/bin/env python3
"""The tables of the PowerInfer-2 paper (arXiv 2406.06282) on a packed model with sparse activations, all in one run.

  bench/paper_tables.py PACK.gguf --source MODEL.gguf [--budget 2.6GB] [--out bench/results/NAME]
  bench/paper_tables.py PACK.gguf --source MODEL.gguf --budget 7GB,10GB,13GB,16GB,19GB [--out bench/results/NAME]

PACK is what `ganglion pack` made of MODEL; synthetic ones come from `synthesize`, and every figure then is one of a
synthetic model. Measured: all in memory, under a memory cgroup of --budget (which counts page cache), what a token costs
against what reading and computing alone cost, latency, prompts, batches, and one part of the sparse path after the other.
With several budgets: speed against memory, for models that never fit whole.
Our program is build/release/ganglion (or GANGLION); a peer's llama-bench is named by LLAMA_BENCH and skipped if that is
not set. Needs root and a version 1 memory cgroup. Prints markdown; with --out also writes it with a plot (SVG).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

from beyond_memory import GANGLION, PEER, budget_list, gb, in_cgroup, machine, overlap, peer_command
from svg_plot import bar_plot, line_plot

# Tokens per second of the paper's phone, 7B with half of the FFN off memory: its Figure 7 and llama.cpp's there.
PAPER_7B, PAPER_7B_PEER = 11.1, 0.4
# Of TurboSparse-Mixtral-47B on that phone, by gigabytes of memory: its Figure 10.
PAPER_47B = {7: 2.13, 10: 3.58, 13: 6.40, 16: 9.65, 19: 11.68}


def bench(args, model, budget, *more, repetitions=1):
    """JSON of `ganglion bench`, under a cgroup unless `budget` is 0, and the cgroup's peak."""
    command = [GANGLION, "bench", "-m", model, "-t", str(args.threads), "-c", "512", "-r", str(repetitions), "-o",
               "json", "--warm-up", str(args.warm_up), *more]
    if budget:
        done, peak = in_cgroup(budget, [*command, "--mem", str(budget)], args.timeout)
    else:
        done = subprocess.run([*command, "--mem", args.enough], capture_output=True, text=True, timeout=args.timeout,
                              check=False)
        peak = 0
    if done.returncode != 0:
        raise SystemExit((done.stderr.strip().splitlines() or ["bench failed"])[-1])
    print(".", end="", file=sys.stderr, flush=True)
    return json.loads(done.stdout), peak


def peer(args, budget):
    """Tokens per second of the peer on the source, memory-mapped, its habit beyond memory."""
    if not PEER:
        return None
    command = peer_command(args, args.source)
    if budget:
        done, _ = in_cgroup(budget, command, args.timeout)
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    try:
        return json.loads(done.stdout)[-1]["avg_ts"]
    except (ValueError, IndexError, KeyError):
        print((done.stderr.strip().splitlines() or ["the peer said nothing"])[-1], file=sys.stderr)
        return None


def slower_disk(before, after):
    """Facts `before`, each sample of the disk as the slower of both."""
    disk = [min(pair, key=lambda sample: sample["bytes_per_s"]) for pair in zip(before["disk"], after["disk"])]
    return {**before, "disk": disk}


def random_reads(facts, read_bytes):
    """Reads per second and seconds of a processor per read, between the two sizes measured around `read_bytes`."""
    samples = sorted((s["read_bytes"], s["bytes_per_s"], s["cpu_s_per_read"]) for s in facts["disk"]
                     if not s["sequential"] and s["depth"] >= 16)
    below = max((s for s in samples if s[0] <= read_bytes), default=samples[0])
    above = min((s for s in samples if s[0] >= read_bytes), default=samples[-1])
    part = 0 if above[0] == below[0] else (read_bytes - below[0]) / (above[0] - below[0])
    seconds = (1 - part) * below[0] / below[1] + part * above[0] / above[1]
    return 1 / seconds, (1 - part) * below[2] + part * above[2]


def bound(in_memory_ms, reads, read_bytes, facts, threads):
    """Milliseconds of a token that only reads, of one that only computes, its requests' processor time included, and of
    both at once, as far as this machine can do that."""
    rate, cpu_s = random_reads(facts, read_bytes)
    io_ms, compute_ms = 1e3 * reads / rate, in_memory_ms + 1e3 * reads * cpu_s / threads
    return io_ms, compute_ms, max(io_ms, compute_ms, (io_ms + in_memory_ms) / overlap(facts, sequential=False))


def ratio(value, other):
    return "-" if not other else f"{value / other:.1f}x"


def median_rates(runs):
    return statistics.median(run["decode_tokens_per_s"] for run in runs)


def measure(args):
    """All figures, in rounds that alternate, so that a slow minute meets all alike."""
    tokens = ["-p", "0", "-n", str(args.tokens)]
    out = {"facts": [], "dense": [], "memory": [], "tight": [], "batch_memory": [], "batch_tight": [],
           "peer_memory": [], "peer_tight": [], "prompt_pack": [], "prompt_source": []}
    batch = [*tokens, "--parallel", "4"]
    for _ in range(args.rounds):
        # Shared disks slow down after large reads: their rate is taken before and after the run that it is compared with.
        before = machine(args.pack)
        out["tight"].append(bench(args, args.pack, args.budget, *tokens))
        out["facts"].append(slower_disk(before, machine(args.pack)))
        out["memory"].append(bench(args, args.pack, 0, *tokens)[0])
        out["batch_memory"].append(bench(args, args.pack, 0, *batch)[0])
        out["dense"].append(bench(args, args.source, 0, *tokens)[0])
        for key, budget in (("peer_memory", 0), ("peer_tight", args.budget)):
            rate = peer(args, budget)
            if rate:
                out[key].append(rate)
        for key, model in (("prompt_pack", args.pack), ("prompt_source", args.source)):
            out[key].append(bench(args, model, args.budget, "-p", "512", "-n", "0")[0]["prompt_tokens_per_s"])
    out["batch_tight"].append(bench(args, args.pack, args.budget, *batch)[0])
    out["ablation"] = bench(args, args.pack, args.budget, "-n", str(args.tokens), "--ablation")[0]
    out["touched"] = touched_bytes(args, args.enough)
    print(file=sys.stderr)
    return out


def touched_bytes(args, budget):
    """Bytes of weights that a generated token of the pack touches."""
    plan = subprocess.run([GANGLION, "plan", "-m", args.pack, "--mem", str(budget), "-c", "512", "--json"],
                          capture_output=True, text=True, check=True)
    return json.loads(plan.stdout)["sparse_bytes_per_token"]


def measure_budgets(args):
    """By budget: runs with the machine's facts around each, and the peer's rates; in rounds."""
    found = {budget: {"facts": [], "runs": [], "peer": [], "touched": touched_bytes(args, budget)} for budget in args.budget}
    for number in range(args.rounds):
        for budget in args.budget:
            before = machine(args.pack)
            found[budget]["runs"].append(bench(args, args.pack, budget, "-p", "0", "-n", str(args.tokens), repetitions=args.repetitions))
            found[budget]["facts"].append(slower_disk(before, machine(args.pack)))
            rate = peer(args, budget) if number < args.peer_rounds else None
            if rate:
                found[budget]["peer"].append(rate)
    print(file=sys.stderr)
    return found


def budget_tables(args, found):
    """Markdown of what measure_budgets() found; and by budget our median and the peer's (or None)."""
    facts = found[args.budget[0]]["facts"][-1]
    lines = [f"{os.path.basename(args.pack)} ({gb(os.path.getsize(args.pack))} GB) of {os.path.basename(args.source)} "
             f"({gb(os.path.getsize(args.source))} GB); {facts['cpu']}, {args.threads} threads, kernels {facts['kernel_tables'][0]}; "
             f"Linux {platform.release()}; {args.tokens} random tokens after {args.warm_up} that warm up, "
             f"context 512, medians of {args.repetitions}, {'one round' if args.rounds == 1 else f'medians of {args.rounds} rounds'}.", "",
             "Bounds by what the machine reached just before or after each run, the slower of both: reads at the random rate of their "
             "size; computing: bytes touched at the bandwidth of memory, and the processor time of reads.", "",
             "| limit, GB | tokens/s | the paper's | reads a token | present | I/O alone, ms | computing alone, ms | a token, ms "
             "| of the larger | of both at once | peer, mmap | ratio | peak, GB |", "|---" * 13 + "|"]
    medians = []
    for budget in args.budget:
        of = found[budget]
        shares, shares_at_once, ios, computes = [], [], [], []
        for facts, (run, _) in zip(of["facts"], of["runs"]):
            memory_ms = 1e3 * of["touched"] / max(s["bytes_per_s"] for s in facts["memory"])
            reads = run["reads_per_token"]
            io_ms, compute_ms, at_once_ms = bound(memory_ms, reads, run["io_bytes_per_token"] / max(reads, 1), facts, args.threads)
            ms = 1e3 / run["decode_tokens_per_s"]
            ios.append(io_ms)
            computes.append(compute_ms)
            shares.append(max(io_ms, compute_ms) / ms)
            shares_at_once.append(at_once_ms / ms)
        runs = [run for run, _ in of["runs"]]
        rate, reads = median_rates(runs), statistics.median(run["reads_per_token"] for run in runs)
        size = statistics.median(run["io_bytes_per_token"] for run in runs) / max(reads, 1)
        other = statistics.median(of["peer"]) if of["peer"] else None
        medians.append((budget, rate, other))
        lines.append(f"| {gb(budget)} | {rate:.2f} | {PAPER_47B.get(round(budget / 1e9), '-')} | {reads:.0f} of {size / 1024:.1f} KiB | "
                     f"{100 * statistics.median(run['cache_hit_rate'] for run in runs):.1f} % | {statistics.median(ios):.0f} | "
                     f"{statistics.median(computes):.0f} | {1e3 / rate:.0f} | {100 * statistics.median(shares):.0f} % | "
                     f"{100 * statistics.median(shares_at_once):.0f} % | {'-' if other is None else f'{other:.2f}'} | "
                     f"{ratio(rate, other)} | {gb(max(peak for _, peak in of['runs']))} |")
    return "\n".join(lines) + "\n", medians


def write_budgets(args, text, medians):
    with open(args.out + ".md", "w", encoding="utf-8") as file:
        file.write(text)
    series = [("ganglion", [(budget / 1e9, rate) for budget, rate, _ in medians]),
              ("the paper's phone", [(gigabytes, rate) for gigabytes, rate in PAPER_47B.items()]),
              ("peer, mmap", [(budget / 1e9, other) for budget, _, other in medians if other])]
    with open(args.out + ".svg", "w", encoding="utf-8") as file:
        file.write(line_plot(os.path.basename(args.pack), "memory limit, GB", "tokens/s", series))


def tables(args, found):
    """Markdown of what measure() found."""
    facts = found["facts"][-1]
    memory = statistics.median(max(s["bytes_per_s"] for s in f["memory"]) for f in found["facts"])
    dense, packed = median_rates(found["dense"]), median_rates(found["memory"])
    batch_memory, batch_tight = median_rates(found["batch_memory"]), median_rates(found["batch_tight"])
    peer_memory = statistics.median(found["peer_memory"]) if found["peer_memory"] else None
    peer_tight = statistics.median(found["peer_tight"]) if found["peer_tight"] else None
    prompt_pack, prompt_source = statistics.median(found["prompt_pack"]), statistics.median(found["prompt_source"])
    touched = found["touched"]
    lines = [f"{os.path.basename(args.pack)} ({gb(os.path.getsize(args.pack))} GB) of {os.path.basename(args.source)} "
             f"({gb(os.path.getsize(args.source))} GB); {facts['cpu']}, {args.threads} threads, memory {gb(memory)} GB/s, "
             f"kernels {facts['kernel_tables'][0]}; Linux {platform.release()}; {args.tokens} random tokens after {args.warm_up} that warm up, context 512, "
             f"medians of {args.rounds} rounds.", "",
             "| all in memory | tokens/s | x dense | x peer | of bytes touched / bandwidth |", "|---|---|---|---|---|",
             f"| dense | {dense:.2f} | | {ratio(dense, peer_memory)} | |",
             f"| pack | {packed:.2f} | {ratio(packed, dense)} | {ratio(packed, peer_memory)} | "
             f"{100 * packed * touched / memory:.0f} % ({gb(touched)} GB) |"]
    if peer_memory:
        lines.append(f"| peer, mmap | {peer_memory:.2f} | | | |")
    lines += ["", f"| limit {gb(args.budget)} GB | tokens/s | reads a token | I/O alone, ms | computing alone, ms | a token, ms "
              "| of the larger | both at once, ms | of that | I/O wait, ms | peak, GB |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    shares, shares_at_once = [], []
    for facts, in_memory, (tight, peak) in zip(found["facts"], found["memory"], found["tight"]):
        reads, size = tight["reads_per_token"], tight["io_bytes_per_token"] / max(tight["reads_per_token"], 1)
        io_ms, compute_ms, at_once_ms = bound(1e3 / in_memory["decode_tokens_per_s"], reads, size, facts, args.threads)
        ms = 1e3 / tight["decode_tokens_per_s"]
        shares.append(ms / max(io_ms, compute_ms))
        shares_at_once.append(ms / at_once_ms)
        lines.append(f"| round {len(shares)} | {tight['decode_tokens_per_s']:.2f} | {reads:.0f} of {size / 1024:.1f} KiB | "
                     f"{io_ms:.0f} | {compute_ms:.0f} | {ms:.0f} | {shares[-1]:.2f}x | {at_once_ms:.0f} | {shares_at_once[-1]:.2f}x | "
                     f"{tight['io_wait_ms_per_token']:.1f} | "
                     f"{gb(peak)} |")
    rate = median_rates([tight for tight, _ in found["tight"]])
    lines.append(f"| median | {rate:.2f} | | | | | {statistics.median(shares):.2f}x | | {statistics.median(shares_at_once):.2f}x | | |")
    if peer_tight:
        lines.append(f"| peer, mmap | {peer_tight:.2f} ({ratio(rate, peer_tight)}) | | | | | | | | | |")
    last = found["tight"][-1][0]
    lines += ["", f"The paper's phone: {PAPER_7B} tokens/s, {PAPER_7B / PAPER_7B_PEER:.1f} times llama.cpp there.", "",
              "| latency of a token | P50 | P90 | P99 | P99 / mean |", "|---|---|---|---|---|",
              f"| ms | {last['decode_ms_p50']:.0f} | {last['decode_ms_p90']:.0f} | {last['decode_ms_p99']:.0f} | "
              f"{last['decode_ms_p99'] * last['decode_tokens_per_s'] / 1e3:.2f} |", "",
              "| prompt of 512 at the limit | tokens/s |", "|---|---|", f"| source | {prompt_source:.1f} |",
              f"| pack | {prompt_pack:.1f} ({100 * prompt_pack / prompt_source:.0f} %) |", "",
              "| four sequences as a batch | tokens/s | x one |", "|---|---|---|",
              f"| all in memory | {batch_memory:.2f} | {batch_memory / packed:.2f} |",
              f"| at the limit | {batch_tight:.2f} | {batch_tight / rate:.2f} |", "",
              "| at the limit, one part after the other | tokens/s | x | I/O wait | read per token |", "|---|---|---|---|---|"]
    first = found["ablation"][0]["decode_tokens_per_s"]
    for step in found["ablation"]:
        lines.append(f"| {step['parts']} | {step['decode_tokens_per_s']:.2f} | {step['decode_tokens_per_s'] / first:.1f} | "
                     f"{100 * step['io_wait_share']:.0f} % | {step['io_bytes_per_token'] / 1e6:.0f} MB |")
    lines += ["", "Streamed dense: exact passes on the pack, whose bundles bring down rows along that such passes do not use."]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("--source", required=True, help="the model that was packed")
    parser.add_argument("--budget", type=budget_list, default=[2600000000], help="of the tight runs; several: speed against memory")
    parser.add_argument("--enough", default="auto", help="--mem of the runs in memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--warm-up", type=int, default=64, help="tokens of each run before anything is measured")
    parser.add_argument("--repetitions", type=int, default=3, help="with several budgets: of the answer in each run, whose median counts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-tokens", type=int, default=8)
    parser.add_argument("--peer-rounds", type=int, default=1, help="with several budgets, whose slow runs take minutes")
    parser.add_argument("--peer-args", default="", help="further arguments of the peer, in one string")
    parser.add_argument("--timeout", type=int, default=1800)
    parser.add_argument("--out", help="write OUT.md and OUT.svg")
    args = parser.parse_args()
    if len(args.budget) > 1:
        text, medians = budget_tables(args, measure_budgets(args))
        print(text)
        if args.out:
            write_budgets(args, text, medians)
        return
    args.budget = args.budget[0]
    found = measure(args)
    text = tables(args, found)
    print(text)
    if args.out:
        with open(args.out + ".md", "w", encoding="utf-8") as file:
            file.write(text)
        bars = [(step["parts"], step["decode_tokens_per_s"]) for step in found["ablation"]]
        if found["peer_tight"]:
            bars.insert(0, ("peer, mmap", statistics.median(found["peer_tight"])))
        with open(args.out + ".svg", "w", encoding="utf-8") as file:
            file.write(bar_plot(f"{os.path.basename(args.pack)} in {gb(args.budget)} GB", "tokens/s", bars))


if __name__ == "__main__":
    main()
