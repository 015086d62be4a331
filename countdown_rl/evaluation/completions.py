"""Completions made elsewhere, in the files of TRL, verl, verifiers, Inspect, lm-evaluation-harness, vLLM and OpenAI."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import InputError, first_line
from countdown_rl.core.formatting import flag
from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import conversations, files, records, registry
from countdown_rl.tasks.task import Row

#: Values of ``finish_reason`` for a completion that reached a token limit.
_LIMITS = ("length", "max_tokens", "model_length")


def read(path: Path, known: Sequence[Row] = ()) -> tuple[list[Row], list[Completion]]:
    """The rows of the completions in the file at *path*, and equally many completions of each, side by side.

    A record names its row by the row's fields, also in a mapping in it, by its id, or by its prompt.

    Args:
        known: the rows that the completions are of; empty if the file tells.

    Raises:
        InputError: a record has no completion or no row, its row is not *known*, or some rows have more completions
            than others. It names the record.
    """
    rows, completions = _Rows(known), dict[str, list[Completion]]()
    for place, fields in _inspect(path) if path.is_file() and _is_inspect(path) else files.records(path):
        with files.at(place):
            record = _flat(fields)
            row = rows.of(record)
            completions.setdefault(row.id, []).extend(_completions(record, row))
    most = max(map(len, completions.values()))
    for key, texts in completions.items():
        if len(texts) < most:
            raise InputError(f"{path}: {rows.by_id[key].headline} has {len(texts)} completions, others {most}.")
    ordered = [row for key, row in rows.by_id.items() if key in completions]
    return ordered, [completion for row in ordered for completion in completions[row.id]]


class _Rows:
    """The rows that records name, by id: *known* ones, or all."""

    def __init__(self, known: Sequence[Row]) -> None:
        self._known = known
        self.by_id = {row.id: row for row in known}
        self._by_name = {str(row["id"]): row for row in known if "id" in row}
        self._by_prompt = {row.prompt().user.strip(): row for row in known}

    def of(self, record: Mapping[str, Any]) -> Row:
        match = records.search(record)
        named = self._by_name.get(str(record.get("id", record.get("custom_id", ""))))
        row = match.row if match else named or self._of_prompt(record)
        if self._known and row.id not in self.by_id:
            raise InputError(f"{row.headline} is not in {flag('data')}")
        return self.by_id.setdefault(row.id, row)

    def _of_prompt(self, record: Mapping[str, Any]) -> Row:
        exchange = conversations.exchange(conversations.split(record)[0])
        if exchange is None or exchange.prompt is None:
            raise InputError(f"it has neither the fields of a row, nor the id of one in {flag('data')}, nor a prompt")
        prompt = exchange.prompt
        text = prompt if isinstance(prompt, str) else "\n".join(t["content"] for t in prompt if t["role"] == "user")
        asked = [row for user, row in self._by_prompt.items() if user in text]
        fields = [fields for task in registry.own_tasks() if (fields := task.row.fields_in(text))]
        if len(asked) != 1 and len(fields) != 1:
            raise InputError(
                f"its prompt does not say for certain which row it is of; give {flag('data')}, or the row's fields"
            )
        return asked[0] if len(asked) == 1 else registry.parse_row(fields[0])


def _completions(record: Mapping[str, Any], row: Row) -> Iterator[Completion]:
    """The completions of *row* in *record*, with their ends and lengths if it has them."""
    parts = conversations.split(record)
    for part in parts:
        turn = conversations.completion(part)
        if turn is None:
            raise InputError("there is no completion in it")
        choice = next((value for value in part.values() if isinstance(value, Mapping) and "finish_reason" in value), {})
        reason, usage = choice.get("finish_reason"), record.get("usage") or {}
        tokens = usage.get("completion_tokens") if len(parts) == 1 else None
        yield Completion(turn.text(row.style), tokens, None if reason is None else reason not in _LIMITS)


def _flat(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """*record* with the completions that lm-evaluation-harness, verifiers and OpenAI's batches nest."""
    if isinstance(record.get("doc"), Mapping) and "resps" in record:  # by request; generate_until has one
        return {**record["doc"], "completion": [text for request in record["resps"] for text in request]}
    if "traces" in record and "task" in record:
        return _episode(record)
    response = record.get("response")
    if "custom_id" in record and isinstance(response, Mapping | None):
        body = (response or {}).get("body") or {}
        if not body.get("choices"):
            raise InputError(f"the request failed: {record.get('error') or body.get('error') or 'no response'}")
        return {"custom_id": record["custom_id"], "choices": body["choices"], "usage": body.get("usage")}
    return record


def _episode(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task data and the last reply of an episode in ``traces.jsonl`` of verifiers 0.4."""
    for trace in record["traces"]:
        replies = [node["message"] for node in trace["nodes"] if node.get("sampled")]
        call = trace["calls"][-1] if trace.get("calls") else {}
        if replies and len(record["traces"]) == 1:
            choice = {"message": replies[-1], "finish_reason": call.get("finish_reason")}
            return {**trace["task"]["data"], "choices": [choice], "usage": call.get("usage")}
    raise InputError("it needs one trace with a reply")


def _is_inspect(path: Path) -> bool:
    """Return True if *path* is a log of Inspect, in its own format or as JSON."""
    with path.open("rb") as stream:
        head = stream.read(4096)
    return path.suffix == ".eval" or (head.lstrip()[:1] == b"{" and b'"eval":' in head and b'"task_id":' in head)


def _inspect(path: Path) -> Iterator[files.Record]:
    """The samples of a log of Inspect."""
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(str(path))
    except Exception as error:  # zip, JSON and pydantic raise their own
        raise InputError(f"{path} cannot be read as a log of Inspect: {first_line(error)}") from error
    if not log.samples:
        raise InputError(f"{path} has no samples.")
    for sample in log.samples:
        place = f"{path}, sample {sample.id}, epoch {sample.epoch}"
        if sample.error or not sample.output.choices:
            raise InputError(f"{place} failed: {first_line(sample.error.message) if sample.error else 'no output'}.")
        choice = sample.output.choices[0]
        parts = choice.message.content if isinstance(choice.message.content, list) else []
        message = {
            "role": "assistant",
            "content": choice.message.text,
            "reasoning": "\n".join(part.reasoning for part in parts if part.type == "reasoning"),
        }
        record = {
            "id": sample.id,
            "metadata": sample.metadata,
            "prompt": sample.input if isinstance(sample.input, str) else sample.input[-1].text,
            "choices": [{"message": message, "finish_reason": choice.stop_reason}],
            "usage": {"completion_tokens": sum(use.output_tokens for use in sample.model_usage.values()) or None},
        }
        yield files.Record(place, record)
