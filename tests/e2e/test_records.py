"""What the program writes about itself: routing traces, statistics, profiles, verdicts, its manual and completion."""

import csv
import json
import os
import re
import subprocess
import sys
import unittest

from test_cli import FIXTURES, MODEL, ROOT, Cli, ganglion, read_json

MIXTURES = ("mixtral-q8_0", "qwen3moe-f32", "glm4moe-f32", "smallthinker-q8_0")


class Records(Cli):
    def record(self, model, *args):
        out = os.path.join(self.dir, "routing")
        done = ganglion("run", "-m", model, "--raw", "-p", "the cat", "-n", "6", "--temp", "0", "--ignore-eos", "-q", "--draft",
                        "off", "--record-routing", out, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertTrue(lines[0].startswith("# ganglion routing 1"))
        return [tuple(map(int, line.split())) for line in lines[1:]]

    def test_routing_of_every_token_and_layer(self):
        for name in MIXTURES:
            with self.subTest(name):
                model = os.path.join(FIXTURES, "models", name + ".gguf")
                arch = json.loads(ganglion("inspect", "-m", model, "--json").stdout)["metadata"]
                family = arch["general.architecture"]["value"]
                used = int(arch[family + ".expert_used_count"]["value"])
                experts = int(arch[family + ".expert_count"]["value"])
                rows = self.record(model)
                layers = {row[2] for row in rows}
                positions = sorted({row[1] for row in rows})
                self.assertEqual(positions, list(range(len(positions))))
                self.assertGreater(len(positions), 5)
                self.assertEqual(len(rows), len(layers) * len(positions))
                self.assertEqual([row[0] for row in rows], sorted(row[0] for row in rows))
                for row in rows:
                    self.assertEqual(len(row), 3 + used)
                    self.assertEqual(list(row[3:]), sorted(set(row[3:])))
                    self.assertLess(row[-1], experts)
                # Where tokens go depends neither on memory nor on how many go together.
                def by_token(found):
                    return sorted(row[1:] for row in found)
                self.assertEqual(by_token(self.record(model, "--mem", "min", "--chunk", "1")), by_token(rows))

    def test_a_recorded_trace_can_be_replayed(self):
        simulator = os.environ.get("GANGLION_SIMULATOR")
        if not simulator:
            self.skipTest("built without tools")
        self.record(os.path.join(FIXTURES, "models", MIXTURES[0] + ".gguf"))
        done = subprocess.run([simulator, "--tokens", "20", "--sizes", "50", os.path.join(self.dir, "routing")],
                              capture_output=True, text=True, check=True)
        rows = [line for line in done.stdout.splitlines() if line.startswith("| routing (recorded) |")]
        self.assertEqual(len(rows), 1, done.stdout)

    def test_statistics_of_every_pass_add_up(self):
        path = os.path.join(self.dir, "stats.csv")
        model = os.path.join(self.dir, "moe.gguf")
        subprocess.run([os.environ["GANGLION_SYNTHESIZE"], "--shape", "tiny", "--experts", "16", "--experts-used", "2", "-o", model],
                       check=True, stderr=subprocess.DEVNULL)
        for args in (["run", "--raw", "-p", "the cat", "-n", "5", "--ignore-eos", "-q"],
                     ["bench", "-p", "8", "-n", "5", "-r", "2", "-o", "json"]):
            done = ganglion(*args, "-m", model, "--mem", "min", "--stats", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            total = rows.pop()
            self.assertEqual(total["phase"], "total")
            self.assertIn("answer", {row["phase"] for row in rows})
            for column in ("tokens", "read_bytes", "cached_bytes", "reads", "expert_hits", "expert_misses", "ahead_reads",
                           "ahead_used", "ahead_wasted"):
                self.assertEqual(sum(int(row[column]) for row in rows), int(total[column]), column)
            self.assertGreater(int(total["expert_misses"]), 0)
            for row in [*rows, total]:
                self.assertGreaterEqual(float(row["compute_ms"]), 0)
                self.assertAlmostEqual(float(row["ms"]), float(row["compute_ms"]) + float(row["io_wait_ms"]), delta=0.01)

    def test_records_that_cannot_be_written(self):
        for option in ("--stats", "--record-routing"):
            done = ganglion("run", "-m", MODEL, "--raw", "-p", "a", "-n", "1", "-q", option, os.path.join(self.dir, "no", "file"))
            self.expect_refusal(done, 1, "cannot write")

    def test_doctor_keeps_a_profile_that_plan_uses(self):
        env = {"XDG_CACHE_HOME": self.dir}
        done = ganglion("doctor", "-m", MODEL, "--quick", "--json", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        self.assertTrue(facts["disk"])
        self.assertEqual({kernel["type"] for kernel in facts["kernels"]} & {"Q4_0", "Q8_0", "Q4_K"}, {"Q4_0", "Q8_0", "Q4_K"})
        folder = os.path.join(self.dir, "ganglion")
        [name] = [name for name in os.listdir(folder) if name.startswith("profile-")]
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("{ not json")
        plan = ganglion("plan", "-m", MODEL, "--mem", "min", env=env)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("note: ignored:", plan.stderr)
        self.assertIn("predicted", plan.stdout)


class Manual(Cli):
    def test_the_man_page_is_that_of_this_program(self):
        page = ganglion("--man-page").stdout
        with open(os.path.join(ROOT, "docs", "ganglion.1"), encoding="utf-8") as file:
            self.assertEqual(file.read(), page, "run: ganglion --man-page > docs/ganglion.1")

    def test_the_man_page_has_every_option_of_every_help(self):
        page = ganglion("--man-page").stdout.replace("\\-", "-")
        commands = re.findall(r"^\.SS (\S+)$", page, re.M)
        self.assertIn("run", commands)
        for command in commands:
            section = page.split(f".SS {command}\n")[1].split("\n.SS ")[0].split("\n.SH ")[0]
            shared = page.split(".SH MODEL OPTIONS")[1].split(".SH COMMANDS")[0]
            for option in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", ganglion(command, "--help").stdout)) - {"--help"}:
                self.assertIn(option, section + shared, command)

    def complete(self, *words):
        script = ganglion("--completion-bash").stdout + "\nCOMP_WORDS=(" + " ".join(f"'{word}'" for word in words) + ")\n" + \
            f"COMP_CWORD={len(words) - 1}\n_ganglion\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

    def test_completion_knows_commands_options_and_values(self):
        self.assertEqual(self.complete("ganglion", "per"), ["perplexity"])
        self.assertEqual(self.complete("ganglion", "run", "--kv-type", ""), ["f16", "q8_0", "f32"])
        self.assertEqual(self.complete("ganglion", "run", "-ctk", "q"), ["q8_0"])
        self.assertEqual(self.complete("ganglion", "run", "--draft", ""), ["auto", "off"])
        self.assertEqual(self.complete("ganglion", "bench", "-o", "js"), ["json", "jsonl"])
        self.assertEqual(self.complete("ganglion", "run", "-s"), ["-s", "-st", "-sys"])
        self.assertEqual(self.complete("ganglion", "bench", "-st"), [])

    def test_verify_says_a_fault_once_and_in_json(self):
        bad = os.path.join(FIXTURES, "broken", "cut-100-bytes.gguf")
        done = ganglion("verify", bad)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
        facts = json.loads(ganglion("verify", bad, "--json").stdout)
        self.assertFalse(facts["ok"])
        self.assertIn("error", facts["files"][0])
        self.assertFalse(facts["model"]["ok"])
        facts = json.loads(ganglion("verify", MODEL, "--json", "--sha256").stdout)
        self.assertTrue(facts["ok"])
        self.assertEqual(facts["files"][0]["sha256"], read_json("models", "llama-q4_0.json")["sha256"])

    def test_quiet_means_quiet_and_the_seed_is_said_once(self):
        args = ["run", "-m", MODEL, "--raw", "-p", "a", "-n", "2", "-s", "7", "--mem", "min"]
        self.assertEqual(ganglion(*args, "-q").stderr, "")
        line = [line for line in ganglion(*args).stderr.splitlines() if line.startswith("sampling:")][0]
        self.assertEqual(line.count("seed 7"), 1, line)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
