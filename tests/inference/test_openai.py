"""The client of OpenAI-compatible servers: against llama.cpp's own server, and against one with every fault."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export import llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference import engines, openai
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl, probe
from countdown_rl.tasks.registry import task
from tests.support.command import status

KEY = "sk-secret-0123456789"
RIGHT = " 2 and 3</think>\n<answer>2 + 3</answer>"
ROWS = [{"id": f"r{n}", "nums": [2, 3], "target": 5 + n % 2} for n in range(8)]
USAGE = {"prompt_tokens": 30, "completion_tokens": 12}


def answer(content: str | None = RIGHT, finish: str = "stop", **message: Any) -> dict[str, Any]:
    turn = {"role": "assistant", "content": content} | message
    return {"choices": [{"index": 0, "message": turn, "finish_reason": finish}], "usage": USAGE}


@dataclass
class Stub:
    """A server in this process: *reply* gets the number of a request and its body, and returns a JSON object, or
    writes to the handler itself and returns None."""

    url: str = ""
    owner: str = "vllm"
    status: int = 200  # of the list of models
    reply: Callable[[int, dict[str, Any], "BaseHTTPRequestHandler"], Any] = (
        lambda number, body, handler: answer()
    )
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
            return send(self, models, server.status, Retry_After="0.01")

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(body)
                server.keys.add(self.headers["Authorization"])
            if (value := server.reply(number, body, self)) is not None:
                send(self, value)

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


def send(handler, value: Any, status: int = 200, **headers: str) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    fields = {"Content_Type": "application/json", "Content_Length": str(len(data))} | headers
    for name, text in fields.items():
        handler.send_header(name.replace("_", "-"), text)
    handler.end_headers()
    handler.wfile.write(data)


def run(stub, tmp_path, name="eval", rows=ROWS, on_batch=None, **changes):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = replace(EvalOptions(engine="openai", base_url=stub.url, max_new_tokens=64), **changes)
    return evaluate.evaluate(
        options, model="m", data=tmp_path / "rows.jsonl", out=tmp_path / name, on_batch=on_batch
    )


def evaluated(stub, tmp_path, monkeypatch, n, *words) -> int:
    """The status of ``eval`` of the first of ROWS, *n* times, with *words*."""
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROWS[0])}\n" * n)
    server = ("--engine", "openai", "--base-url", stub.url, "--batch-size", "1", "--model", "m")
    data = ("--data", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "eval"))
    return status(monkeypatch, "eval", *server, *data, *words)


def written(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


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
    endpoint = {"base_url": stub.url, "server": "vllm", "prefill": "continued"}
    assert result.metrics.endpoint == endpoint | {"prompt_tokens": 240, "completion_tokens": 96}
    assert result.metrics.model.kind == "endpoint"
    assert [sample.completion for sample in result.samples] == [RIGHT] * 8
    assert results.read(tmp_path / "eval").metrics == result.metrics


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
    stub.reply = lambda number, body, handler: answers[number]
    result = run(stub, tmp_path, rows=ROWS[:1] * 4, batch_size=1)
    samples = result.samples
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
    def reply(number, body, handler):
        if number == 0:
            return send(handler, {"error": {"message": "no", "code": "content_filter"}}, 400)
        answers = (
            answer("Let", "content_filter"),
            answer("", refusal="I cannot."),
            answer(" 2 and", "length"),
        )
        return (*answers, answer(RIGHT + " more", "length"))[number - 1]

    stub.reply = reply
    assert evaluated(stub, tmp_path, monkeypatch, 5) == 0
    assert "3  the server refused to answer" in capsys.readouterr().out
    result = results.read(tmp_path / "eval")
    assert [sample.grade.reason for sample in result.samples] == [
        "refused",
        "refused",
        "refused",
        "no-answer",
        "",
    ]
    assert [sample.truncated for sample in result.samples] == [False, False, False, True, False]
    assert result.samples[2].completion == "I cannot."
    assert result.metrics.reasons["refused"] == 3


def test_a_server_answers_inside_of_a_running_event_loop(stub, tmp_path):
    async def notebook():
        return run(stub, tmp_path)

    assert asyncio.run(notebook()).metrics.n == len(ROWS)


def fail(status: int) -> Callable[[Any], None]:
    return lambda handler: send(
        handler, {"error": {"message": f"sorry, {status}"}}, status, Retry_After="0.1"
    )


def cut(handler) -> None:
    """Send the beginning of an answer."""
    send(handler, b'{"choices": [{"mess', Content_Length="1000")
    handler.close_connection = True


@pytest.mark.parametrize("fault", [fail(429), fail(500), cut], ids=["429", "500", "cut"])
def test_a_passing_fault_is_retried_and_leaves_no_trace(stub, tmp_path, fault):
    expected = run(stub, tmp_path, "expected", rows=ROWS[:1])
    stub.requests.clear()
    stub.reply = lambda number, body, handler: answer() if number else fault(handler)
    assert run(stub, tmp_path, rows=ROWS[:1]).metrics == expected.metrics
    assert len(stub.requests) == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (fail(429), r"Error code: 429 .*sorry, 429"),
        (cut, r"closed|incomplete"),
        (lambda handler: send(handler, b"<html>", Content_Type="text/html"), "malformed response"),
        (lambda handler: send(handler, b'{"choices": [{'), "malformed response"),
        (lambda handler: send(handler, {"error": {"message": "overloaded"}}), "overloaded"),
        (lambda handler: send(handler, answer("", "error")), "finish_reason"),
    ],
    ids=["429", "cut", "html", "broken", "error-200", "error"],
)
def test_a_lasting_fault_ends_the_run_and_finished_answers_are_not_asked_again(
    stub, tmp_path, monkeypatch, fault, message
):
    run(stub, tmp_path, "expected")
    monkeypatch.setattr(openai, "RETRIES", 1)
    stub.requests.clear()

    def reply(number, body, handler):
        wanted = "Target: 6" in body["messages"][1]["content"]
        return fault(handler) if wanted else answer()

    stub.reply = reply
    with pytest.raises(ModelError, match=message):
        run(stub, tmp_path, batch_size=4)
    assert not (tmp_path / "eval").exists()
    progress = tmp_path / ".eval.progress.jsonl"
    saved = len(progress.read_text().splitlines()) - 1 if progress.exists() else 0
    stub.requests.clear()
    stub.reply = lambda number, body, handler: answer()
    run(stub, tmp_path)
    assert (
        8 - saved <= len(stub.requests) <= 8 - saved + 4
    )  # as many as were given up before may come late
    assert written(tmp_path / "eval") == written(tmp_path / "expected")


def test_the_key_is_sent_and_never_written(stub, tmp_path, monkeypatch, capsys):
    def reply(number, body, handler):
        if number == 2:
            return send(handler, {"error": {"message": f"the key {KEY} is out of credit"}}, 402)
        return answer()

    stub.reply = reply
    assert evaluated(stub, tmp_path, monkeypatch, 3) == 1
    assert evaluated(stub, tmp_path, monkeypatch, 3, "--json") == 0
    printed = capsys.readouterr()
    assert stub.keys == {f"Bearer {KEY}"}
    assert "the key *** is out of credit" in printed.err
    assert KEY not in printed.out + printed.err
    assert not any(KEY.encode() in data for data in written(tmp_path).values())
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


def test_evaluations_of_a_gguf_file_in_process_and_by_llama_cpp_equal_that_of_its_model(
    tmp_path, monkeypatch
):
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    gguf, model = tmp_path / "tiny", "countdown-tiny"
    quantize_model(find_model(model), gguf, QuantizeOptions(format="gguf", gguf_type="f16"))
    data, small = tmp_path / "puzzles.jsonl", EvalOptions(max_new_tokens=32)
    jsonl.write_rows(
        data, [{"id": str(n), **row} for n, row in enumerate(probe.rows(task("countdown"), 40))]
    )
    options = small
    plain = evaluate.evaluate(options, model=model, data=data, out=tmp_path / "plain").samples
    in_process = evaluate.evaluate(options, model=str(gguf), data=data, out=tmp_path / "in-process")
    assert (in_process.metrics.engine, in_process.metrics.precision) == ("transformers", "fp32")
    expected = in_process.samples
    assert (
        sum(a.completion == b.completion for a, b in zip(expected, plain, strict=True)) >= 36
    )  # rounding in fp16
    server = llama_cpp.server(next(gguf.glob("*.gguf")), 4 * 256, 4)
    options = replace(
        small, engine="openai", base_url=f"{server.listening_address}/v1", batch_size=4
    )
    result = evaluate.evaluate(options, model="any", data=data, out=tmp_path / "server")
    endpoint = result.metrics.endpoint
    assert (endpoint["server"], endpoint["prefill"]) == ("llamacpp", "continued")
    both = [
        (a, b)
        for a, b in zip(result.samples, expected, strict=True)
        if a.completion == b.completion
    ]
    assert len(both) >= 36  # half precision may turn a token here and there
    assert all(a.truncated == b.truncated for a, b in both)
    assert {a.truncated for a, _ in both} == {True, False}
    assert endpoint["completion_tokens"] == sum(sample.tokens for sample in result.samples)
    # A prompt that fills the context is the server's to refuse, in its own words.
    jsonl.write_rows(data, [{"task": "gsm8k", "question": "How many? " * 500, "gold": "5"}])
    with pytest.raises(ModelError, match=r"400 .*context"):
        evaluate.evaluate(options, model="any", data=data, out=tmp_path / "long")
