"""The page at / in headless Chromium (Debian: chromium or chromium-headless-shell), driven by its debugging pipe: asks, streams,
stops, edits, regenerates, keeps its history. Skipped with a word where there is no Chromium.

    GANGLION_SCREENSHOT=docs/web_ui.png keeps a picture."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile

import unittest

from serving import Server, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")


class Browser:
    def __init__(self, folder, width=1200, height=800):
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()

        def pipes():
            os.dup2(to_read, 3)
            os.dup2(from_write, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}",
             "--no-first-run", "--disable-background-networking", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=pipes, pass_fds=(3, 4))
        os.close(to_read)
        os.close(from_write)
        self.out = os.fdopen(to_write, "wb", buffering=0)
        self.back = os.fdopen(from_read, "rb")
        self.number = 0
        self.session = None
        self.errors = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(domain + ".enable")
        self.size(width, height)

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            data = b""
            while not data.endswith(b"\0"):
                byte = self.back.read(1)
                if not byte:
                    raise RuntimeError("Chromium has ended")
                data += byte
            answer = json.loads(data[:-1])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                return answer["result"]

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 720)

    def run(self, script):
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def open(self, url):
        self.send("Page.navigate", url=url)
        if not until(lambda: self.run("document.readyState") == "complete"):
            raise RuntimeError("the page did not load")

    def picture(self):
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.out.close()
        self.back.close()


ASK = "document.querySelector('#text').value = {}; document.querySelector('#ask').requestSubmit()"


@unittest.skipIf(CHROMIUM is None, "SKIPPED: no Chromium here (Debian: chromium-headless-shell)")
class WebUi(unittest.TestCase):
    def setUp(self):
        self.server = Server("--parallel", "2", "--alias", "tiny", "-c", "8192")
        self.folder = tempfile.mkdtemp(prefix="ganglion-chromium-")
        self.browser = Browser(self.folder)
        self.browser.open(f"http://127.0.0.1:{self.server.port}/")

    def tearDown(self):
        self.browser.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.assertEqual(self.server.stop(), 0)
        self.assertEqual(self.browser.errors, [])

    def ask(self, text):
        self.browser.run(ASK.format(json.dumps(text)))

    def answers(self):
        return self.browser.run("[...document.querySelectorAll('.turn.assistant .body')].map(e => e.innerText)")

    def idle(self):
        return until(lambda: self.browser.run("document.querySelector('#send').innerText") == "Send", 60)

    def setting(self, **values):
        for name, value in values.items():
            self.browser.run(f"document.querySelector('#settings').click(); document.querySelector('#s-{name}').value = '{value}'; "
                             "document.querySelector('#dialog').close()")
            # The dialog's end is told to the page a little later.
            self.assertTrue(until(lambda n=name, v=value: self.browser.run(f"settings['{n}']") == str(v)))

    def test_a_chat(self):
        self.assertTrue(until(lambda: "tiny" in self.browser.run("document.title")))
        self.setting(max_tokens=30, temperature=0)
        self.ask("the cat")
        self.assertTrue(until(lambda: len(self.answers()) == 1 and len(self.answers()[0]) > 0))
        self.assertTrue(self.idle())
        first = self.answers()[0]
        facts = self.browser.run("document.querySelector('.turn.assistant .facts').innerText")
        self.assertIn("tokens", facts)
        self.assertIn("tokens/s", self.browser.run("document.querySelector('#p-rate').innerText"))
        self.assertTrue(until(lambda: " of " in self.browser.run("document.querySelector('#p-mem').innerText")))
        # The same again, by regenerating; then with another question, by editing.
        self.browser.run("[...document.querySelectorAll('.turn.assistant button')].find(b => b.innerText == 'regenerate').click()")
        self.assertTrue(self.idle())
        self.assertEqual(self.answers(), [first])
        self.browser.run("[...document.querySelectorAll('.turn.user button')].find(b => b.innerText == 'edit').click()")
        self.assertEqual(self.browser.run("document.querySelector('#text').value"), "the cat")
        self.ask("the dog")
        self.assertTrue(self.idle())
        self.assertEqual(len(self.answers()), 1)
        # History is there after loading the page again.
        before = self.answers()
        self.browser.open(f"http://127.0.0.1:{self.server.port}/")
        self.browser.run("[...document.querySelectorAll('#chats span')].find(e => e.innerText == 'the cat').click()")
        self.assertEqual(self.answers(), before)
        self.keep_picture()

    def keep_picture(self):
        path = os.environ.get("GANGLION_SCREENSHOT")
        if path:
            with open(path, "wb") as file:
                file.write(self.browser.picture())

    def test_stopping(self):
        self.setting(max_tokens=3000, temperature=1)
        stopped = False
        for _ in range(20):  # A random answer may end by itself before it can be stopped.
            self.ask("the cat")
            # Once text is there: an answer that is stopped before it begins leaves nothing to see.
            until(lambda: "".join(self.answers()[-1:]) != "" or self.browser.run("document.querySelector('#send').innerText") == "Send")
            self.browser.run("if (document.querySelector('#send').innerText != 'Send') document.querySelector('#ask').requestSubmit()")
            self.assertTrue(self.idle())
            self.assertTrue(until(lambda: self.server.metric("llamacpp:requests_processing") == 0))
            stopped = stopped or "stopped" in self.browser.run("document.querySelector('#log').innerText")
            if stopped:
                break
        self.assertTrue(stopped)

    def test_markdown_is_shown_and_markup_is_not_run(self):
        shown = self.browser.run("""(() => { const e = document.createElement('div');
            e.innerHTML = markdown('# T\\n\\n**b** `c<d` <img src=x onerror=alert(1)>\\n\\n```py\\nx < 1\\n```\\n- one\\n- two\\n[l](javascript:1)');
            return [e.querySelectorAll('img').length, e.querySelector('pre code').innerText, e.querySelectorAll('li').length,
                    e.querySelector('b').innerText, e.querySelectorAll('a').length, e.querySelector('h2').innerText]; })()""")
        self.assertEqual(shown, [0, "x < 1", 2, "b", 0, "T"])

    def test_phone_width_and_dark_mode(self):
        self.browser.size(390, 800)
        self.assertEqual(self.browser.run("getComputedStyle(document.querySelector('#side')).display"), "none")
        self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), 390)
        self.browser.run("document.querySelector('#burger').click()")
        self.assertEqual(self.browser.run("getComputedStyle(document.querySelector('#side')).display"), "flex")
        light = self.browser.run("getComputedStyle(document.body).backgroundColor")
        self.browser.run("document.querySelector('#theme').click()")
        self.assertNotEqual(self.browser.run("getComputedStyle(document.body).backgroundColor"), light)

    def test_errors_are_shown(self):
        self.setting(max_tokens=10)
        self.ask("word " * 20000)
        self.assertTrue(until(lambda: "context_length_exceeded" in (self.browser.run("document.querySelector('#log').innerText") or "")))


if __name__ == "__main__":

    unittest.main(argv=[sys.argv[0], "-v"] + sys.argv[1:])
