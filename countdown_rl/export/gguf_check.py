"""What llama.cpp, which did not write it, makes of a GGUF file: the tokens of a text, and the text of a chat."""

from pathlib import Path
from typing import Any

from countdown_rl.errors import ModelError
from countdown_rl.export import agreement, gguf_tokenizer
from countdown_rl.inference.llama_cpp import asked, server
from countdown_rl.models import chat_template
from countdown_rl.tasks.task import parse_row


def check(file: Path, tokenizer: Any) -> dict[str, Any]:
    """Load *file* in llama.cpp and hold its tokens and chats against those of *tokenizer*.

    Returns:
        ``prompts`` read to the same tokens; whether ``any_text`` is, beside the puzzles; and whether the file's
        ``chat`` template gives the same text there (None where there is none).

    Raises:
        ModelError: llama.cpp cannot load it, or reads a puzzle to other tokens.
    """
    held = server(file, 256, 1, on_cpu=True)

    def tokens(text: str) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        found: list[int] = asked(held, "/tokenize", body)["tokens"]
        return found

    def same(text: str) -> bool:
        wanted: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens(text) == wanted

    conversations = [parse_row(row).messages() for row in agreement.puzzles(16)]
    for conversation in conversations:
        text = chat_template.render(tokenizer, conversation)
        if not same(text):
            raise ModelError(
                f"llama.cpp reads this puzzle to other tokens than the tokenizer: {conversation[-1]['content']!r}; "
                "use llama.cpp's convert_hf_to_gguf.py."
            )
    return {
        "prompts": len(conversations),
        "any_text": same(gguf_tokenizer.PROBE),
        "chat": _chat(held, tokenizer) if tokenizer.chat_template else None,
    }


def _chat(held: Any, tokenizer: Any) -> bool:
    user = {"role": "user", "content": "Numbers: 3 7 50\nTarget: 46"}
    begin = tokenizer.bos_token or ""  # the runtime puts it there by itself
    for turns in ([user], [{"role": "system", "content": "Be brief."}, user]):
        body = {"messages": turns, "chat_template_kwargs": chat_template._FIXED}
        given: str = asked(held, "/apply-template", body)["prompt"]
        if given.removeprefix(begin) != chat_template.render(tokenizer, turns).removeprefix(begin):
            return False
    return True
