#!/usr/bin/env python3
"""Speed beyond memory, beside a peer on the same file under the same memory cgroup in the same run.

  bench/beyond_memory.py MODEL.gguf --budgets 160M,640M,2.6GB [--out bench/results/NAME]

Our program is build/release/ganglion (or GANGLION), the peer's llama-bench is named by LLAMA_BENCH and skipped if that
is not set. Needs root and a version 1 memory cgroup, whose limit counts page cache. Prints markdown; with --out also
writes it with a plot (SVG) of tokens per second against the budget.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time

from svg_plot import line_plot

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GANGLION = os.environ.get("GANGLION", os.path.join(ROOT, "build/release/ganglion"))
PEER = os.environ.get("LLAMA_BENCH", "")
CGROUP = "/sys/fs/cgroup/memory"


def in_cgroup(limit, command, timeout):
    """Runs a command with a cold page cache under `limit` bytes; its output and the cgroup's own peak."""
    group = f"{CGROUP}/ganglion-bench-{os.getpid()}"
    os.mkdir(group)
    try:
        with open(f"{group}/memory.limit_in_bytes", "w", encoding="utf-8") as file:
            file.write(str(limit))
        subprocess.run(["sync"], check=True)
        with open("/proc/sys/vm/drop_caches", "w", encoding="utf-8") as file:
            file.write("3")
        done = subprocess.run(["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-", *command],
                              capture_output=True, text=True, timeout=timeout, check=False)
        with open(f"{group}/memory.max_usage_in_bytes", encoding="utf-8") as file:
            return done, int(file.read())
    finally:
        for _ in range(100):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


def ours(args, budget):
    done, peak = in_cgroup(budget, [GANGLION, "bench", "-m", args.model, "--mem", str(budget), "-t", str(args.threads),
                                    "-p", str(args.prompt), "-n", str(args.tokens), "-d", str(args.depth), "-c",
                                    str(max(args.prompt, args.depth + args.tokens)), "-r", str(args.repetitions), "-o",
                                    "json"], args.timeout)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    facts = json.loads(done.stdout)
    return {"prompt": facts["prompt_tokens_per_s"], "decode": facts["decode_tokens_per_s"], "peak": peak,
            "io_bytes": facts["io_bytes_per_token"], "wait_ms": facts["io_wait_ms_per_token"],
            "hit": facts["cache_hit_rate"], "p50": facts["decode_ms_p50"], "p90": facts["decode_ms_p90"],
            "p99": facts["decode_ms_p99"], "predicted": facts["predicted_decode_tokens_per_s"],
            "touched": touched_bytes(args, budget)}


def peer_command(args, model):
    return [PEER, "-m", model, "-t", str(args.threads), "-p", "0", "-n", str(args.peer_tokens), "-r", "1", "-o", "json", "-ngl",
            "0", *args.peer_args.split()]


def theirs(args, budget):
    """The peer with memory-mapped weights, its habit beyond memory; repacking would need the memory twice."""
    if not PEER:
        return None
    try:
        done, peak = in_cgroup(budget, peer_command(args, args.model), args.timeout)
        rows = json.loads(done.stdout)
        return {"decode": rows[-1]["avg_ts"], "peak": peak}
    except subprocess.TimeoutExpired:
        return {"error": "timed out"}
    except (ValueError, IndexError, KeyError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:80]}


