"""The tables of paper_tables.py, on numbers made up."""

import argparse
import tempfile
import unittest
import xml.etree.ElementTree

import paper_tables
import svg_plot

SVG = "{http://www.w3.org/2000/svg}"

FACTS = {"cpu": "a processor", "kernel_tables": ["avx2"],
         "memory": [{"threads": 1, "bytes_per_s": 8e9}, {"threads": 2, "bytes_per_s": 16e9}],
         "overlap": [{"threads": 2, "memory_bytes_per_s": 12e9,
                      "disk": {"read_bytes": 16384, "depth": 32, "sequential": False, "bytes_per_s": 16384 * 25e3}}],
         "disk": [{"read_bytes": 4096, "depth": 32, "sequential": False, "bytes_per_s": 4096 * 100e3, "cpu_s_per_read": 4e-6},
                  {"read_bytes": 16384, "depth": 32, "sequential": False, "bytes_per_s": 16384 * 50e3, "cpu_s_per_read": 8e-6},
                  {"read_bytes": 4096, "depth": 1, "sequential": False, "bytes_per_s": 1e6, "cpu_s_per_read": 9e-6},
                  {"read_bytes": 524288, "depth": 16, "sequential": True, "bytes_per_s": 2e9, "cpu_s_per_read": 1e-4}]}


def run(rate):
    return {"decode_tokens_per_s": rate, "reads_per_token": 5000, "io_bytes_per_token": 5000 * 4096, "io_wait_ms_per_token": 7,
            "decode_ms_p50": 190, "decode_ms_p90": 210, "decode_ms_p99": 250}


class Bound(unittest.TestCase):
    def test_rates_lie_between_those_of_the_sizes_around(self):
        self.assertAlmostEqual(paper_tables.random_reads(FACTS, 4096)[0], 100e3)
        self.assertAlmostEqual(paper_tables.random_reads(FACTS, 16384)[0], 50e3)
        rate, cpu_s = paper_tables.random_reads(FACTS, 10240)
        self.assertAlmostEqual(1 / rate, (1 / 100e3 + 1 / 50e3) / 2)
        self.assertAlmostEqual(cpu_s, 6e-6)
        self.assertAlmostEqual(paper_tables.random_reads(FACTS, 1 << 20)[0], 50e3, msg="beyond the largest")

    def test_a_disk_is_as_fast_as_the_slower_of_two_measurements(self):
        faster = {**FACTS, "disk": [{**sample, "bytes_per_s": 2 * sample["bytes_per_s"]} for sample in FACTS["disk"]]}
        for pair in ((FACTS, faster), (faster, FACTS)):
            self.assertAlmostEqual(paper_tables.random_reads(paper_tables.slower_disk(*pair), 4096)[0], 100e3)

    def test_requests_take_processor_time_of_all_threads(self):
        io_ms, compute_ms, at_once_ms = paper_tables.bound(100, 5000, 4096, FACTS, 2)
        self.assertAlmostEqual(io_ms, 50)
        self.assertAlmostEqual(compute_ms, 110)
        self.assertAlmostEqual(at_once_ms, 150 / 1.25)


class Tables(unittest.TestCase):
    def tables(self, peers):
        with tempfile.NamedTemporaryFile() as pack:
            pack.write(b"x" * 1000)
            pack.flush()
            args = argparse.Namespace(pack=pack.name, source=pack.name, threads=2, tokens=8, warm_up=4, repetitions=3, rounds=2,
                                      budget=2.6e9)
            found = {"facts": [FACTS] * 2, "dense": [run(4)] * 2, "memory": [run(10), run(10)],
                     "tight": [(run(5), 2.5e9), (run(4), 2.5e9)], "peer_memory": peers, "peer_tight": peers,
                     "prompt_pack": [19], "prompt_source": [20], "batch_memory": [{"decode_tokens_per_s": 25}],
                     "batch_tight": [{"decode_tokens_per_s": 9}],
                     "touched": 1.2e9,
                     "ablation": [{"parts": "streamed dense", "decode_tokens_per_s": 1, "io_wait_share": .5,
                                   "io_bytes_per_token": 1e9},
                                  {"parts": "+ bundles", "decode_tokens_per_s": 3, "io_wait_share": .4,
                                   "io_bytes_per_token": 1e8}]}
            return paper_tables.tables(args, found)

    def test_figures_stand_beside_their_bounds(self):
        text = self.tables([0.5])
        self.assertIn("| pack | 10.00 | 2.5x | 20.0x | 75 % (1.20 GB) |", text)
        self.assertIn("| round 1 | 5.00 | 5000 of 4.0 KiB | 50 | 110 | 200 | 1.82x | 120 | 1.67x | 7.0 | 2.50 |", text)
        self.assertIn("| peer, mmap | 0.50 (9.0x) |", text)
        self.assertIn("| pack | 19.0 (95 %) |", text)
        self.assertIn("| + bundles | 3.00 | 3.0 | 40 % | 100 MB |", text)

    def test_tables_are_whole_with_and_without_a_peer(self):
        for peers in ([], [0.5]):
            for part in self.tables(peers).split("\n\n"):
                rows = [line for line in part.splitlines() if line.startswith("|")]
                self.assertEqual(len({line.count("|") for line in rows if rows}), 1 if rows else 0, part)


class Bars(unittest.TestCase):
    def test_a_bar_for_each_value_within_the_picture(self):
        root = xml.etree.ElementTree.fromstring(svg_plot.bar_plot("a & b", "tokens/s", [("one", 1), ("<two>", 4)]))
        bars = [float(bar.get("width")) for bar in root.findall(SVG + "rect") if bar.get("class") == "bar"]
        self.assertEqual(len(bars), 2)
        self.assertAlmostEqual(bars[1] / bars[0], 4, places=2)
        self.assertLessEqual(max(bars), svg_plot.WIDTH)
        self.assertIn("<two>", [text.text for text in root.findall(SVG + "text")])

    def test_speed_against_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            pack = f"{folder}/p.gguf"
            with open(pack, "wb") as file:
                file.write(b"x" * 1000)
            args = argparse.Namespace(pack=pack, source=pack, threads=2, tokens=8, warm_up=4, repetitions=3, rounds=2,
                                      budget=[7e9, 8e9], out=f"{folder}/out")
            of = {"facts": [FACTS] * 2, "runs": [({**run(5), "cache_hit_rate": .9}, 6.9e9), ({**run(4), "cache_hit_rate": .8}, 6.8e9)],
                  "peer": [.5], "touched": 1.6e9}
            text, medians = paper_tables.budget_tables(args, {7e9: of, 8e9: {**of, "peer": []}})
            rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
            self.assertEqual({len(row) for row in rows}, {13})
            # 5,000 reads at 100,000 a second; 1.6 GB at 16 GB/s and 4 us of a processor per read on two threads.
            self.assertEqual(rows[1], ["7.00", "4.50", "2.13", "5000 of 4.0 KiB", "85.0 %", "50", "110", "222", "50 %", "54 %", "0.50",
                                       "9.0x", "6.90"])
            self.assertEqual(rows[2][2], "-")
            self.assertEqual(rows[2][10:12], ["-", "-"])
            paper_tables.write_budgets(args, text, medians)
            drawn = xml.etree.ElementTree.parse(args.out + ".svg")
            self.assertEqual(drawn.getroot().tag, SVG + "svg")


if __name__ == "__main__":
    unittest.main()
