"""Round-trip check of a GGUF file in llama.cpp: its tokens, and its chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.errors import ModelError
from countdown_rl.export.gguf_tokenizer import Conversation
from countdown_rl.inference import llama_cpp
from countdown_rl.models.chat_template import CHAT_ARGUMENTS, TEMPLATE_ARGUMENTS, render


def check_round_trip(file: Path, tokenizer: Any, conversations: Sequence[Conversation]) -> dict[str, Any]:
    """Load *file* in llama.cpp and check that it gives the tokens of *tokenizer* for *conversations*.

    Returns:
        Their number, and as ``chat`` whether llama.cpp renders the chat template in the same way (None without one).
    """
    server = llama_cpp.server(file, 256, 1, on_cpu=True)
    users = [next(turn for turn in turns if turn["role"] == "user") for turns in conversations]
    for conversation, user in zip(conversations, users, strict=True):
        text = render(tokenizer, conversation)
        body = {"content": text, "add_special": False, "parse_special": True}
        tokens = llama_cpp.request(server, "/tokenize", body)["tokens"]
        if tokens != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise ModelError(
                f"llama.cpp splits this prompt into other tokens than the tokenizer: {user['content']!r}; "
                "use llama.cpp's convert_hf_to_gguf.py."
            )
    return {
        "prompts": len(conversations),
        "chat": _same_chat(server, tokenizer, users[0]) if tokenizer.chat_template else None,
    }


def _same_chat(server: Any, tokenizer: Any, user: Mapping[str, str]) -> bool:
    bos = tokenizer.bos_token or ""  # llama.cpp adds it by itself
    for arguments in (TEMPLATE_ARGUMENTS, CHAT_ARGUMENTS):
        for turns in ([user], [{"role": "system", "content": "Be brief."}, user]):
            body = {"messages": turns, "chat_template_kwargs": arguments}
            prompt: str = llama_cpp.request(server, "/apply-template", body)["prompt"]
            if prompt.removeprefix(bos) != render(tokenizer, turns, arguments).removeprefix(bos):
                return False
    return True
