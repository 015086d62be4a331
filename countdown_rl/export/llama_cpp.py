"""llama.cpp's server in the ``xllamacpp`` wheel (2026.10), which reads written GGUF files back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from countdown_rl.core.errors import ModelError
from countdown_rl.export.gguf_tokenizer import CONVERTER, Conversation
from countdown_rl.models.chat_template import CHAT_ARGUMENTS, TEMPLATE_ARGUMENTS, render


def server(file: Path, context: int, slots: int = 1) -> Any:
    """Start llama.cpp's server on the CPU with the GGUF *file* and a context of *context* tokens, shared by *slots*."""
    import torch
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = context, slots
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


def request(server: Any, path: str, body: Mapping[str, Any]) -> Any:
    """The response of *server* at *path*, for endpoints without a Python function; it listens on this machine."""
    message = Request(  # noqa: S310 - a server on this machine
        server.listening_address + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with build_opener(ProxyHandler({})).open(message, timeout=60) as response:
        return json.loads(response.read())


def check_round_trip(
    file: Path, tokenizer: Any, conversations: Sequence[Conversation]
) -> dict[str, Any]:
    """Load *file* in llama.cpp, check that it gives the tokens of *tokenizer* for *conversations*; return their number.

    ``chat`` is whether llama.cpp renders the chat template in the same way (None without one).
    """
    llama = server(file, 256)
    # A server that is destroyed before its loop runs waits for ever; this answer comes from the loop.
    request(llama, "/completion", {"prompt": "1", "n_predict": 1})
    for conversation in conversations:
        text = render(tokenizer, conversation)
        body = {"content": text, "add_special": False, "parse_special": True}
        if (
            request(llama, "/tokenize", body)["tokens"]
            != tokenizer(text, add_special_tokens=False)["input_ids"]
        ):
            raise ModelError(
                f"llama.cpp splits this prompt into other tokens: {text!r:.300}; use {CONVERTER}."
            )
    if not tokenizer.chat_template:
        return {"prompts": len(conversations), "chat": None}
    bos, chat = tokenizer.bos_token or "", True  # llama.cpp adds it by itself
    user = next(turn for turn in conversations[0] if turn["role"] == "user")
    chats = ([user], [{"role": "system", "content": "Be brief."}, user])
    for turns in chats:
        for arguments in (TEMPLATE_ARGUMENTS, CHAT_ARGUMENTS):
            body = {"messages": turns, "chat_template_kwargs": arguments}
            shown = request(llama, "/apply-template", body)["prompt"]
            chat &= shown.removeprefix(bos) == render(tokenizer, turns, arguments).removeprefix(bos)
    return {"prompts": len(conversations), "chat": chat}
