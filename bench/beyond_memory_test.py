"""The plot and the table of beyond_memory.py, on numbers made up."""

import unittest
import xml.etree.ElementTree

import beyond_memory
import svg_plot

SVG = "{http://www.w3.org/2000/svg}"


class Plot(unittest.TestCase):
    def draw(self, *args):
        return xml.etree.ElementTree.fromstring(svg_plot.line_plot(*args))

    def test_a_line_for_each_system_and_a_mark_for_each_number(self):
        root = self.draw("a <model> & more", "GB", "tokens/s",
                         [("ours", [(2.6, 1.1), (0.16, 0.4), (4, 5)]), ("peer", [(2.6, 0.36), (4, 4.9)]), ("none", [])])
        self.assertEqual(len(root.findall(SVG + "polyline")), 2)
        self.assertEqual(len(root.findall(SVG + "circle")), 5)
        texts = [text.text for text in root.findall(SVG + "text")]
        for word in ("a <model> & more", "GB", "tokens/s", "ours", "peer", "none", "5"):
            self.assertIn(word, texts)

    def test_marks_lie_within_the_axes_and_lines_run_from_left_to_right(self):
        root = self.draw("t", "x", "y", [("a", [(3, 0), (1, 7), (2, 3.5)])])
        marks = [(float(c.get("cx")), float(c.get("cy"))) for c in root.findall(SVG + "circle")]
        self.assertEqual(marks, sorted(marks))
        for x, y in marks:
            self.assertTrue(svg_plot.LEFT <= x <= svg_plot.WIDTH - svg_plot.RIGHT, x)
            self.assertTrue(svg_plot.TOP <= y <= svg_plot.HEIGHT - svg_plot.BOTTOM, y)
        self.assertEqual(marks[-1][1], svg_plot.HEIGHT - svg_plot.BOTTOM, "zero is at the bottom")

    def test_nothing_to_draw_is_no_error(self):
        for series in ([], [("a", [])], [("a", [(0, 0)])]):
            self.assertEqual(self.draw("t", "x", "y", series).tag, SVG + "svg")

    def test_axes_end_at_round_numbers(self):
        for most, limit in ((0, 1), (1, 1), (1.01, 2), (2.2, 2.5), (2.6, 5), (7, 10), (0.034, 0.05), (26, 50), (100, 100)):
            self.assertAlmostEqual(svg_plot.nice_limit(most), limit)


class Table(unittest.TestCase):
    def test_budgets_are_sizes_as_the_program_reads_them(self):
        self.assertEqual(beyond_memory.budget_list("160M,2.5G,1GB,600000000"),
                         [160 << 20, 5 << 29, 10**9, 600000000])
        for text in ("", "M", "1X", "12,,3", "-5M", "0"):
            with self.assertRaises(ValueError, msg=text):
                beyond_memory.budget_list(text)

    BLOCKS = {"read_bytes": 524288, "depth": 4, "sequential": True}
    RATES = beyond_memory.Rates({"disk": [{**BLOCKS, "bytes_per_s": 2e9}, {**BLOCKS, "sequential": False, "bytes_per_s": 3e9}],
                                 "memory": [{"threads": 1, "bytes_per_s": 8e9}, {"threads": 2, "bytes_per_s": 16e9}],
                                 "overlap": [{"threads": 2, "memory_bytes_per_s": 12e9,
                                              "disk": {**BLOCKS, "bytes_per_s": 1e9}}]})

    def test_the_bound_is_what_memory_and_disk_reach_at_once(self):
        self.assertAlmostEqual(self.RATES.overlap, 1.25)
        self.assertAlmostEqual(self.RATES.seconds(0, 2e9), 1)
        self.assertAlmostEqual(self.RATES.seconds(16e9, 2e9), 1.6)
        self.assertAlmostEqual(self.RATES.seconds(1.6e9, 2e9), 1, msg="one is short beside the other")

    def test_a_row_names_the_share_of_the_bound_and_the_peer(self):
        mine = {"prompt": 20.0, "decode": 1.0, "peak": 2.5e9, "io_bytes": 1.6e9, "touched": 1e9, "predicted": 1.2}
        row = beyond_memory.row(2.6e9, mine, {"decode": 0.4, "peak": 2.6e9}, self.RATES)
        self.assertIn("| 80 % |", row)
        self.assertIn("| 2.5x |", row)
        self.assertIn("| - | - |", beyond_memory.row(2.6e9, mine, None, self.RATES))
        self.assertIn("in memory", beyond_memory.row(8e9, {**mine, "io_bytes": 0}, None, self.RATES))
        self.assertIn("too small", beyond_memory.row(1e8, {"error": "too small"}, None, self.RATES))

    def test_every_row_has_the_columns_of_the_head(self):
        mine = {"prompt": 20.0, "decode": 1.0, "peak": 2.5e9, "io_bytes": 1.6e9, "touched": 1e9, "predicted": None}
        for row in (beyond_memory.row(2.6e9, mine, {"error": "timed out"}, self.RATES),
                    beyond_memory.row(1e8, {"error": "too small"}, None, self.RATES)):
            self.assertEqual(row.count("|"), beyond_memory.HEAD.splitlines()[0].count("|"), row)


if __name__ == "__main__":
    unittest.main()
