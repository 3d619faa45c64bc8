"""The server as its clients meet it: answers, errors, slots, the network's odd cases."""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from serving import FIXTURES, MODEL, PRELOAD, PROGRAM, SANITIZED, Server, until

WINDOWED = os.path.join(FIXTURES, "models", "gemma2-f32.gguf")
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                   "required": ["city"], "additionalProperties": False}}}


def run_text(prompt, *args):
    """What `ganglion run` continues a prompt with."""
    done = subprocess.run([PROGRAM, "run", "-m", MODEL, "--raw", "-p", prompt, "-n", "20", "--temp", "0", "-q", *args],
                          capture_output=True, text=True, check=True, errors="replace")
    return done.stdout[:-1]


class Served(unittest.TestCase):
    ARGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.ARGS)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"the server ended with {code}: {''.join(cls.server.lines)}"

    def expect_error(self, answer, status, kind, *words):
        self.assertEqual(answer.status, status, answer.text)
        error = answer.json()["error"]
        self.assertEqual(error["code"], status)
        self.assertEqual(error["type"], kind)
        for word in words:
            self.assertIn(word, error["message"])
        return error


class ServerAnswers(Served):
    ARGS = ("--parallel", "2", "--alias", "tiny")

    def test_completion_is_what_run_writes(self):
        answer = self.server.complete().json()
        self.assertEqual(answer["choices"][0]["text"], run_text("the cat"))
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["model"], "tiny")
        usage = answer["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        for field in "cache_n prompt_n prompt_ms prompt_per_second predicted_n predicted_ms predicted_per_second io_bytes " \
                     "io_wait_ms cache_hit_rate".split():
            self.assertIn(field, answer["timings"])

    def test_streams_add_up_to_the_whole_answer(self):
        for path, fields in (("/v1/completions", {"prompt": "the cat"}),
                             ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the cat"}]})):
            body = {**fields, "max_tokens": 40, "temperature": 0}
            whole = self.server.post(path, body).json()["choices"][0]
            stream = self.server.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
            self.assertIn("text/event-stream", stream.headers["Content-Type"])
            events = stream.events()
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual(events[-2]["choices"], [])
            self.assertGreater(events[-2]["usage"]["completion_tokens"], 0)
            choices = [event["choices"][0] for event in events[:-2]]
            text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
            self.assertEqual(text, whole.get("text") or whole["message"]["content"])
            self.assertEqual([c["finish_reason"] for c in choices if c["finish_reason"]], [whole["finish_reason"]])

    def test_chat_stream_begins_with_the_role(self):
        events = self.server.chat(stream=True).events()
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": None})
        self.assertEqual(events[0]["object"], "chat.completion.chunk")

    def test_limits_and_stops(self):
        answer = self.server.complete(max_tokens=3).json()
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 3)
        whole = self.server.complete(max_tokens=20).json()["choices"][0]["text"]
        stop = whole[5:8]
        stopped = self.server.complete(max_tokens=20, stop=[stop]).json()["choices"][0]
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["text"], whole[:whole.find(stop)])
        events = self.server.complete(max_tokens=20, stop=stop, stream=True).events()
        self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), stopped["text"])

    def test_seeds_and_choices(self):
        fields = {"temperature": 1.5, "seed": 3, "n": 3, "max_tokens": 12}
        first = [c["text"] for c in self.server.complete(**fields).json()["choices"]]
        self.assertEqual(len(set(first)), 3)
        self.assertEqual([c["text"] for c in self.server.complete(**fields).json()["choices"]], first)
        alone = self.server.complete(**{**fields, "n": 1}).json()
        self.assertEqual(alone["choices"][0]["text"], first[0])

    def test_choices_share_the_prompt(self):
        before = self.server.metric("llamacpp:prompt_tokens_total")
        prompt = [i % 300 for i in range(100)]
        answer = self.server.complete(prompt=prompt, n=2, max_tokens=4).json()
        self.assertEqual(answer["usage"]["prompt_tokens"], 100)
        self.assertEqual(self.server.metric("llamacpp:prompt_tokens_total") - before, 101)

    def test_prompts_as_tokens_and_lists(self):
        tokens = self.server.post("/tokenize", {"content": "the cat"}).json()["tokens"]
        texts = [c["text"] for c in self.server.complete(prompt=[tokens, "the cat", [tokens[0], "x"]]).json()["choices"]]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(texts), 3)
        self.assertEqual(self.server.complete(prompt=tokens).json()["choices"][0]["text"], texts[0])

    def test_logprobs(self):
        answer = self.server.chat(logprobs=True, top_logprobs=3, max_tokens=4).json()
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertEqual(len(token["top_logprobs"]), 3)
            self.assertAlmostEqual(token["logprob"], token["top_logprobs"][0]["logprob"], places=5)
            self.assertLess(token["logprob"], 0)
        streamed = self.server.chat(logprobs=True, max_tokens=4, stream=True).events()
        found = [t for e in streamed[:-1] if e["choices"][0]["logprobs"] for t in e["choices"][0]["logprobs"]["content"]]
        self.assertEqual([t["id"] for t in found], [t["id"] for t in content])
        legacy = self.server.complete(logprobs=2, max_tokens=4).json()["choices"][0]["logprobs"]
        self.assertEqual(len(legacy["tokens"]), 4)
        self.assertEqual(len(legacy["top_logprobs"][0]), 2)

    def test_logit_bias(self):
        first = self.server.chat(logprobs=True, max_tokens=1).json()["choices"][0]["logprobs"]["content"][0]["id"]
        for bias in ({str(first): -100}, [[first, False]]):
            other = self.server.chat(logprobs=True, max_tokens=1, logit_bias=bias).json()
            self.assertNotEqual(other["choices"][0]["logprobs"]["content"][0]["id"], first)

    def test_characters_are_never_cut(self):
        text = "é 😀 漢字 é"
        tokens = self.server.post("/tokenize", {"content": text}).json()["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens}).json()["content"], text)
        for seed in range(3):
            stream = self.server.complete(temperature=3, top_k=0, top_p=1, min_p=0, seed=seed, max_tokens=60, stream=True)
            pieces = [e["choices"][0]["text"] for e in stream.events()[:-1]]
            whole = self.server.complete(temperature=3, top_k=0, top_p=1, min_p=0, seed=seed, max_tokens=60).json()
            self.assertEqual("".join(pieces), whole["choices"][0]["text"])

    def test_embeddings(self):
        answer = self.server.post("/v1/embeddings", {"input": ["the cat", "the dog", "the cat"]}).json()
        vectors = [d["embedding"] for d in answer["data"]]
        self.assertEqual(len(vectors), 3)
        self.assertEqual(vectors[0], vectors[2])
        self.assertNotEqual(vectors[0], vectors[1])
        self.assertAlmostEqual(sum(x * x for x in vectors[0]), 1, places=4)
        encoded = self.server.post("/v1/embeddings", {"input": "the cat", "encoding_format": "base64"}).json()
        self.assertIsInstance(encoded["data"][0]["embedding"], str)

    def test_small_endpoints(self):
        self.assertEqual(self.server.get("/health").json(), {"status": "ok"})
        model = self.server.get("/v1/models").json()["data"][0]
        self.assertEqual(model["id"], "tiny")
        self.assertEqual(model["meta"]["n_vocab"], 320)
        self.assertEqual(self.server.get("/v1/models/tiny").json()["id"], "tiny")
        self.assertEqual(self.server.get("/v1/models/other").status, 404)
        props = self.server.get("/props").json()
        self.assertEqual(props["total_slots"], 2)
        self.assertGreater(props["plan"]["budget_bytes"], 0)
        self.assertEqual(len(self.server.get("/slots").json()), 2)
        # The slot of the test before is given back a moment after its answer.
        self.assertTrue(until(lambda: "llamacpp:requests_processing 0" in self.server.get("/metrics").text))
        rendered = self.server.post("/apply-template", {"messages": [{"role": "user", "content": "hi"}]}).json()
        self.assertEqual(rendered["prompt"], "user: hi\nassistant:")
        pieces = self.server.post("/tokenize", {"content": "é", "with_pieces": True}).json()["tokens"]
        self.assertTrue(all("piece" in piece for piece in pieces))
        self.assertIn("html", self.server.get("/").headers["Content-Type"])

    def test_native_completion(self):
        answer = self.server.post("/completion", {"prompt": "the cat", "n_predict": 5, "temperature": 0}).json()
        self.assertTrue(answer["stop"])
        self.assertEqual(answer["stop_type"], "limit")
        self.assertEqual(answer["tokens_predicted"], 5)
        self.assertIn("timings", answer)

    def test_anthropic_messages(self):
        body = {"model": "x", "max_tokens": 12, "temperature": 0, "system": "Be brief.",
                "messages": [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}]}
        whole = self.server.post("/v1/messages", body).json()
        self.assertEqual(whole["type"], "message")
        self.assertEqual(whole["stop_reason"], "max_tokens")
        count = self.server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
        self.assertEqual(whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"], count)
        events = self.server.post("/v1/messages", {**body, "stream": True}).events()
        self.assertEqual([e["type"] for e in events if e["type"] != "content_block_delta"],
                         ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(events[0]["message"]["usage"]["input_tokens"], count)
        text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
        self.assertEqual(text, whole["content"][0]["text"])
        bad = self.server.post("/v1/messages", {"messages": []})
        self.assertEqual(bad.json()["error"]["type"], "invalid_request_error")

    def test_responses(self):
        body = {"model": "x", "input": "the cat", "max_output_tokens": 12, "temperature": 0}
        whole = self.server.post("/v1/responses", body).json()
        self.assertEqual(whole["status"], "incomplete")
        self.assertEqual(whole["incomplete_details"], {"reason": "max_output_tokens"})
        events = self.server.post("/v1/responses", {**body, "stream": True}).events()
        self.assertEqual(events[0]["type"], "response.created")
        self.assertEqual(events[-1]["type"], "response.incomplete")
        self.assertEqual([e["sequence_number"] for e in events], list(range(len(events))))
        text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        self.assertEqual(text, whole["output"][0]["content"][0]["text"])

    def test_json_by_grammar(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
                  "required": ["a", "b"], "additionalProperties": False}
        for format in ({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
                       {"type": "json_object", "schema": schema}):
            answer = self.server.chat(response_format=format, max_tokens=200, temperature=1, seed=1).json()["choices"][0]
            self.assertEqual(answer["finish_reason"], "stop", answer)
            value = json.loads(answer["message"]["content"])
            self.assertEqual(set(value), {"a", "b"})
        self.assertIn(self.server.complete(grammar='root ::= "yes" | "no"', max_tokens=9).json()["choices"][0]["text"],
                      ("yes", "no"))
        self.assertEqual(self.server.complete(grammar='start: "a" "b"', max_tokens=9).json()["choices"][0]["text"], "ab")

    def test_bad_grammars_are_refused(self):
        for fields in ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
                       {"response_format": {"type": "json_schema", "json_schema": {}}},
                       {"response_format": {"type": "xml"}},
                       {"response_format": "json"},
                       {"grammar": "root ::= ("}, {"grammar": "start: /[/"}, {"json_schema": 5}):
            self.expect_error(self.server.chat(**fields), 400, "invalid_request_error")

    def test_a_required_tool_is_called(self):
        answer = self.server.chat(tools=[WEATHER], tool_choice="required", max_tokens=100).json()["choices"][0]
        self.assertEqual(answer["finish_reason"], "tool_calls")
        call = answer["message"]["tool_calls"][0]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertIn(json.loads(call["function"]["arguments"])["city"], ("Oslo", "Rome"))
        events = self.server.chat(tools=[WEATHER], max_tokens=100, stream=True,
                                  tool_choice={"type": "function", "function": {"name": "get_weather"}}).events()
        deltas = [c for e in events[:-1] for c in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertEqual(deltas[0]["function"]["name"], "get_weather")
        self.assertTrue(deltas[0]["id"])
        self.assertEqual(json.loads("".join(d["function"]["arguments"] for d in deltas)),
                         json.loads(call["function"]["arguments"]))
        message = self.server.post("/v1/messages", {
            "max_tokens": 100, "temperature": 0, "tool_choice": {"type": "any"},
            "messages": [{"role": "user", "content": "the cat"}],
            "tools": [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}]}).json()
        self.assertEqual(message["stop_reason"], "tool_use")
        self.assertIn(message["content"][0]["input"]["city"], ("Oslo", "Rome"))

    def test_tool_results_come_back(self):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}]}]
        rendered = self.server.post("/apply-template", {"messages": messages}).json()["prompt"]
        self.assertEqual(rendered, 'user: q\nassistant: call f {"x": 1}\ntool: 5\nassistant:')
        self.assertEqual(self.server.chat(messages).status, 200)


