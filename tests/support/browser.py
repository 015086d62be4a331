"""A headless Chromium, driven over a pipe in the DevTools protocol, without any network."""

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND"
#: Waits until a page is loaded.
LOADED = """new Promise(done =>
  document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"""


def find() -> str | None:
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. Browsers take time to start: share it between tests."""

    def __init__(self, profile: Path) -> None:
        program = find()
        assert program is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads its commands from descriptor 3 and writes to 4.
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
        command = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", program]
        command += [*flags.split(), OFFLINE, f"--user-data-dir={profile}", "about:blank"]
        pipes = (to_browser, from_browser)
        self._process = subprocess.Popen(
            command, pass_fds=pipes, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        for descriptor in pipes:
            os.close(descriptor)
        self._count = 0
        self._buffer = b""
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; events are dropped."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                received = os.read(self._read, 1 << 20)
                assert received, "the browser has ended"
                self._buffer += received
            text, _, self._buffer = self._buffer.partition(b"\0")
            reply = json.loads(text)
            if reply.get("id") == self._count:
                assert "result" in reply, reply
                return reply["result"]

    def open(self, file: Path) -> None:
        self.call("Page.enable")
        self.call("Page.navigate", url=file.as_uri())
        self.run(LOADED)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript, awaited."""
        reply = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(20)


def photograph(page: Path, picture: Path) -> None:
    """Write a PNG of the top of *page*, which records the title of the page."""
    with TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        size = {"width": 1280, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.open(page.resolve())
        png = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
        title = b"iTXtTitle\0\0\0\0\0" + browser.run("document.title").encode()
        browser.close()
    chunk = struct.pack(">I", len(title) - 4) + title + struct.pack(">I", zlib.crc32(title))
    picture.write_bytes(png[:33] + chunk + png[33:])  # after the header


def title_of(picture: Path) -> str:
    """The title that :func:`photograph` recorded."""
    png = picture.read_bytes()
    assert png[37:48] == b"iTXtTitle\0\0", (
        "python -m tests.support.browser artifacts/report.html docs/images/report.png"
    )
    return png[51 : 41 + int.from_bytes(png[33:37], "big")].decode()


if __name__ == "__main__":
    photograph(Path(sys.argv[1]), Path(sys.argv[2]))
