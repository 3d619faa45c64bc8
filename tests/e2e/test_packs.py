"""Packs from the command line: pack, run, measure against the source; refusals."""

import json
import os
import sys
import unittest

from test_cli import FIXTURES, ROOT, Cli, ganglion

MODEL = os.path.join(FIXTURES, "models", "llama-relu-q4_0.gguf")


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

    def test_what_predictors_cost_is_measured(self):
        out, _ = self.pack("--random-tokens")
        text = os.path.join(ROOT, "README.md")
        done = ganglion("perplexity", "-m", out, "--against", MODEL, "-f", text, "-c", "64", "--chunks", "4", "-q",
                        "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertGreater(found["kl_divergence"], 0)
        self.assertLess(found["kl_divergence"], 1)
        self.assertGreater(found["same_top"], 0.5)
        exact = json.loads(ganglion("perplexity", "-m", out, "--against", MODEL, "-f", text, "-c", "64", "--chunks", "4",
                                    "-q", "--json", "--exact").stdout)
        self.assertLess(abs(exact["kl_divergence"]), 1e-9)
        self.assertEqual(exact["same_top"], 1)

    def test_neurons_are_counted(self):
        out, _ = self.pack("--random-tokens")
        done = ganglion("bench", "-m", out, "--mem", "min", "-p", "8", "-n", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"neurons per token: [1-9]\d*, 0\.0 % resident")

    def test_refusals(self):
        target = os.path.join(self.dir, "x.gguf")
        for args, said, code in (
                (("-m", MODEL, "-o", target), "calibrate", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--rank", "33"), "multiple of 32", 2),
                (("-m", MODEL, "-o", target, "--random-tokens", "--down", "q5"), "q4, q6", 2),
                (("-m", os.path.join(FIXTURES, "models", "llama-q4_0.gguf"), "-o", target, "--random-tokens"),
                 "not sparse", 3),
                (("-m", MODEL, "-o", "/nowhere/x.gguf", "--random-tokens"), "/nowhere/", 1)):
            done = ganglion("pack", *args)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertEqual(os.listdir(self.dir), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
