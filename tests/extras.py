"""Install each extra alone, without the packages of the others, and run its smallest use: ``make test-extras``.

The environments share the packages that the project needs without extras, by links, so that torch is not installed
again for each; what an extra needs comes from the index. Extras for a GPU are left out.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
#: The surroundings without packages of other environments, and without the network.
ALONE = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
ALONE |= {"NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none"}
ALONE |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
ROWS = [{"id": f"r{n}", "nums": [2, 3, n], "target": 5 + n} for n in range(4, 8)]


def shared(extras: Sequence[str]) -> set[str]:
    """Return the names of the distributions that the project needs with *extras*."""
    needed: set[tuple[str, str]] = set()
    waiting = [("countdown-rl", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in needed:
            needed.add((name, extra))
            for requirement in map(Requirement, distribution(name).requires or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    waiting += [(requirement.name, inner) for inner in ("", *requirement.extras)]
    return {name for name, _ in needed} - {"countdown-rl"}


def environment(directory: Path, wheel: Path, extra: str) -> Path:
    """Make an environment of the shared packages, the project and *extra*, and return its ``bin``.

    All extras but "base" come with ``train``.
    """
    extras = [] if extra == "base" else ["train"]
    venv.create(directory, symlinks=True)
    target = next(directory.glob("lib/python*/site-packages"))
    for name in shared(extras):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(package.locate_file(top))
    own = [extra] if extra not in ("base", "train", "verl") else []
    names = ",".join([*extras, *own])
    requirement = f"countdown-rl[{names}] @ {wheel.as_uri()}" if names else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", directory / "bin/python", "install", "--quiet"]
    subprocess.run([*pip, requirement], check=True, env=ALONE)
    return directory / "bin"


class Answer(BaseHTTPRequestHandler):
    """An OpenAI-compatible server of one model that always gives the same answer."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        message = {"role": "assistant", "content": " so</think>\n<answer>2 + 3</answer>"}
        reply = {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}
        reply |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        data = json.dumps(
            reply | {"usage": {"prompt_tokens": 30, "completion_tokens": 12}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


def openai(run: partial[None]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    run(f"countdown-rl eval --engine openai --base-url {url} --model m --data rows.jsonl")
    server.shutdown()


def llama_cpp(run: partial[None]) -> None:
    run("countdown-rl quantize --model countdown-tiny --format gguf --out gguf")
    run("countdown-rl eval --model gguf --data rows.jsonl --limit 1")


def tracker(name: str) -> Callable[[partial[None]], None]:
    train = "countdown-rl train --data rows.jsonl --max-steps 1 --prompts 2"
    train += " --num-generations 2 --max-completion-length 16"
    return lambda run: run(f"{train} --trl report_to={name}")


def inspect(run: partial[None]) -> None:
    task = "countdown_rl/exact -T data=rows.jsonl --model mockllm/model"
    run(f"inspect eval {task} --limit 1 --display plain")


#: A script on the public API.
SCRIPT = """
from countdown_rl import generate, grade, read_rows, solve
from countdown_rl.rewards import compute_score, correct
import importlib.util
assert not importlib.util.find_spec("torch")
assert grade("<answer>50 - 7 + 3</answer>", nums=[3, 7, 50], target=46).correct
assert all(solve(row["nums"], row["target"]).solutions for row in generate(10, sizes=(3, 4), seed=42))
assert correct(["<answer>2+3+4</answer>"], nums=[[2, 3, 4]], target=[9]) == [1.0]
assert len(read_rows("rows.jsonl")) == 4
"""


def base(run: partial[None]) -> None:
    """What judges completions, in an environment without torch."""
    run(f"python -c {shlex.quote(SCRIPT)}")
    run("countdown-rl solve 3 7 50 --target 46")
    run("countdown-rl grade done.jsonl")
    run("countdown-rl gen-data --n 300 --out data")
    run("countdown-rl eval --model random --data rows.jsonl --out random")
    tiny = "countdown-rl eval --model countdown-tiny --data rows.jsonl --out tiny"
    run(tiny, failing=".[train]")
    with_torch = Path(sys.executable).parent
    use("train", with_torch, tiny, cwd=run.keywords["cwd"])
    run("countdown-rl compare tiny random --out comparison")
    run("countdown-rl samples tiny")


#: verl wants a transformers of its own, and of what it needs its data, rewards and configuration need this.
VERL = "verl==0.9.1 tensordict==0.10.0 torchdata==0.11.0"
VERL_NEEDS = (
    "pyvers<0.2 orjson cloudpickle importlib-metadata hydra-core==1.3.8 codetiming==1.4.0 "
    "pylatexenc==2.11 ray==2.60.0 pillow aiohttp"
)


def verl(run: partial[None]) -> None:
    """The export for verl, read, graded and configured by verl itself."""
    python = run.keywords["cwd"] / "environment/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qqq"]
    subprocess.run([*pip, "--no-deps", *VERL.split()], check=True, env=ALONE)
    subprocess.run([*pip, *VERL_NEEDS.split()], check=True, env=ALONE)
    run("countdown-rl gen-data --n 300 --out data")
    run("countdown-rl export-task --to verl --data data --out verl")
    run(f"python {ROOT}/tests/integrations/verl_check.py verl")
    run(f"python {ROOT}/examples/grade_ray.py done.jsonl 2")  # verl brings Ray


#: The smallest use of each extra; "base" is the project without one, "verl" another program.
USES: dict[str, Callable[[partial[None]], None]] = {
    "base": base,
    "train": lambda run: run("countdown-rl ask 3 7 50 --target 46"),
    "dvc": lambda run: run(f"dvc --cd {ROOT} stage list"),
    "inspect": inspect,
    "llama-cpp": llama_cpp,
    "openai": openai,
    "verl": verl,
    **{name: tracker(name) for name in ("tensorboard", "trackio", "wandb")},
}


def use(extra: str, programs: Path, line: str, *, cwd: Path, failing: str = "") -> None:
    """Run a command of the environment in *programs*; it succeeds, or fails and says *failing*."""
    program, *words = shlex.split(line)
    command = [programs / program, *words]
    done = subprocess.run(command, cwd=cwd, env=ALONE, capture_output=True, text=True)
    if (done.returncode != 0) != bool(failing) or failing not in done.stderr:
        sys.exit(f"extra {extra}: {line}\n{done.stdout}{done.stderr}")


def check(extra: str, place: Path, wheel: Path) -> None:
    """Install *wheel* with *extra* in a new environment below *place*, and use it there."""
    programs = environment(place / "environment", wheel, extra)
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (place / "done.jsonl").write_text(
        json.dumps(ROWS[0] | {"completion": "<answer>2+3+4</answer>"}) + "\n"
    )

    USES[extra](partial(use, extra, programs, cwd=place))


def main(extras: list[str]) -> None:
    """Check *extras*, by default all; the first failure ends the check."""
    with tempfile.TemporaryDirectory() as directory:
        wheels = Path(directory, "wheels")
        words = shlex.split("-m pip wheel --quiet --no-deps --wheel-dir")
        subprocess.run([sys.executable, *words, wheels, ROOT], check=True, env=ALONE)
        (wheel,) = wheels.iterdir()
        for extra in extras or USES:
            start = time.monotonic()
            check(extra, Path(directory, extra), wheel)
            print(f"{extra}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
