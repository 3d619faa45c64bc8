"""Many clients at once, honest and not, for a while: the server must not fall, leak or give wrong answers.

    GANGLION_PROGRAM=build/release/ganglion tests/e2e/server_stress.py [--clients 100] [--seconds 60] [--model M] [--mem 64M]

Not a timed test: speed plays no part in its verdict. Exit code 0 if all is well."""

import argparse
import collections
import json
import random
import socket
import sys
import threading
import time

from serving import MODEL, Server, until

PROMPTS = [f"the cat number {i} and the dog" for i in range(8)]


def head(body, path="/v1/completions"):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body))


class Stress:
    def __init__(self, server, seconds):
        self.server = server
        self.deadline = time.monotonic() + seconds
        self.counts = collections.Counter()
        self.wrong = []
        self.expected = [self.server.complete(p, max_tokens=24).json()["choices"][0]["text"] for p in PROMPTS]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=120)

    def honest(self, rng):
        i = rng.randrange(len(PROMPTS))
        stream = rng.random() < 0.5
        answer = self.server.complete(PROMPTS[i], max_tokens=24, stream=stream)
        if answer.status in (429, 503):
            self.counts["refused"] += 1
            return time.sleep(0.05)
        if stream:
            text = "".join(e["choices"][0]["text"] for e in answer.events() if e != "[DONE]")
        else:
            text = answer.json()["choices"][0]["text"]
        if text != self.expected[i]:
            self.wrong.append((PROMPTS[i], text))

    def leaves(self, rng):
        body = json.dumps({"prompt": "the cat", "max_tokens": 2000, "ignore_eos": True, "stream": rng.random() < 0.7}).encode()
        with self.connect() as connection:
            connection.sendall(head(body) + body)
            time.sleep(rng.random() * 0.3)

    def leaves_early(self, rng):
        body = b"x" * 1000
        with self.connect() as connection:
            data = head(body) + body
            connection.sendall(data[:rng.randrange(len(data))])

    def reads_nothing(self, rng):
        body = json.dumps({"prompt": "the cat", "max_tokens": 1000, "ignore_eos": True, "stream": True}).encode()
        with self.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.sendall(head(body) + body)
            time.sleep(rng.random())

    def idles(self, rng):
        with self.connect() as connection:
            connection.sendall(b"POST /v1/chat")
            time.sleep(rng.random())

    def nonsense(self, rng):
        bodies = [b"[" * 20000, b"{\"prompt\": \"\xff\xfe\"}", b"{", b'{"prompt": 5}', b'{"prompt": "a", "temperature": "x"}',
                  json.dumps({"prompt": [1, 2], "n": -1}).encode()]
        data = rng.choice([rng.randbytes(rng.randrange(1, 3000)), b"GET / HTTP/1.1\r\nX: " + b"a" * 60000 + b"\r\n\r\n",
                           *(head(b) + b for b in bodies)])
        with self.connect() as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass

    def health(self, _):
        if self.server.get("/health").status != 200:
            self.wrong.append(("health", ""))

    def client(self, number):
        rng = random.Random(number)
        kinds = [self.honest] * 5 + [self.leaves] * 2 + [self.leaves_early, self.reads_nothing, self.idles, self.nonsense, self.health]
        while time.monotonic() < self.deadline:
            kind = rng.choice(kinds)
            try:
                kind(rng)
                self.counts[kind.__name__] += 1
            except OSError as error:
                self.counts[f"{kind.__name__}: {type(error).__name__}"] += 1
                if self.server.process.poll() is not None:
                    return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--mem", default="96M")
    flags = parser.parse_args()
    with Server("--mem", flags.mem, "--parallel", "4", "--queue", "64", "-c", "2048", model=flags.model) as server:
        stress = Stress(server, flags.seconds)
        threads = [threading.Thread(target=stress.client, args=(i,)) for i in range(flags.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alive = server.process.poll() is None
        calm = alive and until(lambda: server.metric("llamacpp:requests_processing") == 0 and
                               server.metric("llamacpp:requests_deferred") == 0, 120)
        print(dict(stress.counts))
        peak = server.metric("ganglion:memory_peak_bytes") if alive else 0
        budget = server.metric("ganglion:budget_bytes") if alive else 0
        print(f"alive {alive}, calm {calm}, wrong answers {len(stress.wrong)}, peak {peak / 2**20:.1f} of {budget / 2**20:.1f} MiB")
        for prompt, text in stress.wrong[:3]:
            print("wrong:", repr(prompt), repr(text))
        if not alive or not calm or stress.wrong or peak > budget:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
