#!/usr/bin/env python3
"""Speed beyond memory, beside a peer on the same file under the same memory cgroup in the same run.

  bench/beyond_memory.py MODEL.gguf --budgets 2600000000 ... [--out bench/results/NAME]

Our program is build/release/ganglion (or GANGLION), the peer's llama-bench is named by LLAMA_BENCH and skipped if that
is not set. Needs root and a version 1 memory cgroup, whose limit counts page cache. Prints markdown; with --out also
writes it with a plot (SVG) of tokens per second against the budget.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

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
            "p99": facts["decode_ms_p99"], "predicted": facts["predicted_decode_tokens_per_s"]}


def theirs(args, budget):
    """The peer with memory-mapped weights, its habit beyond memory; repacking would need the memory twice."""
    if not PEER:
        return None
    command = [PEER, "-m", args.model, "-t", str(args.threads), "-p", "0", "-n", str(args.peer_tokens), "-r", "1", "-o", "json",
               "-ngl", "0", *args.peer_args.split()]
    try:
        done, peak = in_cgroup(budget, command, args.timeout)
        rows = json.loads(done.stdout)
        return {"decode": rows[-1]["avg_ts"], "peak": peak}
    except subprocess.TimeoutExpired:
        return {"error": "timed out"}
    except (ValueError, IndexError, KeyError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:80]}


def disk_rate(args):
    """Bytes per second of blocks of 512 KiB, eight under way, measured now."""
    done = subprocess.run([GANGLION, "doctor", "-m", args.model, "--json"], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    rate = max(sample["bytes_per_s"] for sample in facts["disk"] if sample["sequential"])
    memory = max(sample["bytes_per_s"] for sample in facts["memory"])
    return rate, memory, facts


def gb(value):
    return f"{value / 1e9:.2f}"


def row(budget, mine, peer, rate):
    if "error" in mine:
        return f"| {gb(budget)} GB | {mine['error']} | | | | | | |"
    bound = rate / mine["io_bytes"] if mine["io_bytes"] > 1e6 else None
    share = f"{100 * mine['decode'] / bound:.0f} %" if bound else "in memory"
    other = "-" if peer is None else peer.get("error") or f"{peer['decode']:.2f}"
    ratio = f"{mine['decode'] / peer['decode']:.1f}x" if peer and "decode" in peer else "-"
    return (f"| {gb(budget)} GB | {mine['decode']:.2f} | {mine['predicted']:.2f} | {gb(mine['io_bytes'])} GB | {share} | "
            f"{other} | {ratio} | {mine['prompt']:.1f} | {gb(mine['peak'])} GB |")


def plot(path, title, series):
    """Tokens per second against gigabytes, one line a system; no library needed."""
    width, height, left, bottom = 640, 360, 60, 50
    points = [point for _, _, line in series for point in line]
    most_x = max(x for x, _ in points) * 1.05
    most_y = max(y for _, y in points) * 1.1

    def place(x, y):
        return left + (width - left - 20) * x / most_x, height - bottom - (height - bottom - 40) * y / most_y

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{width / 2}" y="20" text-anchor="middle" font-size="14">{title}</text>',
             f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">memory limit, GB</text>',
             f'<text x="16" y="{height / 2}" text-anchor="middle" transform="rotate(-90 16 {height / 2})">tokens/s</text>']
    for i in range(6):
        x, y = place(most_x * i / 5, most_y * i / 5)
        base_x, base_y = place(0, 0)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * i / 5:.2f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{base_y + 16:.1f}" text-anchor="middle">{most_x * i / 5:.1f}</text>')
        del base_x
    for number, (name, colour, line) in enumerate(series):
        path_points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in line:
            x, y = place(*point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{left + 12}" y="{50 + 16 * number}" fill="{colour}">{name}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts + ["</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--budgets", type=int, nargs="+", required=True, help="bytes")
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
    rate, memory, facts = disk_rate(args)
    lines = [f"{os.path.basename(args.model)}, {gb(os.path.getsize(args.model))} GB; {facts['cpu']}, {args.threads} threads, "
             f"memory {gb(memory)} GB/s, disk {gb(rate)} GB/s (direct, sequential, measured just before); kernels "
             f"{facts['kernel_tables'][0]}; Linux {platform.release()}", "",
             "| limit | tokens/s | predicted | read per token | of the I/O bound | peer (mmap) | ratio | prompt tokens/s | peak |",
             "|---|---|---|---|---|---|---|---|---|"]
    mine_line, peer_line = [], []
    for budget in args.budgets:
        runs = []
        peers = []
        mine = ours(args, budget)
        runs.append(mine)
        peer = theirs(args, budget)
        peers.append(peer)
        if "decode" in mine:
            mine_line.append((budget / 1e9, mine["decode"]))
        if peer and "decode" in peer:
            peer_line.append((budget / 1e9, statistics.median(p["decode"] for p in peers)))
        lines.append(row(budget, mine, peer, rate))
        print(lines[-1], file=sys.stderr, flush=True)
        if mine.get("peak", 0) > budget:
            print(f"ABOVE THE BUDGET: {mine['peak']} of {budget}", file=sys.stderr)
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        with open(args.out + ".md", "w", encoding="utf-8") as file:
            file.write(text)
        series = [("ganglion", "#0a6", mine_line)] + ([("peer, mmap", "#c33", peer_line)] if peer_line else [])
        plot(args.out + ".svg", os.path.basename(args.model), series)


if __name__ == "__main__":
    main()
