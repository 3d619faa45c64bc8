"""pull against a hub on this machine: shards, resuming, wrong bytes, missing models, unsafe names."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

from serving import FIXTURES, MODEL, PROGRAM

SHARDS = os.path.join(FIXTURES, "splits", "three")


class Hub(http.server.ThreadingHTTPServer):
    """Speaks as much of the hub's interface as pull uses. `files`: repository path to bytes."""

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.requests = []
        self.cut_after = None    # Bytes of a file that are sent before the connection breaks.
        self.resumes = True
        self.lies = False        # About the SHA-256.
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        hub.requests.append((self.path, self.headers.get("Range")))
        if self.path.startswith("/api/models/user/repo/tree/main"):
            listing = [{"type": "file", "path": path, "size": len(data),
                        "lfs": {"oid": hashlib.sha256(b"x" if hub.lies else data).hexdigest()}}
                       for path, data in hub.files.items()]
            return self.reply(200, json.dumps(listing).encode())
        data = hub.files.get(self.path.split("?")[0].removeprefix("/user/repo/resolve/main/"))
        if data is None:
            return self.reply(404, b"")
        begin = 0
        if hub.resumes and self.headers.get("Range"):
            begin = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
            if begin >= len(data):
                return self.reply(416, b"")
        return self.reply(206 if begin else 200, data[begin:], f"bytes {begin}-{len(data) - 1}/{len(data)}")

    def reply(self, status, data, part=""):
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", part)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        cut = None
        if len(data) > 10000:
            cut, self.server.cut_after = self.server.cut_after, None
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True


class Pull(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ganglion-pull-")
        self.addCleanup(shutil.rmtree, self.dir)
        with open(MODEL, "rb") as file:
            self.model = file.read()
        files = {"model.Q4_K_M.gguf": b"not this", "model.Q4_0.gguf": self.model, "README.md": b"x", "../evil.gguf": b"x"}
        for name in sorted(os.listdir(SHARDS)):
            with open(os.path.join(SHARDS, name), "rb") as file:
                files["big/model-Q8_0-" + name[-len("00001-of-00003.gguf"):]] = file.read()
        self.hub = Hub(files)
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)

    def run_program(self, *args):
        return subprocess.run([PROGRAM, *args], capture_output=True, text=True, check=False, timeout=120, errors="replace",
                              env={**os.environ, "HF_ENDPOINT": self.hub.url, "GANGLION_MODELS": self.dir})

    def pull(self, source="user/repo:Q4_0"):
        return self.run_program("pull", source)

    def place(self, *parts):
        return os.path.join(self.dir, "user", "repo", *parts)

    def test_one_file_by_quantisation(self):
        done = self.pull()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), self.place("model.Q4_0.gguf"))
        with open(done.stdout.strip(), "rb") as file:
            self.assertEqual(file.read(), self.model)
        self.assertIn("model.Q4_0", self.run_program("list").stdout)
        count = len(self.hub.requests)
        self.assertEqual(self.pull().returncode, 0)
        self.assertEqual(len(self.hub.requests), count + 1)  # The list alone.

    def test_all_shards(self):
        done = self.pull("user/repo:q8_0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(os.listdir(self.place("big"))), 3)
        self.assertEqual(self.run_program("verify", "-m", done.stdout.strip()).returncode, 0)

    def test_a_broken_connection_is_resumed(self):
        self.hub.cut_after = 300_000
        done = self.pull()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("bytes=300000-", [r for _, r in self.hub.requests])
        with open(done.stdout.strip(), "rb") as file:
            self.assertEqual(file.read(), self.model)

    def test_a_part_of_an_earlier_attempt_is_used(self):
        for resumes in (True, False):
            self.hub.resumes = resumes
            os.makedirs(self.place(), exist_ok=True)
            with open(self.place("model.Q4_0.gguf.part"), "wb") as file:
                file.write(self.model[:500_000])
            done = self.pull()
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(done.stdout.strip(), "rb") as file:
                self.assertEqual(file.read(), self.model)
            self.assertEqual(os.listdir(self.place()), ["model.Q4_0.gguf"])
            os.remove(self.place("model.Q4_0.gguf"))

    def test_wrong_bytes_are_not_kept(self):
        self.hub.lies = True
        done = self.pull()
        self.assertEqual(done.returncode, 1)
        self.assertIn("SHA-256", done.stderr)
        self.assertEqual(os.listdir(self.place()), [])

    def test_what_is_not_there_is_named(self):
        for source, words, code in (("user/repo:Q2_K", "model.Q4_0.gguf", 1), ("user/other", "404", 1), ("nonsense", "user/repo", 2),
                                    ("../../etc:x", "user/repo", 2), (self.hub.url + "/x.txt", "GGUF", 2)):
            done = self.pull(source)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "..", "evil.gguf")))

    def test_by_url_and_run(self):
        done = self.pull(self.hub.url + "/user/repo/resolve/main/model.Q4_0.gguf?download=true")
        self.assertEqual(done.returncode, 0, done.stderr)
        run = self.run_program("run", "-hf", "user/repo:Q4_0", "--raw", "-p", "a", "-n", "3", "-q")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.hub.shutdown()
        self.hub.server_close()
        run = self.run_program("run", "-hf", "user/repo:Q4_0", "--raw", "-p", "a", "-n", "3", "-q")
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
