"""The client of OpenAI-compatible servers: against llama.cpp's own server, and against one with every fault."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export import llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference import engines, openai
from countdown_rl.inference.sampling import Decoding
from countdown_rl.inference.vllm_server import VllmServer
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl, probe
from countdown_rl.tasks.registry import task
from tests.support.command import status
from tests.support.runs import files

KEY = "sk-secret-0123456789"
RIGHT = " 2 and 3</think>\n<answer>2 + 3</answer>"
ROWS = [{"id": f"r{n}", "nums": [2, 3], "target": 5 + n % 2} for n in range(8)]
USAGE = {"prompt_tokens": 30, "completion_tokens": 12}


def answer(content: str | None = RIGHT, finish: str = "stop", **message: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": content} | message
    return {"choices": [{"index": 0, "message": turn, "finish_reason": finish}], "usage": USAGE}


@dataclass
class Stub:
    """A server in this process.

    *reply* gets the number of a request and its body, and returns a JSON object, or a function that
    writes to the handler.
    """

    url: str = ""
    owner: str = "vllm"
    status: int = 200  # of the list of models
    reply: Callable[[int, dict[str, Any]], Any] = lambda number, body: answer()
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


@pytest.fixture
def stub(monkeypatch):
    server, lock = Stub(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # it delays each answer by 40 ms

        def do_GET(self):
            models = {"object": "list", "data": [{"id": "m", "owned_by": server.owner}]}
            send(self, models, server.status)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(body)
                server.keys.add(self.headers["Authorization"])
            value = server.reply(number, body)
            value(self) if callable(value) else send(self, value)

        def log_message(self, *arguments):
            pass

        def handle(self):
            with suppress(OSError):  # the client has hung up
                super().handle()

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    yield server
    http.shutdown()
    http.server_close()


def send(handler, value: Any, status: int = 200, missing: int = 0) -> None:
    """Send *value* as JSON, without its last bytes if they are *missing*."""
    data = json.dumps(value).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data) + missing))
    handler.send_header("Retry-After", "0.1")
    handler.end_headers()
    handler.wfile.write(data)


def test_a_vllm_server_that_fails_in_a_round_is_reported_in_a_sentence(stub):
    server = VllmServer(stub.url.removesuffix("/v1"), SimpleNamespace(text="yes", ids={1}))
    stub.reply = lambda number, body: (
        lambda handler: send(handler, {"error": {"message": "gone"}}, 400)
    )
    with pytest.raises(ModelError, match=r"server failed \(.*gone"):
        server.sample([[1, 2]], Decoding(4))


def run(stub, tmp_path, name="eval", rows=ROWS, **changes):
    data = tmp_path / "rows.jsonl"
    jsonl.write_rows(data, rows)
    options = EvalOptions(engine="openai", base_url=stub.url, max_new_tokens=64)
    options = replace(options, **changes)
    return evaluate.evaluate(options, model="m", data=data, out=tmp_path / name)


def evaluated(stub, tmp_path, monkeypatch, n, *words) -> int:
    """The status of ``eval`` of the first of ROWS, *n* times, with *words*."""
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS[:1] * n)
    server = ("--engine", "openai", "--base-url", stub.url, "--batch-size", "1", "--model", "m")
    data = ("--data", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "eval"))
    return status(monkeypatch, "eval", *server, *data, *words)


def test_a_server_that_continues_a_turn_gets_the_prompt_of_training(stub, tmp_path):
    result = run(stub, tmp_path, temperature=0.7, top_p=0.9, top_k=20)
    body = stub.requests[0]
    assert [turn["role"] for turn in body["messages"]] == ["system", "user", "assistant"]
    assert body["messages"][-1]["content"].endswith("<think>")
    assert body["continue_final_message"]
    assert body["chat_template_kwargs"]["bare"]
    sent = {"model": "m", "max_tokens": 64, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    assert body.items() >= sent.items()
    assert len({request["seed"] for request in stub.requests}) == len(ROWS)
    assert result.metrics.correct == 4
    assert result.metrics.endpoint == {
        "base_url": stub.url,
        "server": "vllm",
        "prefill": "continued",
        "prompt_tokens": 240,
        "completion_tokens": 96,
    }
    assert [sample.completion for sample in result.samples] == [RIGHT] * 8


def test_another_server_gets_the_strict_form_and_its_reasoning_is_the_thinking_block(
    stub, tmp_path
):
    stub.owner = "somebody"
    answers = [
        answer("<answer>2 + 3</answer>", reasoning_content="is it <answer>2 * 3</answer>?"),
        answer("\n\n<answer>2 + 3</answer> So it is.", reasoning="2 and 3"),
        answer("2 and 3</think>\n<answer>2 + 3</answer>"),  # the template has opened it
        answer(None, "length", reasoning_content="2 * 3"),
    ]
    stub.reply = lambda number, body: answers[number]
    samples = run(stub, tmp_path, rows=ROWS[:1] * 4, batch_size=1).samples
    assert [turn["role"] for turn in stub.requests[0]["messages"]] == ["system", "user"]
    assert set(stub.requests[0]) == {"model", "messages", "temperature", "top_p", "max_tokens"}
    assert samples[1].grade.strict_format
    assert [sample.grade.correct for sample in samples] == [True, True, True, False]
    assert [sample.truncated for sample in samples] == [False, False, False, True]
    assert samples[0].row["style"] == "model_opens"
    for sample in samples[1:3]:
        assert sample.completion == "<think>2 and 3</think>\n<answer>2 + 3</answer>"
    assert samples[3].completion == "<think>2 * 3"
    with pytest.raises(UsageError, match="top_k"):
        run(stub, tmp_path, temperature=1.0, top_k=9)


def test_refused_and_truncated_answers_are_counted_as_such(stub, tmp_path, monkeypatch, capsys):
    error = {"error": {"message": "no", "code": "content_filter"}}
    answers = [
        lambda handler: send(handler, error, 400),
        answer("Let", "content_filter"),
        answer("", refusal="I cannot."),
        answer(" 2 and", "length"),
        answer(RIGHT + " more", "length"),
    ]
    stub.reply = lambda number, body: answers[number]
    assert evaluated(stub, tmp_path, monkeypatch, 5) == 0
    assert "3  the server refused to answer" in capsys.readouterr().out
    samples = results.read(tmp_path / "eval").samples
    assert [sample.grade.reason for sample in samples] == [*["refused"] * 3, "no-answer", ""]
    assert [sample.truncated for sample in samples] == [False, False, False, True, False]
    assert samples[2].completion == "I cannot."


def test_a_server_answers_inside_of_a_running_event_loop(stub, tmp_path):
    async def notebook():
        return run(stub, tmp_path)

    assert asyncio.run(notebook()).metrics.n == len(ROWS)


def busy(handler) -> None:
    send(handler, {"error": {"message": "sorry"}}, 429)


def cut(handler) -> None:
    """Send the beginning of an answer."""
    send(handler, "choices", missing=9)
    handler.close_connection = True


@pytest.mark.parametrize("fault", [busy, cut])
def test_a_passing_fault_is_retried_and_leaves_no_trace(stub, tmp_path, fault):
    expected = run(stub, tmp_path, "expected", rows=ROWS[:1])
    stub.requests.clear()
    stub.reply = lambda number, body: answer() if number else fault
    assert run(stub, tmp_path, rows=ROWS[:1]).metrics == expected.metrics
    assert len(stub.requests) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (busy, r"429 .*sorry"),
        (cut, "closed|incomplete"),
        ("<html>", "malformed response"),
        ({"error": {"message": "overloaded"}}, "overloaded"),
        (answer("", "error"), "finish_reason"),
    ],
)
def test_a_lasting_fault_ends_the_run_and_finished_answers_are_not_asked_again(
    stub, tmp_path, monkeypatch, fault, message
):
    settings = {"batch_size": 4, "temperature": 1.0}
    run(stub, tmp_path, "expected", **settings)
    monkeypatch.setattr(openai, "RETRIES", 1)
    stub.requests.clear()

    def reply(number, body):
        return fault if "Target: 6" in body["messages"][1]["content"] else answer()

    stub.reply = reply
    with pytest.raises(ModelError, match=message):
        run(stub, tmp_path, **settings)
    assert not (tmp_path / "eval").exists()
    progress = tmp_path / ".eval.progress.jsonl"
    saved = len(progress.read_text().splitlines()) - 1 if progress.exists() else 0
    stub.requests.clear()
    stub.reply = lambda number, body: answer()
    run(stub, tmp_path, **settings)
    # Requests that were given up before may come late.
    assert len({request["seed"] for request in stub.requests}) == 8 - saved
    assert files(tmp_path / "eval") == files(tmp_path / "expected")


def test_the_key_is_sent_and_never_written(stub, tmp_path, monkeypatch, capsys):
    error = {"error": {"message": f"the key {KEY} is out of credit"}}
    refuse = lambda handler: send(handler, error, 402)  # noqa: E731
    stub.reply = lambda number, body: refuse if number == 2 else answer()
    assert evaluated(stub, tmp_path, monkeypatch, 3) == 1
    assert evaluated(stub, tmp_path, monkeypatch, 3, "--json") == 0
    printed = capsys.readouterr()
    assert stub.keys == {f"Bearer {KEY}"}
    assert "the key *** is out of credit" in printed.err
    assert KEY not in printed.out + printed.err
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(KEY.encode() in data for data in written)
    monkeypatch.delenv("OPENAI_API_KEY")
    run(stub, tmp_path, batch_size=4)
    assert len(stub.keys) == 2


def test_a_wrong_url_a_missing_server_or_package_and_local_options_are_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    stub = Stub(url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelError, match="no server answers at http://127"):
        run(stub, tmp_path)
    for url in ("127.0.0.1:8000", "http://me:password@host/v1", "http://host/v1?api_key=x"):
        with pytest.raises(UsageError, match="base_url should be like") as error:
            run(Stub(url=url), tmp_path)
        assert "password@" not in str(error.value)
    with pytest.raises(UsageError, match="for models on this machine"):
        run(stub, tmp_path, precision="bf16")
    with pytest.raises(UsageError, match="add --engine openai"):
        EvalOptions(base_url=stub.url)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs openai: .*\[openai\]"):
        run(stub, tmp_path)


def test_a_server_without_a_list_of_models_gets_the_strict_form_and_one_that_is_loading_nothing(
    stub, tmp_path
):
    stub.status = 503
    with pytest.raises(ModelError, match=r"no server answers .*503"):
        run(stub, tmp_path)
    assert not stub.requests
    stub.status = 404
    endpoint = run(stub, tmp_path).metrics.endpoint
    assert (endpoint["server"], endpoint["prefill"]) == ("", "left out")


def test_llama_cpp_completes_a_gguf_file_as_this_process_does(tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    options = QuantizeOptions(format="gguf", gguf_type="f16")
    gguf = tmp_path / "tiny"
    quantize_model(find_model("countdown-tiny"), gguf, options)
    data = tmp_path / "puzzles.jsonl"
    rows = enumerate(probe.rows(task("countdown"), 40))
    jsonl.write_rows(data, [{"id": str(n), **row} for n, row in rows])
    small = EvalOptions(max_new_tokens=32)
    expected = evaluate.evaluate(small, model=str(gguf), data=data, out=tmp_path / "in-process")

    server = llama_cpp.server(next(gguf.glob("*.gguf")), 4 * 256, 4)
    url = f"{server.listening_address}/v1"
    options = replace(small, engine="openai", base_url=url, batch_size=4)
    result = evaluate.evaluate(options, model="any", data=data, out=tmp_path / "server")
    endpoint = result.metrics.endpoint
    assert (endpoint["server"], endpoint["prefill"]) == ("llamacpp", "continued")
    pairs = list(zip(result.samples, expected.samples, strict=True))
    equal = [pair for pair in pairs if pair[0].completion == pair[1].completion]
    assert len(equal) >= 36  # half precision may turn a token here and there
    assert all(ours.truncated == theirs.truncated for ours, theirs in equal)
    assert {ours.truncated for ours, _ in equal} == {True, False}
    assert endpoint["completion_tokens"] == sum(sample.tokens for sample in result.samples)
    # A prompt that fills the context is the server's to refuse, in its own words.
    jsonl.write_rows(data, [{"task": "gsm8k", "question": "How many? " * 500, "gold": "5"}])
    with pytest.raises(ModelError, match=r"400 .*context"):
        evaluate.evaluate(options, model="any", data=data, out=tmp_path / "long")
