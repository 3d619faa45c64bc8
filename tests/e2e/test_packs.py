"""Packs from the command line: pack, run, measure against the source; refusals."""

import json
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
import unittest

from test_cli import FIXTURES, PROGRAM, ROOT, SANITIZED, Cli, ganglion

MODEL = os.path.join(FIXTURES, "models", "llama-relu-q4_0.gguf")


def write_as_powerinfer(model, path):
    """The F32 model as PowerInfer's tools would have it: another magic, down matrices transposed and renamed."""
    tensors = json.loads(ganglion("inspect", "-m", model, "--json").stdout)["tensors"]
    with open(model, "rb") as file:
        data = file.read()
    start = min(tensor["offset"] for tensor in tensors)
    last = max(data.rfind(tensor["name"].encode()) + len(tensor["name"]) + 16 + 8 * len(tensor["shape"]) for tensor in tensors)
    header, weights = b"PWRI" + data[4:last], bytearray(data[start:])
    for tensor in tensors:
        if "ffn_down" not in tensor["name"]:
            continue
        cols, rows = tensor["shape"]
        at = tensor["offset"] - start
        values = struct.unpack_from(f"<{rows * cols}f", weights, at)
        struct.pack_into(f"<{rows * cols}f", weights, at, *(values[r * cols + c] for c in range(cols) for r in range(rows)))
        name = tensor["name"].encode()
        new = name.replace(b"down", b"down_t")
        old_entry = struct.pack("<Q", len(name)) + name + struct.pack("<IQQ", 2, cols, rows)
        assert header.count(old_entry) == 1
        header = header.replace(old_entry, struct.pack("<Q", len(new)) + new + struct.pack("<IQQ", 2, rows, cols))
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32) + weights)


