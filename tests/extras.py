"""Install each extra alone, without the packages of the others, and run its smallest use: ``make test-extras``.

The environments share the packages that the project needs without extras, by links, so that torch is not installed
again for each; what an extra needs comes from the index. Extras for a GPU are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
#: The surroundings without packages of other environments, and without the network.
ALONE = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
ALONE |= {"NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1"}
ROWS = [{"id": f"r{n}", "nums": [2, 3, n], "target": 5 + n} for n in range(4, 8)]


def shared() -> set[str]:
    """Return the names of the distributions that the project needs without extras."""
    needed: set[tuple[str, str]] = set()
    waiting = [("countdown-rl", "")]  # distributions, each with one of its extras
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in needed:
            needed.add((name, extra))
            for requirement in map(Requirement, distribution(name).requires or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    waiting += [(requirement.name, inner) for inner in ("", *requirement.extras)]
    return {name for name, _ in needed} - {"countdown-rl"}


def environment(directory: Path, wheel: Path, extra: str) -> Path:
    """Make an environment of the shared packages, the project and *extra*, and return its ``bin``."""
    venv.create(directory, symlinks=True)
    target = next(directory.glob("lib/python*/site-packages"))
    for name in shared():
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(package.locate_file(top))
    requirement = f"countdown-rl[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", directory / "bin/python", "install", "--quiet"]
    subprocess.run([*pip, requirement], check=True, env=ALONE)
    return directory / "bin"


class Answer(BaseHTTPRequestHandler):
    """An OpenAI-compatible server of one model that always gives the same answer."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": " so</think>\n<answer>2 + 3</answer>"}
        usage = {"prompt_tokens": 30, "completion_tokens": 12}
        self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def _send(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def openai(run: Callable[..., None]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    run("countdown-rl", "eval", "--engine", "openai", "--base-url", url, "--model", "m", "--data", "rows.jsonl")
    server.shutdown()


def llama_cpp(run: Callable[..., None]) -> None:
    quantize = ("countdown-rl", "quantize", "--model", "countdown-tiny", "--format", "gguf")
    run(*quantize, "--gguf-type", "q4_k_m", "--out", "gguf")
    run("countdown-rl", "eval", "--model", "gguf", "--data", "rows.jsonl", "--limit", "1")


def w4a16(run: Callable[..., None]) -> None:
    run("countdown-rl", "quantize", "--model", "countdown-tiny", "--format", "w4a16", "--out", "w4a16")


def tracker(name: str) -> Callable[[Callable[..., None]], None]:
    train = ("countdown-rl", "train", "--data", "rows.jsonl", "--max-steps", "1", "--prompts", "2")
    train += ("--num-generations", "2", "--max-completion-length", "16")
    return lambda run: run(*train, "--report-to", name)


def inspect(run: Callable[..., None]) -> None:
    task = ("countdown_rl/exact", "-T", "data=rows.jsonl", "--model", "mockllm/model")
    run("inspect", "eval", *task, "--limit", "1", "--display", "plain")


#: The smallest use of each extra; "" is the project without one.
USES: dict[str, Callable[[Callable[..., None]], None]] = {
    "": lambda run: run("countdown-rl", "ask", "3", "7", "50", "--target", "46"),
    "dvc": lambda run: run("dvc", "--cd", str(ROOT), "stage", "list"),
    "inspect": inspect,
    "llama-cpp": llama_cpp,
    "openai": openai,
    "tensorboard": tracker("tensorboard"),
    "trackio": tracker("trackio"),
    "w4a16": w4a16,
    "wandb": tracker("wandb"),
}


def check(extra: str, place: Path, wheel: Path) -> None:
    """Install *wheel* with *extra* in a new environment below *place*, and use it there."""
    programs = environment(place / "environment", wheel, extra)
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def run(program: str, *words: str) -> None:
        done = subprocess.run([programs / program, *words], cwd=place, env=ALONE, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"extra {extra}: {' '.join((program, *words))}\n{done.stdout}{done.stderr}")

    USES[extra](run)


def main(extras: list[str]) -> None:
    """Check *extras*, by default all; the first failure ends the check."""
    with tempfile.TemporaryDirectory() as directory:
        wheels = Path(directory, "wheels")
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ROOT]
        subprocess.run(build, check=True, env=ALONE)
        (wheel,) = wheels.iterdir()
        for extra in extras or USES:
            start = time.monotonic()
            check(extra, Path(directory, extra or "none"), wheel)
            print(f"{extra or 'no extra'}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
