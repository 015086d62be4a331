"""Completions made elsewhere, in the files of TRL, verl, verifiers, Inspect, lm-evaluation-harness, vLLM and OpenAI."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from countdown_rl.core.errors import InputError, first_line
from countdown_rl.core.formatting import flag
from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import conversations, files, records, registry
from countdown_rl.tasks.task import Row

#: Values of ``finish_reason`` for a completion that reached a token limit.
_LIMITS = ("length", "max_tokens", "model_length")
#: Further names of completions; in demonstrations, such a field may hold a prompt and its completion.
_OTHER_NAME = re.compile(
    r"(?i)(?:(?:raw|model|llm|generated|sampled|full|output)_)*"
    r"(?:completion|response|output|generation|prediction|rollout|text|solution_str)(?:_(?:text|str))?s?"
).fullmatch
#: Fields of a mapping that :mod:`conversations` reads as a completion.
_READ = {"role", "from", "message", "choices", "body", "finish_reason"}
_ASSISTANTS = ("assistant", "gpt", "model")
#: Fields that hold a prompt.
_QUESTIONS = ("question", "problem")
_ASKING = (*conversations.PROMPTS, *conversations.CONVERSATIONS, "body", *_QUESTIONS)

#: The row of a record, its completions, its place in the file, and a note on where the row was, "" if in its fields.
Answered = tuple[Row, list[Completion], str, str]


class Reader:
    """Reader of completions: finds the row and the completions of each record.

    A record names its row by the row's fields, also in a mapping in it, by its id, or by its prompt. *known* are the
    rows that the completions are of, none if the file tells. *field* is the field of a record that holds its
    completions, by default one of the names that projects use. *settings* are fields of the rows: ``style`` in place
    of theirs, ``rule`` and ``operators`` where they state none.
    """

    def __init__(
        self, known: Sequence[Row] = (), field: str | None = None, **settings: str | None
    ) -> None:
        self._field, self._settings = (
            field,
            {name: value for name, value in settings.items() if value is not None},
        )
        self.rows = {row.id: row for row in map(self._with_settings, known)}
        self._by_name = {str(row["id"]): row for row in self.rows.values() if "id" in row}
        self._by_prompt = {row.prompt().user.strip(): row for row in self.rows.values()}
        self._by_question: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows.values():
            self._by_question.setdefault((row.identity, row.reference), []).append(row)
        self._task = ""
        self._checked: tuple[list[Any], str] = [], ""
        #: By document of lm-evaluation-harness, which writes the same responses on a line for each filter.
        self._responses: dict[str, Any] = {}

    def read(
        self, stream: BinaryIO, source: str, on_error: files.OnError = files.stop
    ) -> Iterator[Answered]:
        """The completions of the records of *stream*; *on_error* is called for others. InputError if it breaks off."""
        data: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
        head = data.peek(4096)
        is_json_log = head.lstrip()[:1] == b"{" and b'"eval":' in head and b'"task_id":' in head
        read = _inspect if is_json_log or source.endswith(".eval") else files.read
        for place, fields in read(data, source, on_error):
            try:
                with files.at(place):
                    answered = None if self._is_repeated(fields) else self._answered(fields)
            except InputError as error:
                on_error(error)
            else:
                if answered:
                    row, turns, note = answered
                    yield row, turns, place, note

    def _answered(self, fields: Mapping[str, Any]) -> tuple[Row, list[Completion], str]:
        names = ", ".join(fields)
        try:
            record = self._with_completion(_flat(fields))
            completions = list(_completions(record))
        except InputError as error:
            remedy = "choose one with --completion-field, or skip such records by `grade --on-error mark`"
            raise InputError(
                f"{str(error).rstrip('.')}; its fields are {names}; {remedy}"
            ) from error
        row, note = self._row(record, names)
        if self._task not in ("", row.task):
            raise InputError(
                f"it is of the task {row.task}, others are of {self._task}; give each task its own file"
            )
        self._task = row.task
        return (
            row,
            [
                Completion(turn.text(row.style), tokens, ended)
                for turn, tokens, ended in completions
            ],
            note,
        )

    def _with_settings(self, row: Row) -> Row:
        for name, value in self._settings.items():
            if name not in registry.task(row.task).fields:
                raise InputError(
                    f"rows of the task {row.task} have no `{name}`; leave {flag(name)} out"
                )
            other = type(row)({**row, name: value})
            if name != "style" and name in row and other.id != row.id:
                raise InputError(
                    f"its `{name}` is {row[name]}, and {flag(name)} is {value}; leave one out"
                )
            row = other
        return row

    def _is_repeated(self, fields: Mapping[str, Any]) -> bool:
        """Return True if an earlier line, of another filter, has the same responses."""
        if "doc_id" not in fields or "resps" not in fields:
            return False
        document, responses = str((fields["doc_id"], fields.get("doc"))), fields["resps"]
        is_repeated = document in self._responses
        if self._responses.setdefault(document, responses) != responses:
            raise InputError(
                f"an earlier line has `doc_id` {fields['doc_id']} and other responses; leave one out"
            )
        return is_repeated

    def _with_completion(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """*record* with its completions in a field that :mod:`conversations` reads, and no others beside it."""
        own, name = (*conversations.COMPLETIONS, *conversations.CONVERSATIONS), self._field
        names = (
            [name]
            if name
            else [name for name in conversations.COMPLETIONS if record.get(name) is not None]
        )
        if not names:
            if pair := next(
                (pair for pair in conversations.PAIRS.items() if record.keys() >= {*pair}), None
            ):
                raise InputError(f"`{pair[0]}` and `{pair[1]}` are a pair")
            names = [
                name for name, value in record.items() if value is not None and _OTHER_NAME(name)
            ]
        asked = {}
        for key in conversations.CONVERSATIONS if names else ():
            turns = conversations.decoded(record.get(key))
            last = turns[-1] if isinstance(turns, list) and turns else None
            if (
                key != name
                and isinstance(last, Mapping)
                and last.get("role", last.get("from")) in _ASSISTANTS
            ):
                asked[key] = turns[:-1]
        if len(names) + (len(asked) if not name else 0) > 1:
            raise InputError(f"the completion may be in {' or '.join((*names, *asked))}")
        if not names or not (
            name or names[0] not in own or isinstance(record[names[0]], Mapping | list)
        ):
            return record
        if record.get(names[0]) is None:
            raise InputError(f"`{name}` is null" if name in record else f"there is no `{name}`")
        others = {names[0], *conversations.COMPLETIONS, *conversations.PAIRS}
        kept = {key: value for key, value in record.items() if key not in others} | asked
        return kept | {names[0] if names[0] in own else "completions": _unnested(record[names[0]])}

    def _row(self, record: Mapping[str, Any], names: str) -> tuple[Row, str]:
        """The row of *record*, whose fields are called *names* in the file, and the note on its place."""
        note = ""
        named = (
            self._by_name.get(str(record.get("id", record.get("custom_id", ""))))
            if self._by_name
            else None
        )
        try:
            match = records.find_row(record)
        except records.NoRowError as error:
            row = named or self._of_prompt(record, names, str(error))
        else:
            row, note = self._with_settings(match.row), match.note
            if named and named.id != row.id:
                raise InputError(
                    f"its fields are {row.headline}, its `id` is that of {named.headline}; correct one"
                )
        asked = [record.get(name) for name in _ASKING]
        if any(asked) and (asked, row.id) != self._checked:  # often the prompt of the record before
            self._checked = asked, row.id
            question = None
            with suppress(InputError):  # it may be no prompt
                question = _question(record, "system", "user")
            note = records.check_prompt(row, question or "") or note
        if not self.rows:
            return row, note
        known = self.rows.get(row.id) or self._of_other_rules(row, record)
        if known is None:
            raise InputError(f"{row.headline} is not in --data")
        return known, note

    def _of_other_rules(self, row: Row, record: Mapping[str, Any]) -> Row | None:
        """The only row that asks what *row* does, whose *record* states no rules."""
        stated = {"rule", "operators"}
        if stated & (
            self._settings.keys() | {name for name in stated if record.get(name) is not None}
        ):
            return None
        same = self._by_question.get((row.identity, row.reference), ())
        return same[0] if len(same) == 1 else None

    def _of_prompt(self, record: Mapping[str, Any], names: str, fault: str) -> Row:
        text = _question(record, "user")
        if text is None:
            missing = f"the fields of a row ({fault}), nor the id of one in --data, nor a prompt"
            remedy = (
                "" if self.rows or "task" in record else "; rows of other tasks state their `task`"
            )
            remedy = (
                "; give --data for its id"
                if not self.rows and {"id", "custom_id"} & record.keys()
                else remedy
            )
            raise InputError(f"it has neither {missing}; its fields are {names}{remedy}")
        if row := self._by_prompt.get(text.strip()):
            return row
        asked = [row for user, row in self._by_prompt.items() if user in text]
        stated, text = self._settings.keys(), _question(record, "system", "user") or ""
        fields = [
            fields for task in registry.own_tasks() if (fields := task.row.fields_in(text, stated))
        ]
        if len(asked) != 1 and len(fields) != 1:
            raise InputError(
                f"its prompt and fields ({fault}) name no row for certain; give --data or fields"
            )
        if len(asked) == 1:
            return asked[0]
        return self._with_settings(
            registry.parse_row({name: v for name, v in fields[0].items() if v is not None})
        )


def without_completion(row: Row) -> Row:
    """*row* without the completion of its record."""
    completed = conversations.COMPLETIONS.__contains__
    return (
        type(row)({name: row[name] for name in row if not completed(name)})
        if any(map(completed, row))
        else row
    )


def _question(record: Mapping[str, Any], *roles: str) -> str | None:
    """The prompt of the first completion in *record*, as :meth:`Exchange.question`; None if it has none."""
    exchange = conversations.exchange(next(iter(conversations.split(record))))
    if exchange and (prompt := exchange.question(*roles)) is not None:
        return prompt
    return next((text for name in _QUESTIONS if isinstance(text := record.get(name), str)), None)


def _completions(
    record: Mapping[str, Any],
) -> Iterator[tuple[conversations.Turn, int | None, bool | None]]:
    """The completions in *record*, with their lengths and whether they ended, None if it has none."""
    parts = conversations.split(record)
    usage = _typed(record.get("usage") or {}, Mapping, "usage")
    tokens = usage.get("completion_tokens") if len(parts) == 1 else None
    if not (tokens is None or (type(tokens) is int and tokens >= 0)):
        raise InputError("`completion_tokens` should be a whole number from 0 on")
    for part in parts:
        turn = conversations.completion(part)
        if turn is None:
            null = next(
                (name for name in record if name in conversations.COMPLETIONS or _OTHER_NAME(name)),
                None,
            )
            absent = f"there is no completion in {', '.join(conversations.COMPLETIONS)} or a similar field"
            raise InputError(f"`{null}` is null" if null else absent)
        holders = (
            value for value in part.values() if type(value) is dict and "finish_reason" in value
        )
        reason = next(holders, {}).get("finish_reason")
        yield turn, tokens, None if reason is None else reason not in _LIMITS


def _unnested(value: Any) -> Any:
    """*value*, or what it holds under the only name of a completion in it, as does each item of a list."""
    if isinstance(value, list):
        return [_unnested(item) for item in value]
    if not isinstance(value, Mapping) or value.keys() & _READ:
        return value
    names = [name for name in value if name in conversations.COMPLETIONS or _OTHER_NAME(str(name))]
    return _unnested(value[names[0]]) if len(names) == 1 else value


def _flat(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """*record* with the completions that lm-evaluation-harness, verifiers and OpenAI's batches nest."""
    if (
        isinstance(record.get("doc"), Mapping) and "resps" in record
    ):  # by request; generate_until has one
        requests = [
            _typed(request, list, "resps") for request in _typed(record["resps"], list, "resps")
        ]
        return {**record["doc"], "completion": [text for request in requests for text in request]}
    if "traces" in record and "task" in record:
        return _episode(record)
    response = record.get("response")
    if {"custom_id", "response"} <= record.keys() and isinstance(response, Mapping | None):
        body = _typed((response or {}).get("body") or {}, Mapping, "body")
        choices = body.get("choices") or [  # or those of the Responses API
            {"message": {"role": "assistant", "content": item.get("content")}}
            for item in _mappings(body.get("output") or [], "output")
            if item.get("type") == "message"
        ]
        if not choices:
            raise InputError(
                f"the request failed: {record.get('error') or body.get('error') or 'no response'}"
            )
        kept = {
            key: value for key, value in record.items() if key not in ("id", "response", "error")
        }
        return kept | {"choices": choices, "usage": body.get("usage")}
    return record


