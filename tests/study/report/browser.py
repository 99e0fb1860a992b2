"""A headless browser through its DevTools protocol, over a pipe: no driver and no network."""

import fcntl
import json
import os
import shutil
import subprocess

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def installed():
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page at a time; `events` are those since it was opened."""

    def __init__(self, path, profile):
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        flags += ["--remote-debugging-pipe", "--no-first-run", "--disable-dev-shm-usage"]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (read, write)]
        self._process = subprocess.Popen(
            [path, *flags],
            close_fds=False,  # all are closed on exec but those that the next line makes
            preexec_fn=lambda: [os.dup2(fd, place) for fd, place in zip(high, (3, 4), strict=True)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (read, write, *high):
            os.close(fd)
        self._buffer, self._id, self._session, self.events = b"", 0, None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def ask(self, method, **parameters):
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path, width=1280, height=900, dark=False):
        """Load a file and wait until it is there; `value` of expressions then reads it."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def problems(self):
        """Errors of scripts and what the page's policy refused."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self):
        """Addresses that the page asked for."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, path, whole=True):
        import base64

        size = {}
        if whole:
            box = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": box["width"], "height": box["height"], "scale": 1}
            size = {"clip": clip, "captureBeyondViewport": True}
        data = self.ask("Page.captureScreenshot", **size)["data"]
        path.write_bytes(base64.b64decode(data))