def machine(model):
    """Facts of `ganglion doctor` on the model's disk, measured now."""
    done = subprocess.run([GANGLION, "doctor", "-m", model, "--quick", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def overlap(facts, sequential):
    """What memory and disk reach at once, as shares of each alone: 1 where one goes on at the other's cost, up to 2."""
    both = next(sample for sample in facts["overlap"] if sample["disk"]["sequential"] == sequential)
    memory = next(sample for sample in facts["memory"] if sample["threads"] == both["threads"])
    alone = next(sample for sample in facts["disk"]
                 if all(sample[key] == both["disk"][key] for key in ("read_bytes", "depth", "sequential")))
    return min(2, max(1, both["memory_bytes_per_s"] / memory["bytes_per_s"] +
                      both["disk"]["bytes_per_s"] / alone["bytes_per_s"]))


class Rates:
    """What the machine reached just before: bytes per second of memory and disk, alone and both at once."""

    def __init__(self, facts):
        self.disk = max(sample["bytes_per_s"] for sample in facts["disk"] if sample["sequential"])
        self.memory = max(sample["bytes_per_s"] for sample in facts["memory"])
        self.overlap = overlap(facts, sequential=True)

    def seconds(self, touched, read):
        """The bound of a token that touches and reads so many bytes, as far as both go on at once."""
        memory, disk = touched / self.memory, read / self.disk
        return max(memory, disk, (memory + disk) / self.overlap)


def touched_bytes(args, budget):
    """Bytes of weights that a token touches."""
    plan = json.loads(subprocess.run([GANGLION, "plan", "-m", args.model, "--mem", str(budget), "--json"],
                                     capture_output=True, text=True, check=True).stdout)
    experts = plan["expert_bytes_per_token"] if plan["streams"] else 0
    return plan["resident_weight_bytes"] + plan["streamed_bytes_per_token"] + experts


HEAD = ("| limit | tokens/s | predicted | read per token | of the bound | peer (mmap) | ratio | prompt tokens/s | peak |\n"
        "|---|---|---|---|---|---|---|---|---|")


def gb(value):
    return f"{value / 1e9:.2f}"


def row(budget, mine, peer, rates):
    if "error" in mine:
        return f"| {gb(budget)} GB | {mine['error']} | | | | | | | |"
    bound_s = rates.seconds(mine["touched"], mine["io_bytes"]) if mine["io_bytes"] > 1e6 else None
    share = f"{100 * mine['decode'] * bound_s:.0f} %" if bound_s else "in memory"
    other = "-" if peer is None else peer.get("error") or f"{peer['decode']:.2f}"
    predicted = "-" if mine["predicted"] is None else f"{mine['predicted']:.2f}"
    ratio = f"{mine['decode'] / peer['decode']:.1f}x" if peer and "decode" in peer else "-"
    return (f"| {gb(budget)} GB | {mine['decode']:.2f} | {predicted} | {gb(mine['io_bytes'])} GB | {share} | "
            f"{other} | {ratio} | {mine['prompt']:.1f} | {gb(mine['peak'])} GB |")


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def budget_list(text):
    """Bytes of "160M,2.5G,1GB,600000000": units as the program's --mem has them. ValueError for other text."""
    budgets = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?B?)", part.strip())
        if not found or found[2] not in UNITS or float(found[1]) == 0:
            raise ValueError(f"'{part}' is no size")
        budgets.append(int(float(found[1]) * UNITS[found[2]]))
    return budgets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--budgets", type=budget_list, required=True, help="sizes with commas: 160M,2.6GB,...")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer-tokens", type=int, default=8)
    parser.add_argument("--peer-args", default="", help="further arguments of the peer, in one string")
    parser.add_argument("--timeout", type=int, default=1800)
    parser.add_argument("--out", help="write OUT.md and OUT.svg")
    args = parser.parse_args()
    facts = machine(args.model)
    rates = Rates(facts)
    lines = [f"{os.path.basename(args.model)}, {gb(os.path.getsize(args.model))} GB; {facts['cpu']}, {args.threads} threads, "
             f"memory {gb(rates.memory)} GB/s, disk {gb(rates.disk)} GB/s (direct, sequential, measured just before), both at "
             f"once {rates.overlap:.2f} times one alone; kernels {facts['kernel_tables'][0]}; Linux {platform.release()}", "",
             "The bound: the longer of touching and reading, but no less than both over what they reach at once.", "", HEAD]
    mine_line, peer_line = [], []
    for budget in sorted(args.budgets):
        mine = ours(args, budget)
        peer = theirs(args, budget)
        if "decode" in mine:
            mine_line.append((budget / 1e9, mine["decode"]))
        if peer and "decode" in peer:
            peer_line.append((budget / 1e9, peer["decode"]))
        lines.append(row(budget, mine, peer, rates))
        print(lines[-1], file=sys.stderr, flush=True)
        if mine.get("peak", 0) > budget:
            print(f"ABOVE THE BUDGET: {mine['peak']} of {budget}", file=sys.stderr)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        with open(args.out + ".md", "w", encoding="utf-8") as file:
            file.write(text)
        series = [("ganglion", mine_line)] + ([("peer, mmap", peer_line)] if PEER else [])
        with open(args.out + ".svg", "w", encoding="utf-8") as file:
            file.write(line_plot(os.path.basename(args.model), "memory limit, GB", "tokens/s", series))


if __name__ == "__main__":
    main()
