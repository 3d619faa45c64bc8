"""Starts the server for tests and talks HTTP to it with nothing but sockets and http.client."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(ROOT, "tests", "fixtures")
PROGRAM = os.environ["GANGLION_PROGRAM"]
PRELOAD = os.environ.get("GANGLION_PRELOAD", "")
SANITIZED = os.environ.get("GANGLION_SANITIZED", "") != ""
MODEL = os.path.join(FIXTURES, "models", "llama-q4_0.gguf")
# Plain text, so that the tiny models' vocabulary holds all of it.
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
            "call {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def text(self):
        return self.body.decode("utf-8")

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of each server-sent event, parsed; [DONE] as it is."""
        found = []
        for block in self.text.split("\n\n"):
            for line in block.split("\n"):
                if line.startswith("data: "):
                    found.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
        return found


class Server:
    """`with Server(...) as server:`; fails the test if the server does not end cleanly."""

    def __init__(self, *args, model=MODEL, env=None, template=TEMPLATE, wait=True):
        self.dir = tempfile.TemporaryDirectory(prefix="ganglion-serve-")
        command = [PROGRAM, "serve", "-m", model, "--port", "0", *args]
        if model.startswith(FIXTURES):
            command += ["-t", "1"]  # Tiny models gain nothing from threads; on a busy machine they lose.
        if template is not None:
            path = os.path.join(self.dir.name, "template.jinja")
            with open(path, "w", encoding="utf-8") as file:
                file.write(template)
            command += ["--chat-template-file", path]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                                        env={**os.environ, **(env or {})}, errors="replace")
        self.lines = []
        self.port = None
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait:
            self.ready.wait(120)
            if self.port is None:
                self.process.kill()
                raise RuntimeError("the server did not start: " + "".join(self.lines))

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"listening on http://\S+:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.ready.set()
        self.ready.set()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with {code}: {''.join(self.lines)}")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = -9
        self.reader.join(10)
        self.dir.cleanup()
        return code

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def complete(self, prompt="the cat", **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 20, "temperature": 0, **fields})

    def chat(self, content="the cat", **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 20, "temperature": 0, **fields})

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").text, re.M)
        return float(found.group(1))

    def raw(self, data, timeout=30, half_close=False):
        """Sends bytes, returns all that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while chunk := connection.recv(65536):
                    received += chunk
            except (ConnectionResetError, TimeoutError):
                pass
            return received

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) * 1024


def until(condition, seconds=30):
    """Waits for a condition; false if it never held."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