class ServerErrors(Served):
    ARGS = ("-c", "128", "--parallel", "2")

    def test_context_errors_have_both_numbers(self):
        for answer in (self.server.complete(prompt=[5] * 200), self.server.complete(prompt=[5] * 200, stream=True),
                       self.server.chat("x " * 300)):
            error = self.expect_error(answer, 400, "exceed_context_size_error", "context_length_exceeded")
            self.assertGreaterEqual(error["n_prompt_tokens"], 200)
            self.assertEqual(error["n_ctx"], 128)

    def test_an_answer_ends_at_the_context(self):
        answer = self.server.complete(prompt=[5] * 120, max_tokens=-1, ignore_eos=True).json()
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertLessEqual(answer["usage"]["total_tokens"], 129)

    def test_bad_fields_are_named(self):
        for fields, word in (({"temperature": "hot"}, "temperature"), ({"top_p": 2}, "top_p"), ({"max_tokens": -5}, "max_tokens"),
                             ({"n": 0}, "n:"), ({"n": 1000}, "n:"), ({"stop": 5}, "stop"), ({"logit_bias": {"9999": 1}}, "9999"),
                             ({"logit_bias": 3}, "logit_bias"), ({"seed": "x"}, "seed"), ({"samplers": ["nonsense"]}, "samplers"),
                             ({"functions": [{}]}, "functions"), ({"top_logprobs": 3}, "top_logprobs"),
                             ({"tools": [{"type": "web"}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
                             ({"messages": []}, "messages"), ({"messages": [{"role": "user"}]}, "content"),
                             ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url")):
            self.expect_error(self.server.chat(**fields), 400, "invalid_request_error", word)
        self.expect_error(self.server.complete(suffix="x"), 400, "invalid_request_error", "suffix")
        self.expect_error(self.server.complete(prompt=[99999]), 400, "invalid_request_error", "99999")

    def test_unknown_fields_and_nulls_are_accepted(self):
        answer = self.server.chat(user="me", metadata={"a": 1}, unheard_of=[1], temperature=0, top_p=None, stop=None, tools=None,
                                  service_tier="auto", tool_call_id=None)
        self.assertEqual(answer.status, 200, answer.text)

    def test_malformed_bodies(self):
        for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": "\xff"}', b"[" * 100000, b'{"a":' * 5000, b"null", b'"x"'):
            self.expect_error(self.server.post("/v1/completions", body), 400, "invalid_request_error")

    def test_paths_and_methods(self):
        self.expect_error(self.server.get("/nowhere"), 404, "not_found_error", "/nowhere")
        self.expect_error(self.server.get("/v1/chat/completions"), 405, "invalid_request_error", "POST")
        self.expect_error(self.server.post("/health", {}), 405, "invalid_request_error", "GET")

    def test_templates_that_refuse(self):
        template = "{{ raise_exception('only cats') }}"
        with Server(template=template) as server:
            answer = server.chat()
            self.assertEqual(answer.status, 400)
            self.assertIn("only cats", answer.json()["error"]["message"])
        with Server(template=None) as server:
            answer = server.chat()
            self.assertEqual(answer.status, 501)
            self.assertIn("chat template", answer.json()["error"]["message"])


class ServerNetwork(Served):
    ARGS = ("--parallel", "2", "-c", "8192")

    def test_malformed_http_is_answered_or_closed(self):
        for data in (b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"GET / HTTP/1.1\r\nBad Header\r\n\r\n"):
            received = self.server.raw(data, half_close=True)
            self.assertTrue(received == b"" or received.startswith(b"HTTP/1.1 400"), (data, received[:200]))
        self.assertEqual(self.server.get("/health").status, 200)

    def test_large_heads_and_bodies(self):
        received = self.server.raw(b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")
        self.assertTrue(received == b"" or received.startswith(b"HTTP/1.1 431"), received[:100])
        received = self.server.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        self.assertTrue(received.startswith(b"HTTP/1.1 413"), received[:100])

    def test_keep_alive_and_pipelining(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        received = self.server.raw(one * 3 + last)
        self.assertEqual(received.count(b"HTTP/1.1 200 OK"), 4)
        self.assertEqual(received.count(b'{"status":"ok"}'), 4)

    def test_http_1_0_streams_without_chunks(self):
        body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}).encode()
        received = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.assertNotIn(b"chunked", received)
        self.assertTrue(received.endswith(b"data: [DONE]\n\n"), received)

    def test_expect_continue(self):
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                               b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 100"))
            connection.sendall(body)
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
            self.assertIn(b"200 OK", received)

    def test_foreign_hosts_and_origins(self):
        self.assertEqual(self.server.get("/health", headers={"Host": "evil.example"}).status, 403)
        self.assertEqual(self.server.get("/health", headers={"Host": "127.0.0.1:1"}).status, 200)
        self.assertEqual(self.server.get("/health", headers={"Origin": "http://evil.example"}).status, 403)
        answer = self.server.get("/health", headers={"Origin": "http://localhost:3000"})
        self.assertEqual(answer.headers["Access-Control-Allow-Origin"], "http://localhost:3000")
        preflight = self.server.request("OPTIONS", "/v1/chat/completions", headers={
            "Origin": "http://localhost:3000", "Access-Control-Request-Headers": "authorization"})
        self.assertEqual(preflight.status, 204)
        self.assertEqual(preflight.headers["Access-Control-Allow-Headers"], "authorization")

    def test_a_client_that_leaves_stops_its_answer(self):
        before = self.server.metric("ganglion:requests_cancelled_total")
        body = json.dumps({"prompt": "the cat", "max_tokens": 100000, "ignore_eos": True, "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", self.server.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        connection.recv(100)
        other = self.server.complete().json()["choices"][0]["text"]
        connection.close()
        self.assertEqual(other, run_text("the cat"))
        self.assertTrue(until(lambda: self.server.metric("ganglion:requests_cancelled_total") > before))
        self.assertTrue(until(lambda: self.server.metric("llamacpp:requests_processing") == 0))

    def test_health_is_answered_while_clients_stream_and_idle(self):
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(3)]
        body = {"prompt": "the cat", "max_tokens": 200, "ignore_eos": True, "stream": True}
        threads = [threading.Thread(target=self.server.post, args=("/v1/completions", body)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            self.assertEqual(self.server.get("/health", timeout=10).status, 200)
        for thread in threads:
            thread.join()
        for connection in idle:
            connection.close()


class ServerSlots(unittest.TestCase):
    def test_answers_are_the_same_alone_and_together(self):
        prompts = [f"the cat number {i}" for i in range(6)]
        with Server("--parallel", "1") as server:
            alone = [server.complete(p, max_tokens=30).json()["choices"][0]["text"] for p in prompts]
        with Server("--parallel", "4") as server:
            together = [None] * len(prompts)

            def ask(i):
                together[i] = server.complete(prompts[i], max_tokens=30).json()["choices"][0]["text"]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertGreater(server.metric("llamacpp:n_busy_slots_per_decode"), 1)
        self.assertEqual(together, alone)

    def test_a_second_turn_evaluates_only_what_is_new(self):
        with Server("--parallel", "2") as server:
            messages = [{"role": "user", "content": "a long enough question about the cat and the dog"}]
            first = server.chat(messages).json()
            messages += [first["choices"][0]["message"], {"role": "user", "content": "and now?"}]
            second = server.chat(messages).json()
            cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertGreaterEqual(cached, first["usage"]["prompt_tokens"])
            fresh = server.chat(messages, cache_prompt=False).json()
            self.assertEqual(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual(fresh["choices"][0]["message"], second["choices"][0]["message"])

    def test_windowed_models_reuse_what_they_can(self):
        with Server("--parallel", "2", model=WINDOWED) as server:
            prompt = [i % 50 + 5 for i in range(90)]
            whole = server.complete(prompt, max_tokens=12).json()["choices"][0]["text"]
            for n in (1, 2):
                again = server.complete(prompt, max_tokens=12, n=n).json()["choices"]
                self.assertEqual({c["text"] for c in again}, {whole})
            short = server.complete(prompt[:20], max_tokens=12).json()["choices"][0]["text"]
            self.assertEqual(server.complete(prompt[:20], max_tokens=12, cache_prompt=False).json()["choices"][0]["text"],
                             short)

    def act(self, server, action, name=None, slot=0):
        return server.post(f"/slots/{slot}?action={action}", {"filename": name} if name else {})

    def test_saved_slots_answer_as_before_after_a_restart(self):
        prompt = [i % 50 + 5 for i in range(150)]
        for model in (MODEL, WINDOWED):
            with tempfile.TemporaryDirectory() as folder:
                args = ("--parallel", "2", "--slot-save-path", folder)
                with Server(*args, model=model) as server:
                    whole = server.complete(prompt, max_tokens=12, id_slot=1).json()
                    saved = self.act(server, "save", "talk.kv", slot=1)
                    self.assertEqual(saved.status, 200, saved.text)
                    facts = saved.json()
                    # The last token was chosen, not evaluated.
                    self.assertEqual((facts["id_slot"], facts["filename"], facts["n_saved"]), (1, "talk.kv", 161))
                    self.assertEqual(facts["n_written"], os.path.getsize(os.path.join(folder, "talk.kv")))
                    self.assertGreater(facts["timings"]["save_ms"], 0)
                with Server(*args, model=model) as server:
                    restored = self.act(server, "restore", "talk.kv", slot=0).json()
                    self.assertEqual((restored["n_restored"], restored["n_read"]), (161, facts["n_written"]))
                    self.assertEqual(server.get("/slots").json()[0]["n_past"], 161)
                    again = server.complete(prompt, max_tokens=12).json()
                    self.assertEqual(again["choices"][0]["text"], whole["choices"][0]["text"])
                    self.assertEqual(again["timings"]["cache_n"], 149)
                    erased = self.act(server, "erase", slot=0)
                    self.assertEqual(erased.json(), {"id_slot": 0, "n_erased": 161})
                    self.assertEqual(server.complete(prompt, max_tokens=1).json()["timings"]["cache_n"], 0)

    def test_saving_and_restoring_refuse_by_name(self):
        with tempfile.TemporaryDirectory() as folder, Server("--slot-save-path", folder, "--slot-save-limit", "280K") as server:
            def refused(answer, status, word):
                self.assertEqual(answer.status, status, answer.text)
                self.assertIn(word, answer.json()["error"]["message"])

            refused(self.act(server, "save", "a"), 400, "0 positions")
            server.complete(list(range(5, 135)), max_tokens=1)
            for name in ("../a", "a/b", ".a", "", "a.part", "x" * 201, "a\n"):
                refused(server.post("/slots/0?action=save", {"filename": name}), 400, "filename")
            refused(server.post("/slots/0?action=save", {"filename": 5}), 400, "filename")
            refused(self.act(server, "save", "a", slot=1), 400, "no slot 1")
            refused(server.post("/slots/x?action=save", {"filename": "a"}), 400, "names no slot")
            refused(self.act(server, "keep", "a"), 400, "action")
            refused(self.act(server, "restore", "a"), 404, "a")
            refused(server.complete("a", id_slot=7), 400, "no slot 7")
            self.assertEqual(server.get("/slots/0").status, 405)
            self.assertEqual(os.listdir(folder), [])
            saved = self.act(server, "save", "a")
            self.assertEqual(saved.status, 200, saved.text)
            self.assertGreater(2 * saved.json()["n_written"], 280 * 1024)
            refused(self.act(server, "save", "b"), 507, "--slot-save-limit")
            self.assertEqual(self.act(server, "save", "a").status, 200)
            self.assertEqual(os.listdir(folder), ["a"])
            # A damaged file is refused; the server goes on.
            path = os.path.join(folder, "a")
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 1]))
            refused(self.act(server, "restore", "a"), 400, "damaged")
            with open(path, "wb") as file:
                file.write(b"nonsense")
            refused(self.act(server, "restore", "a"), 400, "a")
            self.assertEqual(server.complete("the cat").json()["choices"][0]["text"], run_text("the cat"))

    def test_a_full_disk_leaves_the_old_file_and_the_server(self):
        with tempfile.TemporaryDirectory() as folder, Server("--slot-save-path", folder) as server:
            server.complete(list(range(5, 135)), max_tokens=1)
            size = self.act(server, "save", "a").json()["n_written"]
            # A limit of the size of files stands for a disk that fills up.
            for limit in (0, 1000, size // 2, size - 1):
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (limit, size))
                answer = self.act(server, "save", "a")
                self.assertEqual(answer.status, 500, answer.text)
                self.assertIn("cannot write", answer.json()["error"]["message"])
                self.assertEqual(os.listdir(folder), ["a"])
            self.assertEqual(self.act(server, "restore", "a").json()["n_restored"], 130)
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, size))
            self.assertEqual(self.act(server, "save", "a").status, 200)

    def test_without_a_folder_slots_are_not_saved(self):
        with Server() as server:
            self.assertEqual(self.act(server, "save", "a").status, 501)
            self.assertEqual(server.request("POST", "/slots/0?action=erase").status, 200)
        done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--slot-save-path", "/no/folder"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/no/folder", done.stderr)

    def test_a_slot_in_use_is_saved_when_it_is_idle(self):
        with tempfile.TemporaryDirectory() as folder, \
                Server("--slot-save-path", folder, "--parallel", "2", "-c", "4096") as server:
            answers = []
            body = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "id_slot": 0, "stream": True}
            busy = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
            busy.start()
            until(lambda: server.get("/slots").json()[0]["is_processing"])
            saving = threading.Thread(target=lambda: answers.append(self.act(server, "save", "a")))
            saving.start()
            # The other slot serves meanwhile, and later requests for this one come after the save.
            later = server.complete("the dog", max_tokens=3).json()["choices"][0]["text"]
            self.assertEqual(run_text("the dog")[:len(later)], later)
            busy.join()
            saving.join()
            saved = next(answer for answer in answers if b"n_saved" in answer.body).json()
            self.assertGreater(saved["n_saved"], 400)

    def test_the_queue_has_a_bound(self):
        with Server("--parallel", "1", "--queue", "1", "-c", "8192") as server:
            body = {"prompt": "the cat", "max_tokens": 300 if SANITIZED else 3000, "ignore_eos": True}
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
                       for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual({a.status for a in answers}, {200, 429})
            refused = next(a for a in answers if a.status == 429)
            self.assertEqual(refused.headers["Retry-After"], "1")

    def test_cancelling_a_queued_request_leaves_the_running_one(self):
        with Server("--parallel", "1", "-c", "8192") as server:
            result = []
            body = {"prompt": "the cat", "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
            running = threading.Thread(target=lambda: result.append(server.post("/v1/completions", body)))
            running.start()
            self.assertTrue(until(lambda: server.metric("llamacpp:requests_processing") == 1))
            data = json.dumps(body).encode()
            waiting = socket.create_connection(("127.0.0.1", server.port))
            waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
            until(lambda: server.metric("llamacpp:requests_deferred") == 1, 5)
            waiting.close()
            running.join()
            self.assertEqual(result[0].status, 200)
            self.assertEqual(result[0].json()["usage"]["completion_tokens"], 1500)

    def test_api_key(self):
        with Server("--api-key", "secret") as server:
            self.assertEqual(server.complete().status, 401)
            self.assertEqual(server.post("/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer wrong"}).status, 401)
            for headers in ({"Authorization": "Bearer secret"}, {"x-api-key": "secret"}):
                answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers)
                self.assertEqual(answer.status, 200)
            self.assertEqual(server.get("/health").status, 200)
            self.assertEqual(server.get("/metrics").status, 401)

    def test_sigterm_ends_streams_with_a_reason(self):
        server = Server("--grace", "0", "-c", "8192")
        body = {"prompt": "the cat", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
        client.start()
        self.assertTrue(until(lambda: server.metric("llamacpp:requests_processing") == 1))
        self.assertEqual(server.stop(), 0, "".join(server.lines))
        client.join()
        last = answers[0].events()[-1]
        self.assertTrue(last == "[DONE]" or "stopping" in last["error"]["message"], last)

    def test_sigterm_lets_short_answers_finish(self):
        server = Server("--grace", "60", "-c", "8192")
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.complete(max_tokens=300, ignore_eos=True)))
        client.start()
        until(lambda: server.metric("llamacpp:requests_processing") == 1, 5)
        self.assertEqual(server.stop(), 0, "".join(server.lines))
        client.join()
        self.assertEqual(answers[0].json()["usage"]["completion_tokens"], 300)

    def test_a_taken_port_is_one_line(self):
        with Server() as server:
            done = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", str(server.port)], capture_output=True, text=True,
                                  check=False, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn("--port", done.stderr)

    @unittest.skipIf(SANITIZED, "a preloaded library must not come before the sanitizers' own")
    def test_a_disk_error_ends_one_answer_and_the_server_lives(self):
        with tempfile.TemporaryDirectory() as folder:
            switch = os.path.join(folder, "broken")
            with Server("--mem", "min", "--no-io-uring", "-c", "8192", env={"LD_PRELOAD": PRELOAD, "GANGLION_FAULT": f"eio-if:{switch}"}) as server:
                expected = server.complete().json()["choices"][0]["text"]
                answers = []
                body = {"prompt": "the cat", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}
                client = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)))
                client.start()
                self.assertTrue(until(lambda: server.metric("llamacpp:requests_processing") == 1))
                with open(switch, "w", encoding="ascii"):
                    pass
                client.join()
                error = answers[0].events()[-1]["error"]
                self.assertEqual(error["type"], "server_error")
                self.assertIn("llama-q4_0.gguf", error["message"])
                self.assertEqual(server.complete().status, 500)
                os.remove(switch)
                self.assertEqual(server.complete().json()["choices"][0]["text"], expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