def _episode(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task data and the last reply of an episode in ``traces.jsonl`` of verifiers 0.4."""
    traces = _mappings(record["traces"], "traces")
    trace = traces[0] if len(traces) == 1 else {"nodes": []}
    nodes, calls = (
        _mappings(trace.get("nodes"), "nodes"),
        _mappings(trace.get("calls") or [], "calls"),
    )
    replies = [
        _typed(node.get("message"), Mapping, "message") for node in nodes if node.get("sampled")
    ]
    if not replies:
        raise InputError("it needs one trace with a reply")
    call = calls[-1] if calls else {}
    choice = {"message": replies[-1], "finish_reason": call.get("finish_reason")}
    data = _typed(_typed(trace.get("task"), Mapping, "task").get("data"), Mapping, "data")
    return {**data, "choices": [choice], "usage": call.get("usage")}


def _mappings(value: Any, name: str) -> list[Mapping[str, Any]]:
    return [_typed(item, Mapping, name) for item in _typed(value, list, name)]


def _typed(value: Any, kind: Any, name: str) -> Any:
    """*value*, a list or mapping of the field *name*. Raises InputError if it is of another type."""
    if not isinstance(value, kind):
        raise InputError(f"`{name}` should be {'a list' if kind is list else 'a mapping'}")
    return value


def _inspect(data: BinaryIO, source: str, on_error: files.OnError) -> Iterator[files.Record]:
    """The samples of a log of Inspect; *on_error* is called for failed ones."""
    from inspect_ai.log import read_eval_log

    try:
        log = read_eval_log(io.BytesIO(data.read()))
    except Exception as error:  # zip, JSON and pydantic raise their own
        raise InputError(
            f"{source} cannot be read as a log of Inspect: {first_line(error)}."
        ) from error
    if not log.samples:
        raise InputError(f"{source} has no samples.")
    for sample in log.samples:
        place = f"{source}, sample {sample.id}, epoch {sample.epoch}"
        if sample.error or not sample.output.choices:
            fault = first_line(sample.error.message) if sample.error else "no output"
            on_error(
                InputError(f"{place} failed: {fault}; `grade --on-error mark` skips such samples.")
            )
            continue
        choice = sample.output.choices[0]
        parts = choice.message.content if isinstance(choice.message.content, list) else []
        message = {
            "role": "assistant",
            "content": choice.message.text,
            "reasoning": "\n".join(part.reasoning for part in parts if part.type == "reasoning"),
        }
        asked = sample.input
        if not isinstance(asked, str):  # without a prefill
            asked = [
                {"role": turn.role, "content": turn.text}
                for turn in asked
                if turn.role in ("system", "user")
            ]
        record = {
            "id": sample.id,
            "metadata": sample.metadata,
            "prompt": asked,
            "choices": [{"message": message, "finish_reason": choice.stop_reason}],
            "usage": {
                "completion_tokens": sum(use.output_tokens for use in sample.model_usage.values())
                or None
            },
        }
        yield place, record
