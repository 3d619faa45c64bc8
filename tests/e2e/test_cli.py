"""The built program as a user meets it: answers, bad input, faults, limits, interruption."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
PROGRAM = os.environ["GANGLION_PROGRAM"]
PRELOAD = os.environ["GANGLION_PRELOAD"]
SANITIZED = os.environ.get("GANGLION_SANITIZED", "") != ""
MODEL = os.path.join(FIXTURES, "models", "llama-q4_0.gguf")
DENSE = os.path.join(FIXTURES, "broken", "intact-dense.gguf")


def read_json(*parts):
    with open(os.path.join(FIXTURES, *parts), encoding="utf-8") as file:
        return json.load(file)


# Only so that a hang ends some time; sanitizers are slow.
PATIENCE_S = 1800 if SANITIZED else 120


def ganglion(*args, env=None, stdin=subprocess.DEVNULL, timeout=PATIENCE_S, **kwargs):
    return subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=timeout, stdin=stdin, check=False,
                          env={**os.environ, **(env or {})}, errors="replace", **kwargs)


def faulty(fault, *args, **kwargs):
    return ganglion(*args, "--no-io-uring", env={"LD_PRELOAD": PRELOAD, "GANGLION_FAULT": fault}, **kwargs)


def budget_above_least(model, mebibytes):
    """The smallest budget that works here (sanitizers take a share of it) and some more."""
    least = json.loads(ganglion("plan", "-m", model, "--mem", "min", "--json").stdout)["budget_bytes"]
    return str(least + (mebibytes << 20))


def answer(model, *args, **kwargs):
    return ganglion("run", "-m", model, "--raw", "-p", "the cat", "-n", "20", "--temp", "0", "-q", *args, **kwargs)


class Cli(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ganglion-e2e-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def expect_refusal(self, done, code, *words):
        """One line on stderr with one of the words, the right exit code, nothing on stdout."""
        lines = [line for line in done.stderr.splitlines() if line.startswith("ganglion: ")]
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(len(lines), 1, done.stderr)
        if words:
            self.assertTrue(any(word in lines[0].lower() for word in words), f"{lines[0]} has none of {words}")
        return lines[0]


class Answers(Cli):
    def test_same_text_for_every_budget_thread_count_and_queue(self):
        expected = answer(MODEL)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        self.assertGreater(len(expected.stdout), 5)
        for args in (["--mem", "min"], ["--mem", budget_above_least(MODEL, 8), "-t", "1"], ["--mem", "min", "--no-io-uring", "-t", "3"],
                     ["--mem", "min", "--no-direct-io"], ["--chunk", "1"]):
            self.assertEqual(answer(MODEL, *args).stdout, expected.stdout, args)

    def test_drafts_change_speed_only(self):
        for seed in ("1", "2"):
            args = ["run", "-m", MODEL, "--raw", "-p", "a b a b a b a b", "-n", "60", "-s", seed, "--temp", "0.3", "--mem", "min",
                    "--ignore-eos"]
            plain = ganglion(*args, "--draft", "off")
            drafted = ganglion(*args, "--draft", "8")
            self.assertEqual(plain.stdout, drafted.stdout)
            self.assertRegex(drafted.stderr, r"drafts \d+ of [1-9]\d* right")

    def test_one_seed_one_text(self):
        texts = {ganglion("run", "-m", MODEL, "--raw", "-p", "a", "-n", "30", "-s", "7", "-q", *args).stdout
                 for args in ([], ["--mem", "min"], ["-t", "1"], ["--chunk", "2"])}
        self.assertEqual(len(texts), 1)
        other = ganglion("run", "-m", MODEL, "--raw", "-p", "a", "-n", "30", "-s", "8", "-q").stdout
        self.assertNotIn(other, texts)

    def test_plan_and_statistics_go_to_stderr(self):
        done = ganglion("run", "-m", MODEL, "--raw", "-p", "a", "-n", "3", "--mem", "min")
        self.assertIn("planned in all", done.stderr)
        self.assertIn("per token", done.stderr)
        self.assertIn("peak memory", done.stderr)
        self.assertNotIn("plan", done.stdout)

    def test_prompt_from_a_pipe(self):
        done = subprocess.run([PROGRAM, "run", "-m", MODEL, "--raw", "-n", "20", "--temp", "0", "-q"], input="the cat",
                              capture_output=True, text=True, check=False, errors="replace")
        self.assertEqual(done.stdout, answer(MODEL).stdout)

    def test_split_model_by_any_part_or_directory(self):
        folder = os.path.join(FIXTURES, "splits", "three")
        texts = {answer(os.path.join(folder, name)).stdout for name in os.listdir(folder)} | {answer(folder).stdout}
        self.assertEqual(len(texts), 1)

    def test_logits_of_positions(self):
        out = os.path.join(self.dir, "out.f32")
        golden = read_json("models", "llama-q4_0.json")["long"]
        done = ganglion("logits", "-m", MODEL, "--tokens", ",".join(map(str, golden["tokens"])), "--kv-type", "f32",
                        "--positions", ",".join(map(str, golden["positions"])), "-o", out, "--mem", "min")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, "rb") as file:
            values = struct.unpack(f"<{3 * 320}f", file.read())
        best = [max(range(320), key=lambda i: values[row * 320 + i]) for row in range(3)]
        self.assertEqual(best, golden["argmax"])

    def test_bench_json_has_all_fields(self):
        done = ganglion("bench", "-m", MODEL, "-p", "20", "-n", "5", "-r", "2", "-o", "json", "--mem", "min")
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        for field in ("model threads isa budget_bytes peak_rss_bytes prompt_tokens prompt_tokens_per_s decode_tokens "
                      "decode_tokens_per_s decode_ms_p50 decode_ms_p90 decode_ms_p99 io_bytes_per_token "
                      "io_wait_ms_per_token cache_hit_rate predicted_decode_tokens_per_s").split():
            self.assertIn(field, facts)
        self.assertGreater(facts["io_bytes_per_token"], 100_000)
        self.assertLess(facts["cache_hit_rate"], 0.5)
        for form in ("md", "csv", "jsonl"):
            self.assertEqual(ganglion("bench", "-m", MODEL, "-p", "4", "-n", "2", "-r", "1", "-o", form).returncode, 0)

    def test_perplexity_is_the_same_streamed(self):
        text = os.path.join(self.dir, "text")
        with open(text, "w", encoding="utf-8") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 20)
        runs = [ganglion("perplexity", "-m", MODEL, "-f", text, "-c", "64", "--json", "-q", *args)
                for args in ([], ["--mem", "min"])]
        self.assertEqual(runs[0].returncode, 0, runs[0].stderr)
        self.assertEqual(runs[0].stdout, runs[1].stdout)
        self.assertGreater(json.loads(runs[0].stdout)["perplexity"], 1)

    def test_inspect_verify_plan(self):
        facts = json.loads(ganglion("inspect", "-m", MODEL, "--json").stdout)
        self.assertEqual(facts["metadata"]["general.architecture"]["value"], "llama")
        self.assertEqual(len(facts["tensors"]), 30)
        self.assertIn("token_embd.weight", ganglion("inspect", MODEL).stdout)
        done = ganglion("verify", MODEL, "--sha256")
        self.assertEqual(done.returncode, 0)
        golden = read_json("models", "llama-q4_0.json")
        self.assertIn(golden["sha256"], done.stdout)
        budget = budget_above_least(MODEL, 40)
        plan = json.loads(ganglion("plan", "-m", MODEL, "--mem", budget, "--json").stdout)
        self.assertLessEqual(plan["planned_bytes"], int(budget))

    def test_tokenize_and_back(self):
        cases = read_json("models", "tokenizer_cases.json")
        cases = cases["cases"] if isinstance(cases, dict) else cases
        lines = "".join(json.dumps({"text": case["text"], "add_special": False, "parse_special": True}) + "\n"
                        for case in cases)
        done = subprocess.run([PROGRAM, "tokenize", "-m", MODEL, "--jsonl"], input=lines, capture_output=True, text=True,
                              check=False)
        found = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
        self.assertEqual(found, [case["ids"] for case in cases])
        back = ganglion("detokenize", "-m", MODEL, "--ids", ",".join(map(str, found[0])), "--json")
        self.assertEqual(json.loads(back.stdout)["text"], cases[0]["text"])
        self.assertEqual(ganglion("tokenize", "-m", MODEL, "-p", "the cat", "--json").returncode, 0)


class BadInput(Cli):
    def test_broken_files(self):
        manifest = read_json("broken", "manifest.json")
        for entry in manifest["files"]:
            with self.subTest(entry["file"]):
                done = answer(os.path.join(FIXTURES, "broken", entry["file"]))
                if entry["expected"] == "refuse":
                    self.expect_refusal(done, 3, *entry["words"])
                    self.assertNotEqual(ganglion("verify", os.path.join(FIXTURES, "broken", entry["file"])).returncode, 0)
                elif entry["expected"] == "accept":
                    self.assertEqual(done.returncode, 0, done.stderr)

    def test_missing_things(self):
        self.expect_refusal(answer(os.path.join(self.dir, "none.gguf")), 3, "none.gguf")
        self.expect_refusal(answer(self.dir), 3, "0 gguf models")
        empty = os.path.join(self.dir, "empty.gguf")
        open(empty, "wb").close()
        self.expect_refusal(answer(empty), 3, "not a gguf")
        self.expect_refusal(answer(os.path.join(FIXTURES, "splits", "missing-last")), 3, "00003")

    def test_convert(self):
        output = os.path.join(self.dir, "out.gguf")
        self.expect_refusal(ganglion("convert", self.dir, "-o", output), 3, "config.json' is missing")
        with open(os.path.join(self.dir, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"architectures": ["NoSuchModel"]}, file)
        self.expect_refusal(ganglion("convert", self.dir, "-o", output), 3, "nosuchmodel")
        self.expect_refusal(ganglion("convert", self.dir, "-o", output, "--type", "q9"), 2, "q9")
        self.expect_refusal(ganglion("convert", os.path.join(self.dir, "none"), "-o", output), 3, "no directory")
        self.assertFalse(os.path.exists(output))

    def test_bad_options(self):
        self.expect_refusal(answer(MODEL, "--mem", "lots"), 2, "--mem")
        self.expect_refusal(answer(MODEL, "--mem", "0"), 2, "--mem")
        self.expect_refusal(answer(MODEL, "--isa", "z80"), 2, "z80")
        self.expect_refusal(answer(MODEL, "--kv-type", "q3"), 2, "q3")
        self.expect_refusal(answer(MODEL, "--override", "novalue"), 2, "override")
        self.expect_refusal(answer(MODEL, "--nonsense"), 2, "nonsense")
        self.expect_refusal(answer(MODEL, "--top-p", "7"), 2, "top_p")
        self.expect_refusal(ganglion("run"), 2, "model")
        self.assertEqual(ganglion().returncode, 2)
        self.assertEqual(ganglion("--help").returncode, 0)
        self.assertEqual(ganglion("run", "--help").returncode, 0)
        self.assertIn("ganglion 0", ganglion("--version").stdout)
        self.assertIn("complete -o", ganglion("--completion-bash").stdout)

    def test_absurd_numbers(self):
        for args in (["-c", "-1"], ["-c", "18446744073709551615"], ["-c", "9000000000000000000"], ["--chunk", "-1"],
                     ["--chunk", "9223372036854775807"], ["-t", "-1"], ["-t", "100000"]):
            self.expect_refusal(answer(MODEL, *args), 2)
        for args in (["-p", "-1"], ["-n", "-1"], ["-r", "-1"], ["-r", "99999999999999999999"], ["-d", "-1"]):
            self.expect_refusal(ganglion("bench", "-m", MODEL, *args), 2)
        self.expect_refusal(ganglion("logits", "-m", MODEL, "--tokens", "1", "--positions", "-1", "-o", "x"), 2)
        self.expect_refusal(ganglion("perplexity", "-m", MODEL, "-f", __file__, "-c", "1"), 2, "short")
        self.expect_refusal(ganglion("detokenize", "-m", MODEL, "--ids", "1,99999999"), 2, "outside")
        self.expect_refusal(answer(MODEL, "--override", "llama.block_count=1"), 3, "block_count")

    def test_deep_json_and_odd_files(self):
        deep = os.path.join(self.dir, "deep.json")
        with open(deep, "w", encoding="utf-8") as file:
            file.write('{"messages":' + "[" * 100_000 + "]" * 100_000 + "}")
        template = os.path.join(self.dir, "t.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write("{{ messages }}")
        self.expect_refusal(ganglion("template", "--template", template, "--messages", deep), 2, "deep")
        done = ganglion("template", "--template", template, "--jsonl", "--messages", deep)
        self.assertIn("error", done.stdout)
        pipe = os.path.join(self.dir, "pipe")
        os.mkfifo(pipe)
        self.expect_refusal(answer(pipe), 3, "regular file")
        self.expect_refusal(answer("/dev/zero"), 3, "regular file")
        self.expect_refusal(ganglion("run", "-m", MODEL, "-f", "/dev/zero", "-q"), 2, "longer")
        self.expect_refusal(ganglion("run", "-m", MODEL, "-f", self.dir, "-q"), 1, "directory")
        self.expect_refusal(ganglion("rnu", "-m", MODEL), 2, "unknown command")
        self.expect_refusal(answer(MODEL, "-ngl", "9"), 2, "accelerator")
        copy = os.path.join(self.dir, "copy.gguf")
        shutil.copy(MODEL, copy)
        self.expect_refusal(ganglion("logits", "-m", copy, "--tokens", "1", "-o", copy), 2, "overwrite")

    def test_unknown_architecture_and_tokenizer_are_named_with_what_is_known(self):
        line = self.expect_refusal(answer(MODEL, "--override", "general.architecture=mamba"), 3, "'mamba'")
        self.assertIn("qwen3moe", line)
        line = self.expect_refusal(answer(MODEL, "--override", "tokenizer.ggml.pre=smaug"), 3, "smaug")
        self.assertIn("llama-bpe", line)
        self.assertEqual(answer(MODEL, "--override", "tokenizer.ggml.pre=llama-bpe").returncode, 0)

    def test_budget_too_small_says_what_would_do(self):
        line = self.expect_refusal(answer(MODEL, "--mem", "12M"), 4, "too small")
        self.assertRegex(line, r"--mem \d+M or more")
        needed = line.split("--mem ")[1].split()[0]
        self.assertEqual(answer(MODEL, "--mem", needed).returncode, 0)

    def test_prompt_longer_than_the_context(self):
        self.expect_refusal(ganglion("run", "-m", MODEL, "--raw", "-p", "word " * 200, "-c", "32", "-q"), 2, "context of 32")

    def test_chat_without_a_template_is_refused_by_name(self):
        self.expect_refusal(ganglion("run", "-m", MODEL, "-p", "hi", "-st", "-q"), 3, "template")

    def test_closed_output(self):
        done = subprocess.run(f"{PROGRAM} inspect -m {MODEL} | head -n 1 > /dev/null; exit ${{PIPESTATUS[0]}}", shell=True,
                              executable="/bin/bash", capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, (0, 1))
        self.assertLessEqual(len(done.stderr.splitlines()), 1, done.stderr)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([PROGRAM, "inspect", "-m", MODEL], stdout=full, stderr=subprocess.PIPE, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write the output", done.stderr)


@unittest.skipIf(SANITIZED, "a preloaded library and a sanitizer do not go together")
class DiskFaults(Cli):
    def test_short_reads_change_nothing(self):
        expected = answer(MODEL, "--mem", "min").stdout
        done = faulty("short", "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "20", "--temp", "0", "-q", "--mem", "min")
        self.assertEqual(done.stdout, expected, done.stderr)

    def test_direct_reads_refused_at_read_time(self):
        expected = answer(MODEL, "--mem", "min").stdout
        done = faulty("einval", "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "20", "--temp", "0", "-q", "--mem", "min")
        self.assertEqual(done.stdout, expected, done.stderr)

    def test_one_error_is_retried(self):
        expected = answer(MODEL, "--mem", "min").stdout
        done = faulty("eio-once:9", "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "20", "--temp", "0", "-q", "--mem",
                      "min")
        self.assertEqual(done.stdout, expected, done.stderr)

    def test_errors_while_loading_and_while_running_name_the_place(self):
        for nth in (1, 30):
            done = faulty(f"eio:{nth}", "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "20", "-q", "--mem", "min")
            line = [text for text in done.stderr.splitlines() if text.startswith("ganglion: ")]
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(len(line), 1)
            self.assertIn("llama-q4_0.gguf", line[0])
            self.assertRegex(line[0], r"offset \d+ of .*Input/output error")

    def test_a_file_system_without_direct_reads(self):
        copy = f"/dev/shm/ganglion-e2e-{os.getpid()}.gguf"
        shutil.copy(MODEL, copy)
        try:
            self.assertEqual(answer(copy, "--mem", "min").stdout, answer(MODEL).stdout)
        finally:
            os.remove(copy)

    def slow_run(self, *args):
        return subprocess.Popen([PROGRAM, *args, "--no-io-uring"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True, errors="replace",
                                env={**os.environ, "LD_PRELOAD": PRELOAD, "GANGLION_FAULT": "delay:30000"})

    def test_interruption_at_any_moment(self):
        for wait_s in (0.05, 0.3, 0.6, 1.0):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(wait_s=wait_s, signal=number):
                    process = self.slow_run("run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "400", "--ignore-eos",
                                            "--mem", "min", "-q")
                    time.sleep(wait_s)
                    process.send_signal(number)
                    _, error = process.communicate(timeout=60)
                    # Before the handler stands, the signal itself ends the process.
                    self.assertIn(process.returncode, (130, -number), error)

    def test_a_second_signal_ends_at_once(self):
        process = self.slow_run("run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "400", "--ignore-eos", "--mem", "min")
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (130, -signal.SIGINT))

    def test_signals_change_the_budget_and_not_the_text(self):
        args = ["run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "40", "--temp", "0", "--ignore-eos", "--mem", "min", "-c", "64",
                "--draft", "off"]
        expected = ganglion(*args, "-q").stdout
        process = self.slow_run(*args)
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            time.sleep(0.7)
            process.send_signal(number)
        output, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, error)
        self.assertEqual(output, expected)
        self.assertIn("budget changed from", error)
        self.assertIn("budget stays", error)

    def test_truncated_while_running(self):
        copy = os.path.join(self.dir, "copy.gguf")
        shutil.copy(MODEL, copy)
        process = self.slow_run("run", "-m", copy, "--raw", "-p", "the cat", "-n", "400", "--ignore-eos", "--mem", "min", "-q")
        time.sleep(1.5)
        os.truncate(copy, 200_000)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, error)
        self.assertIn("truncated", error)


@unittest.skipIf("thread" in os.environ.get("GANGLION_SANITIZED", ""), "the thread sanitizer's own memory does not keep to budgets")
class Experts(Cli):
    """A mixture whose experts do not fit: larger than the fixtures, made on the spot."""

    def make(self, name, *args):
        path = os.path.join(self.dir, name)
        subprocess.run([os.environ["GANGLION_SYNTHESIZE"], "--shape", "tiny", *args, "-o", path], check=True,
                       stderr=subprocess.DEVNULL)
        return path

    def bits(self, model, *args):
        out = os.path.join(self.dir, "logits")
        tokens = ",".join(str(7 * i % 500) for i in range(40))
        done = ganglion("logits", "-m", model, "--tokens", tokens, "--positions", "0,20,39", "-o", out, "-q", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, "rb") as file:
            return file.read()

    def test_streamed_experts_give_the_same_bits(self):
        for shape in (["--experts", "16", "--experts-used", "3"], ["--experts", "8", "--experts-used", "2", "--ffn", "2048"]):
            model = self.make("moe.gguf", *shape)
            expected = self.bits(model)
            for budget in ("min", budget_above_least(model, 4), budget_above_least(model, 8)):
                plan = json.loads(ganglion("plan", "-m", model, "--mem", budget, "--json").stdout)
                self.assertTrue(plan["streams"], budget)
                self.assertGreater(plan["expert_cache_bytes"], 0)
                for args in ([], ["-t", "1", "--chunk", "1"], ["--no-io-uring", "--chunk", "7", "-t", "3"]):
                    self.assertEqual(self.bits(model, "--mem", budget, *args), expected, (budget, args))

    def test_experts_used_again_are_found_in_memory(self):
        model = self.make("moe.gguf", "--experts", "16", "--experts-used", "2")
        rates = []
        for budget in ("min", budget_above_least(model, 8)):
            facts = json.loads(ganglion("bench", "-m", model, "-p", "0", "-n", "40", "-r", "1", "-o", "json", "--mem",
                                        budget).stdout)
            rates.append(facts["cache_hit_rate"])
            self.assertLessEqual(facts["peak_rss_bytes"], facts["budget_bytes"])
        self.assertLess(rates[0], rates[1])


class Planted(Cli):
    """Models with planted sparsity, by the program that makes them."""

    def synthesize(self, *args):
        return subprocess.run([os.environ["GANGLION_SYNTHESIZE"], *args], capture_output=True, text=True, check=False)

    def test_a_planted_model_says_what_it_is_and_runs(self):
        model = os.path.join(self.dir, "planted.gguf")
        shape = ("--shape", "tiny", "--layers", "2", "--experts", "4", "--experts-used", "2", "--activation", "drelu")
        done = self.synthesize(*shape, "--mem", "512M", "-o", model)
        self.assertEqual(done.returncode, 0, done.stderr)
        active = re.search(r"active, all layers: ([0-9.]+) %", done.stdout)
        self.assertIsNotNone(active, done.stdout)
        self.assertAlmostEqual(float(active.group(1)), 15, delta=1.5)
        self.assertIn("share of activations", done.stdout)
        again = self.synthesize("--measure", model, "--mem", "512M")
        self.assertEqual(again.stdout, done.stdout)
        run = ganglion("run", "-m", model, "--raw", "-p", "a", "-n", "4", "--ignore-eos", "-q")
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_bad_options_are_refused_in_one_line(self):
        out = os.path.join(self.dir, "never.gguf")
        for args in (["--activation", "gelu"], ["--activation", "relu", "--active", "0.9"], ["--active", "0.1"],
                     ["--activation", "relu", "--type", "Q4_K_M"], ["--type", "Q9"], ["--dim", "100"],
                     ["--experts", "4", "--experts-used", "9"]):
            done = self.synthesize("--shape", "tiny", *args, "-o", out)
            self.assertEqual(done.returncode, 2, args)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
            self.assertFalse(os.path.exists(out) or os.path.exists(out + ".part"))
        for args in (["--shape", "tiny"], ["--shape", "huge", "-o", out], ["--no-such-flag"]):
            self.assertEqual(self.synthesize(*args).returncode, 2)
        self.assertEqual(self.synthesize("--measure", os.path.join(self.dir, "none.gguf")).returncode, 3)


CGROUP = "/sys/fs/cgroup/memory"


def has_cgroup():
    try:
        probe = os.path.join(CGROUP, f"ganglion-probe-{os.getpid()}")
        os.mkdir(probe)
        os.rmdir(probe)
        return True
    except OSError:
        return False


@unittest.skipIf(SANITIZED, "a sanitizer's own memory is not ours")
class Limits(Cli):
    def run_in_cgroup(self, limit, *args):
        """The run under a memory cgroup that counts page cache, and the cgroup's own maximum."""
        group = os.path.join(CGROUP, f"ganglion-{os.getpid()}")
        os.mkdir(group)
        try:
            with open(os.path.join(group, "memory.limit_in_bytes"), "w", encoding="utf-8") as file:
                file.write(str(limit))
            enter = f"echo $$ > {group}/cgroup.procs; exec \"$@\""
            done = subprocess.run(["bash", "-c", enter, "-", PROGRAM, *args], capture_output=True, text=True, check=False,
                                  stdin=subprocess.DEVNULL, errors="replace", timeout=120,
                                  env={**os.environ, "XDG_CACHE_HOME": self.dir})
            with open(os.path.join(group, "memory.max_usage_in_bytes"), encoding="utf-8") as file:
                return done, int(file.read())
        finally:
            for _ in range(50):
                try:
                    os.rmdir(group)
                    break
                except OSError:
                    time.sleep(0.1)

    @unittest.skipUnless(has_cgroup(), "SKIPPED: no memory cgroup can be made here")
    def test_peak_stays_within_the_budget_by_the_cgroups_own_count(self):
        expected = answer(MODEL).stdout
        smallest = json.loads(ganglion("plan", "-m", MODEL, "--mem", "min", "--json").stdout)["budget_bytes"]
        for budget in ((smallest + (2 << 20)) // 4096 * 4096, 48 << 20, 64 << 20):
            done, peak = self.run_in_cgroup(budget, "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "20", "--temp", "0",
                                            "-q", "--mem", str(budget))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, expected)
            self.assertLessEqual(peak, budget)

    @unittest.skipUnless(has_cgroup(), "SKIPPED: no memory cgroup can be made here")
    def test_every_fixture_stays_within_three_budgets(self):
        folder = os.path.join(FIXTURES, "models")
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".gguf"):
                continue
            model = os.path.join(folder, name)
            expected = answer(model).stdout
            smallest = json.loads(ganglion("plan", "-m", model, "--mem", "min", "--json").stdout)["budget_bytes"]
            for budget in (smallest // 4096 * 4096 + (1 << 20), smallest // 4096 * 4096 + (4 << 20), 64 << 20):
                with self.subTest(model=name, budget=budget):
                    done, peak = self.run_in_cgroup(budget, "run", "-m", model, "--raw", "-p", "the cat", "-n", "20", "--temp",
                                                    "0", "-q", "--mem", str(budget))
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(done.stdout, expected)
                    self.assertLessEqual(peak, budget)

    @unittest.skipUnless(has_cgroup(), "SKIPPED: no memory cgroup can be made here")
    def test_a_budget_above_the_cgroups_limit_is_refused(self):
        done, _ = self.run_in_cgroup(100 << 20, "run", "-m", MODEL, "--raw", "-p", "a", "-n", "1", "--mem", "200M", "-q")
        self.expect_refusal(done, 4, "limit")
        done, _ = self.run_in_cgroup(100 << 20, "plan", "-m", MODEL, "--json")
        self.assertLessEqual(json.loads(done.stdout)["budget_bytes"], 85 << 20)

    def test_resident_set_stays_within_the_budget(self):
        for budget in (40 << 20, 64 << 20):
            facts = json.loads(ganglion("bench", "-m", MODEL, "-p", "64", "-n", "16", "-r", "2", "-o", "json", "--mem",
                                        str(budget)).stdout)
            self.assertLessEqual(facts["peak_rss_bytes"], budget)

    @unittest.skipUnless(has_cgroup(), "SKIPPED: no memory cgroup can be made here")
    def test_measuring_the_machine_takes_no_more_than_the_budget(self):
        budget = 40 << 20
        done, peak = self.run_in_cgroup(budget, "run", "-m", MODEL, "--raw", "-p", "the cat", "-n", "5", "--mem", str(budget))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(peak, budget)
        smallest = json.loads(ganglion("plan", "-m", MODEL, "--mem", "min", "--json").stdout)["budget_bytes"]
        facts = json.loads(ganglion("bench", "-m", MODEL, "-p", "8", "-n", "4", "-r", "1", "-o", "json", "--mem",
                                    str(smallest + (1 << 20)), env={"XDG_CACHE_HOME": self.dir}).stdout)
        self.assertLessEqual(facts["peak_rss_bytes"], smallest + (1 << 20))

    def test_nothing_is_written(self):
        before = set(os.listdir(os.path.dirname(MODEL)))
        env = {**os.environ, "XDG_CACHE_HOME": "", "HOME": ""}
        code = ("import subprocess,sys,resource\n"
                "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock)")
        done = subprocess.run([sys.executable, "-c", code, PROGRAM, "run", "-m", MODEL, "--raw", "-p", "a", "-n", "10", "--mem",
                               "min"], capture_output=True, text=True, check=False, cwd=self.dir, env=env)
        self.assertEqual(done.stdout.strip(), "0")
        self.assertEqual(before, set(os.listdir(os.path.dirname(MODEL))))
        self.assertEqual(os.listdir(self.dir), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
