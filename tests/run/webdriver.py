# SPDX-License-Identifier: Apache-2.0
"""A browser through plain HTTP WebDriver calls (https://www.w3.org/TR/webdriver2), standard library alone."""
import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1440,1100",
         "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]


def installed():
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    """One window. Use as a context manager; the driver and its browser end with it."""

    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.session = ""
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = "http://127.0.0.1:" + line.rstrip().rstrip(".").split()[-1]
                break
        else:
            raise RuntimeError("chromedriver did not start")
        options = {"binary": shutil.which("chromium"), "args": FLAGS}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}}
        self.session = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + self.session + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {json.load(error)['value']['message']}") from None

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def emulate(self, width, height, scheme):
        """A window of this size and a scheme, "light" or "dark", from now on."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for command, params in (("Emulation.setDeviceMetricsOverride", metrics), ("Emulation.setEmulatedMedia", media)):
            self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def click(self, selector):
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        self.call("POST", f"/element/{next(iter(found.values()))}/click", {})

    def type(self, selector, text):
        """In place of what is there."""
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        place = f"/element/{next(iter(found.values()))}"
        self.call("POST", place + "/clear", {})
        self.call("POST", place + "/value", {"text": text})

    def choose(self, selector, value):
        self.run(f"""const it = document.querySelector('{selector}'); it.value = '{value}';
            it.dispatchEvent(new Event('change', {{bubbles: true}}));""")

    def wait(self, script, what, seconds=30):
        """The value of `script` once it is true."""
        end = time.time() + seconds
        while time.time() < end:
            value = self.run("return " + script)
            if value:
                return value
            time.sleep(0.15)
        raise AssertionError(f"not within {seconds} s: {what} ({script})")

    def console_errors(self):
        return [it["message"] for it in self.call("POST", "/se/log", {"type": "browser"}) if it["level"] == "SEVERE"]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))
