"""llama.cpp's server in the ``xllamacpp`` wheel (2026.10), which reads written GGUF files back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, Request, build_opener

from countdown_rl.core.errors import ModelError
from countdown_rl.core.types import JsonObject
from countdown_rl.export.gguf_tokenizer import CONVERTER, Conversation
from countdown_rl.models.chat_template import CHAT_ARGUMENTS, TEMPLATE_ARGUMENTS, render
from countdown_rl.models.protocols import Tokenizer

if TYPE_CHECKING:
    import xllamacpp


def server(file: Path, context: int, slots: int = 1) -> "xllamacpp.Server":
    """Start llama.cpp's server on the CPU.

    Args:
        file: the GGUF file.
        context: tokens of the context, which the *slots* share.
        slots: requests served at once.
    """
    import torch
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = context
    params.n_parallel = slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    params.n_gpu_layers = 0
    params.verbosity = -1
    params.warmup = params.fit_params = False
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:  # without a reason
        raise ModelError(
            f"llama.cpp (xllamacpp {xllamacpp.__version__}) cannot load {file.name}."
        ) from error


def request(server: "xllamacpp.Server", path: str, body: Mapping[str, object]) -> JsonObject:
    """Return the response of *server*, on this machine, at *path*, which has no Python function."""
    headers = {"Content-Type": "application/json"}
    url = server.listening_address + path
    message = Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - this machine
    with build_opener(ProxyHandler({})).open(message, timeout=60) as response:
        answer: JsonObject = json.loads(response.read())
    return answer


def check_round_trip(
    file: Path, tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> JsonObject:
    """Check that llama.cpp gives the tokens of *tokenizer* for *conversations*.

    Args:
        file: the GGUF file, which is loaded.
        tokenizer: that of the source.
        conversations: prompts.

    Returns:
        ``prompts``, their number, and ``chat``: whether llama.cpp renders the chat template in the
        same way (None without one).
    """
    llama = server(file, 256)
    # A server that is destroyed before its loop runs waits for ever; this answer is of the loop.
    request(llama, "/completion", {"prompt": "1", "n_predict": 1})
    for conversation in conversations:
        text = render(tokenizer, conversation)
        body = {"content": text, "add_special": False, "parse_special": True}
        tokens = request(llama, "/tokenize", body)["tokens"]
        if tokens != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise ModelError(
                f"llama.cpp splits this prompt into other tokens: {text!r:.300}; use {CONVERTER}."
            )
    if not tokenizer.chat_template:
        return {"prompts": len(conversations), "chat": None}
    bos = tokenizer.bos_token or ""  # llama.cpp adds it by itself
    chat = True
    user = next(turn for turn in conversations[0] if turn["role"] == "user")
    system = {"role": "system", "content": "Be brief."}
    for turns in ([user], [system, user]):
        for arguments in (TEMPLATE_ARGUMENTS, CHAT_ARGUMENTS):
            asked = {"messages": turns, "chat_template_kwargs": arguments}
            shown = request(llama, "/apply-template", asked)["prompt"]
            chat &= shown.removeprefix(bos) == render(tokenizer, turns, arguments).removeprefix(bos)
    return {"prompts": len(conversations), "chat": chat}