class Packs(Cli):
    def pack(self, *args):
        out = os.path.join(self.dir, "pack.gguf")
        done = ganglion("pack", "-m", MODEL, "-o", out, "--tokens", "600", "--rank", "64", *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out, done.stdout

    def test_a_pack_answers_and_exactly_so_on_request(self):
        out, report = self.pack("-f", os.path.join(ROOT, "README.md"), "--json")
        layers = json.loads(report)["layers"]
        self.assertEqual(len(layers), 2)
        self.assertGreater(min(layer["mass_recall"] for layer in layers), 0.9)

        def answer(model, *args):
            done = ganglion("run", "-m", model, "--raw", "-p", "the cat", "-n", "24", "--temp", "0", "--ignore-eos", "-q",
                            *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        self.assertEqual(answer(out, "--exact", "--mem", "min"), answer(MODEL))
        sparse = answer(out)
        self.assertEqual(answer(out, "--mem", "min", "-t", "1"), sparse)
        self.assertEqual(answer(out, "--mem", "min", "--no-io-uring", "--draft", "off"), sparse)

    def test_experts_are_read_ahead_and_answer_the_same(self):
        self.read_ahead("--shape", "tiny", "--experts", "4", "--experts-used", "2", "--layers", "6")

    def test_experts_known_before_attention_are_read_meanwhile(self):
        self.read_ahead("--shape", "smallthinker-4b", "--experts", "4", "--experts-used", "2", "--layers", "6", "--dim", "256",
                        "--heads", "4", "--head-dims", "64", "--vocab", "512")

    def read_ahead(self, *shape):
        model, out = os.path.join(self.dir, "moe.gguf"), os.path.join(self.dir, "moe.pack.gguf")
        subprocess.run([os.environ["GANGLION_SYNTHESIZE"], *shape, "--activation", "relu", "--tokens", "0", "-o", model], check=True, capture_output=True)
        done = ganglion("pack", "-m", model, "-o", out, "--random-tokens", "--tokens", "600", "--rank", "32")
        self.assertEqual(done.returncode, 0, done.stderr)

        def bench(*args):
            done = ganglion("bench", "-m", out, "-p", "0", "-n", "60", "-c", "64", "-r", "1", "-q", "-t", "2", "-o", "json", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        def text(*args):
            done = ganglion("run", "-m", out, "--raw", "-p", "a", "-n", "60", "-c", "64", "--temp", "0", "--ignore-eos", "-q", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        least = bench("--mem", "min")["budget_bytes"]
        self.assertEqual(bench("--mem", "2G")["ahead_reads"], 0)
        whole = text("--mem", "2G")
        ahead = 0
        for more in (2 << 20, 4 << 20, 6 << 20, 8 << 20):
            ahead += bench("--mem", str(least + more))["ahead_reads"]
            self.assertEqual(text("--mem", str(least + more)), whole)
        self.assertGreater(ahead, 0)

    def test_powerinfer_models_are_packed_and_not_run(self):
        plain = os.path.join(FIXTURES, "models", "llama-fatrelu-f32.gguf")
        source, out = os.path.join(self.dir, "x.powerinfer.gguf"), os.path.join(self.dir, "x.pack.gguf")
        write_as_powerinfer(plain, source)
        run = ("--raw", "-p", "the cat", "-n", "24", "--temp", "0", "--ignore-eos", "-q")
        for command in (("run", "-p", "the cat"), ("bench",), ("plan",), ("calibrate", "-o", out)):
            line = self.expect_refusal(ganglion(*command, "-m", source), 3, "powerinfer")
            self.assertIn("ganglion pack -m " + source, line)
        before = self.contents("x.powerinfer.gguf")
        self.expect_refusal(ganglion("pack", "-m", source, "-o", source, "--tokens", "600", "--rank", "32"), 2, "overwrite")
        self.assertEqual(self.contents("x.powerinfer.gguf"), before)
        self.assertIn("of PowerInfer", ganglion("inspect", "-m", source).stdout)
        self.assertEqual(ganglion("verify", source).returncode, 0)
        text = {}
        for name, model in (("plain", plain), ("powerinfer", source)):
            done = ganglion("pack", "-m", model, "-o", out, "--tokens", "600", "--rank", "32")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("down matrices transposed to F32" in done.stdout, name == "powerinfer", done.stdout)
            for args in ((), ("--exact",)):
                done = ganglion("run", "-m", out, *run, *args)
                self.assertEqual(done.returncode, 0, done.stderr)
                text[name, args] = done.stdout
        self.assertEqual(text["powerinfer", ()], text["plain", ()])
        self.assertEqual(text["powerinfer", ("--exact",)], ganglion("run", "-m", plain, *run).stdout)
        self.assertEqual(sorted(os.listdir(self.dir)), ["x.pack.gguf", "x.powerinfer.gguf"])

    def test_what_predictors_cost_is_measured(self):
        out, _ = self.pack("--random-tokens")
        text = os.path.join(ROOT, "README.md")
        done = ganglion("perplexity", "-m", out, "--against", MODEL, "-f", text, "-c", "64", "--chunks", "4", "-q",
                        "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        for layer in found["layers"]:
            self.assertGreater(layer["mass_recall"], 0.97)
            self.assertLess(layer["recall"], 1)
            self.assertGreater(layer["over_prediction"], 1)
        # Measuring takes all neurons, but what was not predicted contributes nothing.
        plain = json.loads(ganglion("perplexity", "-m", out, "--against", MODEL, "-f", text, "-c", "64", "--chunks", "4", "-q",
                                    "--json", "--no-recall", "--mem", "min").stdout)
        self.assertNotIn("layers", plain)
        for key in ("kl_divergence", "perplexity", "same_top"):
            self.assertEqual(plain[key], found[key])
        self.assertGreater(found["kl_divergence"], 0)
        self.assertLess(found["kl_divergence"], 1)
        self.assertGreater(found["same_top"], 0.5)
        exact = json.loads(ganglion("perplexity", "-m", out, "--against", MODEL, "-f", text, "-c", "64", "--chunks", "4",
                                    "-q", "--json", "--exact").stdout)
        self.assertLess(abs(exact["kl_divergence"]), 1e-9)
        self.assertEqual(exact["same_top"], 1)

    @unittest.skipIf(SANITIZED, "minutes of arithmetic, hours with a sanitizer; the other tests run the same code")
    def test_defaults_stay_near_a_trained_model(self):
        model = os.path.join(os.path.dirname(ROOT), "shared", "fixtures", "relu",
                             "smollm2-135m-relu-iq4_nl.gguf")
        if not os.path.exists(model):
            self.skipTest("SKIPPED: the real ReLU model is only in the shared fixtures")
        out = os.path.join(self.dir, "pack.gguf")
        done = ganglion("pack", "-m", model, "-o", out, "--tokens", "512", "--kl", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        # Of this text a hundredth was calibrated on.
        text = os.path.join(ROOT, "src", "calibration", "text", "english.txt")
        done = ganglion("perplexity", "-m", out, "--against", model, "-f", text, "-c", "256", "--chunks", "8", "-q", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertLess(found["kl_divergence"], 0.01)
        # Roundings of activations to 8 bits alone make 4 % (ARCHITECTURE.md).
        self.assertGreater(found["same_top"], 0.92)

    def test_an_ffn_without_a_gate(self):
        checkpoint = os.path.join(os.path.dirname(ROOT), "shared", "fixtures", "hf", "opt")
        if not os.path.exists(checkpoint):
            self.skipTest("SKIPPED: the OPT checkpoint is only in the shared fixtures")
        model, counted, out = (os.path.join(self.dir, name) for name in ("opt.gguf", "c.gguf", "pack.gguf"))

        def call(*args):
            done = ganglion(*args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        call("convert", checkpoint, "-o", model, "--type", "f32")
        report = json.loads(call("calibrate", "-m", model, "-o", counted, "--tokens", "600", "--ranks", "32,96", "--json"))
        for layer in report["layers"]:
            self.assertAlmostEqual(layer["active"], 0.5, delta=0.1)  # The fixture's own count: opt.json.
            self.assertGreater(layer["predictors"][1]["mass_recall"], 0.97)
        for args, most in ((("--rank", "0", "--down", "f32"), 1e-5), (("--rank", "96",), 0.01)):
            call("pack", "-m", model, "-o", out, "--calibration", counted, *args)
            names = [tensor["name"] for tensor in json.loads(call("inspect", "-m", out, "--json"))["tensors"]]
            self.assertIn("blk.2.ffn_bundle_bias.weight", names)
            self.assertNotIn("blk.2.ffn_up.bias", names)
            call("verify", out)
            self.assertEqual(json.loads(call("plan", "-m", out, "--json"))["architecture"], "opt")
            against = ("perplexity", "-m", out, "--against", model, "-f", os.path.join(ROOT, "README.md"), "-c", "64", "--chunks", "4",
                       "-q", "--json")
            found = json.loads(call(*against))
            self.assertLess(found["kl_divergence"], most)
            self.assertGreater(found["same_top"], 0.9)
            self.assertLess(abs(json.loads(call(*against, "--exact"))["kl_divergence"]), 1e-9)
            facts = json.loads(call("bench", "-m", out, "--mem", "min", "-p", "8", "-n", "8", "-c", "64", "-r", "1", "-q", "-o", "json"))
            self.assertEqual(facts["sparsity"] == "predictors", "96" in args)
            run = ("run", "-m", out, "--raw", "-p", "the", "-n", "8", "-c", "64", "--temp", "0", "--ignore-eos", "-q", "--verify-bundles")
            self.assertEqual(call(*run, "--mem", "min"), call(*run))

    def test_the_divergence_asked_for_is_kept_and_shown(self):
        out = os.path.join(self.dir, "pack.gguf")
        done = ganglion("pack", "-m", MODEL, "-o", out, "--tokens", "600", "--rank", "32", "--kl", "0.0001", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertGreater(report["judged_tokens"], 0)
        self.assertLessEqual(report["kl_divergence"], max(0.0001, 1.5 * report["kl_divergence_without_predictors"]))
        self.assertEqual(os.listdir(self.dir), ["pack.gguf"])
        for rank in ("0", "32"):
            done = ganglion("pack", "-m", MODEL, "-o", out, "--tokens", "600", "--rank", rank, "--kl", "0.000001")
            self.assertIn("more than the 1e-06 asked for", done.stdout)
        done = ganglion("inspect", "-m", out)
        self.assertIn("ganglion.pack.divergence", done.stdout)
        # Nothing is said where nothing can be measured.
        short = os.path.join(self.dir, "short.txt")
        with open(short, "w", encoding="utf-8") as file:
            file.write("a short text")
        done = ganglion("pack", "-m", MODEL, "-o", out, "-f", short, "--rank", "32", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("judged_tokens", json.loads(done.stdout))
        self.assertNotIn("ganglion.pack.divergence", ganglion("inspect", "-m", out).stdout)
        done = ganglion("pack", "-m", MODEL, "-o", out, "--tokens", "600", "--kl", "-1")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_neurons_are_counted(self):
        out, _ = self.pack("--random-tokens")
        done = ganglion("bench", "-m", out, "--mem", "min", "-p", "8", "-n", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"neurons per token: [1-9]\d*, 0\.0 % resident")

    def test_parts_of_the_sparse_path_are_left_out_one_by_one(self):
        out, _ = self.pack("--random-tokens")
        done = ganglion("bench", "-m", out, "--mem", "1G", "-n", "4", "-r", "1", "--ablation", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["parts"]: row for row in json.loads(done.stdout)}
        self.assertEqual(list(rows), ["streamed dense", "+ bundles", "+ neuron cache", "+ cluster pipeline", "+ look-ahead"])
        # Without a cache, layers of several hundred neurons are read for each token; with one, all is in memory.
        self.assertGreater(rows["+ bundles"]["io_bytes_per_token"], 10 * rows["+ neuron cache"]["io_bytes_per_token"])
        self.assertGreater(rows["+ bundles"]["reads_per_token"], 2 * rows["+ neuron cache"]["reads_per_token"])
        for args, said in ((("-m", MODEL, "--ablation"), "is no pack"), (("-m", out, "--ablation", "-n", "0"), "nothing to"),
                           (("-m", out, "--parallel", "0"), "--parallel")):
            done = ganglion("bench", *args, "-r", "1")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)

    def test_a_device_computes_hot_neurons(self):
        out, _ = self.pack("--random-tokens")

        def run(*args):
            done = ganglion("run", "-m", out, "--raw", "-p", "the cat", "-n", "16", "--temp", "0", "--ignore-eos", *args)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done

        hot = run("--device", "sim", "--hot-neurons", "64", "-t", "1")
        self.assertIn("hot neurons dense on sim: 64 of 512 in 2 of 2 layers", hot.stderr)
        self.assertEqual(run("--device", "sim", "--hot-neurons", "64", "--mem", "min").stdout, hot.stdout)
        done = ganglion("bench", "-m", out, "--device", "sim", "--hot-neurons", "0,64,64,128", "--parallel", "5", "-p", "0", "-n", "8",
                        "-r", "1", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        self.assertEqual(facts["hot_calls_per_token"], 2)
        self.assertIn("0, 64 from 2 rows on, 128 from 5 rows on of 512", facts["device"])
        plan = ganglion("plan", "-m", out, "--device", "sim", "--exact", "--json")
        self.assertIn("not used", json.loads(plan.stdout)["device"])
        refused = ganglion("plan", "-m", out, "--device", "abacus")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("abacus", refused.stderr)
        if "opencl" not in refused.stderr:
            print("NOTE: built without OpenCL: hot neurons are not tested on it", file=sys.stderr)
            return
        os.environ["RUSTICL_ENABLE"] = "llvmpipe"
        for device in ("opencl:pocl", "opencl:rusticl"):
            done = run("--device", device, "--hot-neurons", "64")
            self.assertIn(f"hot neurons dense on {device} (", done.stderr)
            self.assertEqual(done.stdout, hot.stdout)

    def test_several_sequences_are_a_batch(self):
        out, _ = self.pack("--random-tokens")
        done = ganglion("bench", "-m", out, "-p", "0", "-n", "6", "-d", "5", "-r", "1", "--parallel", "3", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = json.loads(done.stdout)
        self.assertEqual(facts["sequences"], 3)
        self.assertGreater(facts["decode_tokens_per_s"], 0)

    def test_refusals(self):
        target = os.path.join(self.dir, "x.gguf")
        for args, said, code in (
                (("-m", MODEL, "-o", target, "--calibration", MODEL), "no calibration file", 3),
                (("-m", MODEL, "-o", target, "--calibration", "/nowhere.gguf"), "/nowhere.gguf", 3),
                (("-m", MODEL, "-o", target, "--random-tokens", "-f", MODEL), "excludes", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--rank", "33"), "multiple of 32", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--rank", "4096"), "lower --rank", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--recall", "nan"), "recall", 2),
                (("-m", MODEL, "-o", target, "--kl", "nan"), "divergence", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--down", "q5"), "q4, q6", 2),
                (("-m", os.path.join(FIXTURES, "models", "llama-q4_0.gguf"), "-o", target, "--random-tokens"),
                 "not sparse", 3),
                (("-m", MODEL, "-o", "/nowhere/x.gguf", "--random-tokens"), "/nowhere/", 1)):
            done = ganglion("pack", *args)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertEqual(os.listdir(self.dir), [])

    def test_nothing_is_written_over_what_it_is_made_of(self):
        model = os.path.join(self.dir, "m.gguf")
        shutil.copy(MODEL, model)
        link, part, pipe = (os.path.join(self.dir, name) for name in ("link", "part", "pipe"))
        os.symlink("m.gguf", link)
        os.mkfifo(pipe)
        self.assertEqual(ganglion("calibrate", "-m", model, "-o", part, "--tokens", "300").returncode, 0)
        before = {name: self.contents(name) for name in ("m.gguf", "part")}
        other = os.path.join(self.dir, "other")
        self.assertEqual(ganglion("calibrate", "-m", model, "-o", other, "--random-tokens", "--tokens", "300").returncode, 0)
        pack, calibrate = ("pack", "-m", model, "--random-tokens", "--tokens", "300"), ("calibrate", "-m", model, "--tokens", "300")
        for args, said in (((*pack, "-o", model), "overwrite"), ((*pack, "-o", link), "overwrite"), ((*calibrate, "-o", model), "overwrite"),
                           (("pack", "-m", model, "--calibration", part, "-o", part), "overwrite"),
                           (("calibrate", "--merge", part, other, "-o", part), "overwrite"),
                           ((*pack, "-o", pipe), "no regular file"), ((*calibrate, "-o", pipe), "no regular file")):
            with self.subTest(args):
                self.expect_refusal(ganglion(*args), 2, said)
        self.assertEqual(before, {name: self.contents(name) for name in before})
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        self.assertEqual(sorted(os.listdir(self.dir)), ["link", "m.gguf", "other", "part", "pipe"])

    def contents(self, name):
        with open(os.path.join(self.dir, name), "rb") as file:
            return file.read()


class Calibrations(Cli):
    def calibrate(self, name, *args, code=0, **kwargs):
        out = os.path.join(self.dir, name)
        done = ganglion("calibrate", "-o", out, *args, **kwargs)
        self.assertEqual(done.returncode, code, done.stderr)
        return out, done

    def test_reports_sparsity_skew_and_predictors(self):
        _, done = self.calibrate("c.gguf", "-m", MODEL, "--tokens", "600", "--json", "--ranks", "32,64")
        report = json.loads(done.stdout)
        self.assertEqual(report["tokens"], 600)
        for layer in report["layers"]:
            self.assertGreaterEqual(layer["top_50_share"], layer["top_30_share"])
            self.assertGreater(layer["active_by_batch"]["32"], layer["active_by_batch"]["1"])
            self.assertEqual([p["rank"] for p in layer["predictors"]], [32, 64])
            self.assertGreater(layer["predictors"][1]["mass_recall"], 0.9)

    def test_shards_are_merged_and_packed(self):
        shards = [self.calibrate(name, "-m", MODEL, "--tokens", "300", *args)[0]
                  for name, args in (("a", ()), ("b", ("--random-tokens",)))]
        merged, done = self.calibrate("ab", "--merge", *shards, "--json")
        self.assertEqual(json.loads(done.stdout)["tokens"], 600)
        self.assertEqual(ganglion("verify", merged).returncode, 0)
        out = os.path.join(self.dir, "p.gguf")
        done = ganglion("pack", "-m", MODEL, "-o", out, "--calibration", merged, "--rank", "32", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["calibration_tokens"], 600)

    def test_goes_on_after_it_was_killed(self):
        args = ("-m", MODEL, "--tokens", "20000")
        whole, _ = self.calibrate("whole.gguf", *args)
        out = os.path.join(self.dir, "c.gguf")
        first = os.path.join(out + ".calibrating", "layer0.inputs")
        before = 0  # Bytes of whole sequences that the one before has left.
        for how in (signal.SIGKILL, signal.SIGINT):
            process = subprocess.Popen([PROGRAM, "calibrate", "-o", out, *args], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            while process.poll() is None and not (os.path.exists(first) and
                                                   os.path.getsize(first) > before + 600_000):
                time.sleep(0.001)
            self.assertIsNone(process.poll(), "ended before it could be killed")
            process.send_signal(how)
            _, said = process.communicate(timeout=60)
            self.assertFalse(os.path.exists(out))
            before = os.path.getsize(first)
        self.assertEqual(process.returncode, 130)
        self.assertIn("goes on", said)
        done = ganglion("calibrate", "-o", out, "-m", MODEL, "--tokens", "19000")
        self.expect_refusal(done, 2, "unfinished")
        self.calibrate("c.gguf", *args)
        with open(whole, "rb") as one, open(out, "rb") as other:
            self.assertEqual(one.read(), other.read())
        self.assertEqual(sorted(os.listdir(self.dir)), ["c.gguf", "whole.gguf"])

    def test_refusals(self):
        dense = os.path.join(FIXTURES, "models", "llama-q4_0.gguf")
        for args, code, said in ((("-m", dense), 3, "not sparse"), ((), 2, "-m model"), (("-m", MODEL, "--tokens", "0"), 2, "tokens"),
                                 (("-m", MODEL, "--merge", MODEL), 2, "excludes"), (("--merge", MODEL, MODEL), 3, "calibrat"),
                                 (("-m", MODEL, "--mem", "1M"), 4, "mem"), (("-m", MODEL, "-f", "/nowhere"), 1, "/nowhere")):
            with self.subTest(args):
                _, done = self.calibrate("x.gguf", *args, code=code)
                self.expect_refusal(done, code, said)
        self.assertEqual(os.listdir(self.dir), [])


class DamagedPacks(Cli):
    def setUp(self):
        super().setUp()
        self.out = os.path.join(self.dir, "pack.gguf")
        done = ganglion("pack", "-m", MODEL, "-o", self.out, "--tokens", "300", "--rank", "32")
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = json.loads(ganglion("inspect", "-m", self.out, "--json").stdout)["tensors"]
        self.tensors = {tensor["name"]: tensor for tensor in tensors}

    def damage(self, tensor, at):
        with open(self.out, "r+b") as file:
            file.seek(self.tensors[tensor]["offset"] + at)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x40]))

    def test_verify_names_bad_bundles(self):
        done = ganglion("verify", self.out)
        self.assertEqual(done.returncode, 0, done.stdout)
        stride = self.tensors["blk.1.ffn_bundle.weight"]["shape"][0]
        for neuron in (40, 41, 90):
            self.damage("blk.1.ffn_bundle.weight", neuron * stride + 100)
        done = ganglion("verify", self.out, "--json")
        self.assertEqual(done.returncode, 3)
        error = json.loads(done.stdout)["model"]["error"]
        for words in ("layer 1, expert 0, neurons 40 to 41", "in all: 3"):
            self.assertIn(words, error)
        self.assertEqual(ganglion("verify", self.out, "--no-bundles").returncode, 0)
        done = ganglion("verify", MODEL)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_bad_bundle_ends_a_run_that_asked_for_checks(self):
        run = ("run", "-m", self.out, "--raw", "-p", "the cat", "-n", "24", "--temp", "0", "--ignore-eos", "-q")
        ways = ((), ("--mem", "min"), ("--mem", "min", "--no-io-uring"), ("--exact",), ("--exact", "--mem", "min"))
        for args in ways:
            self.assertEqual(ganglion(*run, "--verify-bundles", *args).stdout, ganglion(*run, *args).stdout)
        self.damage("blk.0.ffn_bundle.weight", 30)  # The most frequent neuron.
        for args in ways:
            with self.subTest(args):
                done = ganglion(*run, "--verify-bundles", *args)
                self.expect_refusal(done, 3, "layer 0, expert 0, neuron 0 (in pack order)")
        self.assertEqual(ganglion(*run).returncode, 0)
        done = ganglion("run", "-m", MODEL, "--raw", "-p", "a", "-n", "1", "--verify-bundles", "-q")
        self.expect_refusal(done, 2, "no pack")

    def test_cut_short(self):
        size = os.path.getsize(self.out)
        for left in (size - 1, size // 2, 1000):
            os.truncate(self.out, left)
            for command in ("verify", "run"):
                done = ganglion(command, "-m", self.out, *(() if command == "verify" else ("-p", "a", "--raw", "-q")))
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stdout + done.stderr, "truncated|ends|cut|beyond|more than the file")

    def test_a_predictor_of_the_wrong_shape(self):
        with open(self.out, "r+b") as file:
            header = file.read(1 << 20)
            at = header.index(b"blk.0.ffn_predict_low.weight") + len("blk.0.ffn_predict_low.weight") + 4 + 8
            rank = struct.unpack_from("<Q", header, at)[0]
            self.assertEqual(rank, 32)
            file.seek(at)
            file.write(struct.pack("<Q", 31))
        done = ganglion("run", "-m", self.out, "-p", "a", "--raw", "-q")
        self.expect_refusal(done, 3, "ffn_predict_low")


class PackingFaults(Cli):
    def test_a_full_disk_leaves_nothing(self):
        """A limit of the size of files stands for a disk that fills up at any point."""
        whole = ganglion("pack", "-m", MODEL, "-o", os.path.join(self.dir, "p.gguf"), "--tokens", "600", "--rank", "32", "--json")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        size = os.path.getsize(os.path.join(self.dir, "p.gguf"))
        os.unlink(os.path.join(self.dir, "p.gguf"))
        for limit in (1000, 60_000, 200_000, size // 2, size - 1):
            with self.subTest(limit):
                done = ganglion("pack", "-m", MODEL, "-o", os.path.join(self.dir, "p.gguf"), "--tokens", "600", "--rank", "32",
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
                self.expect_refusal(done, 1, "cannot write")
                self.assertEqual(os.listdir(self.dir), [])

    def test_interrupted_at_any_point(self):
        out = os.path.join(self.dir, "p.gguf")
        for suffix in (".packing.calibrating/layer0.inputs", ".packing.calibrating/layer0.statistics", ".part"):
            with self.subTest(suffix):
                process = subprocess.Popen([PROGRAM, "pack", "-m", MODEL, "-o", out, "--tokens", "8000", "--rank", "64"],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                while process.poll() is None and not os.path.exists(out + suffix):
                    time.sleep(0.001)
                self.assertIsNone(process.poll(), "ended before it could be interrupted")
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 130, said)
                self.assertEqual(said.strip(), "ganglion: interrupted")
                self.assertEqual(os.listdir(self.dir), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
