"""How to run each form of the weights, in each program that loads it."""

from typing import Any

from countdown_rl.formatting import literal
from countdown_rl.hub import formats
from countdown_rl.hub.story import Part, Story

_EXAMPLE: dict[str, dict[str, Any]] = {
    "countdown": {"nums": [19, 36, 55, 7], "target": 65},
    "gsm8k": {"question": "A shelf holds 3 rows of 12 books. 5 are lent out. How many are left?", "gold": "31"},
}


def section(story: Story) -> str:
    """What to install and what to type, for each form in turn."""
    from countdown_rl.tasks.task import parse_row

    turns = [dict(turn) for turn in parse_row({"task": story.task} | _EXAMPLE[story.task]).messages()]
    begun = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    tokens = story.measured.decoding["max_new_tokens"] if story.measured else 256
    parts = ["## How to run it\n\nIn a copy of this repository (`hf download NAME/MODEL --local-dir .`):"]
    shown = False
    for part in story.parts:
        if len(story.parts) > 1:
            parts.append(f"### {part.form.title[0].upper()}{part.form.title[1:]}")
        if part.form is formats.GGUF:
            parts.append(_gguf(part, turns, tokens))
        elif part.form is formats.ADAPTER and not story.base_model:
            parts.append(
                "Its base is on no Hub: it ships with `countdown-rl`, which loads the adapter with "
                f"`--model {part.path}`."
            )
        elif shown:
            parts.append(f'`pip install {part.form.needs}`, then as above, with `name = "{part.path}"`.')
        else:
            parts.append(_python(part, turns, begun, tokens))
            shown = part.form is not formats.ADAPTER
        if part.form in (formats.FULL, formats.W4A16):
            parts.append(_vllm(part, begun))
        elif part.form is formats.ADAPTER and story.base_model:
            parts.append(f"vLLM: `vllm serve {story.base_model} --enable-lora --lora-modules countdown={part.path}`.")
    return "\n\n".join(parts)


def _python(part: Part, turns: list[dict[str, str]], begun: str, tokens: int) -> str:
    lines = ",\n".join(f'    {{"role": "{turn["role"]}", "content": {literal(turn["content"])}}}' for turn in turns)
    if part.form is formats.ADAPTER:
        loader = "AutoPeftModelForCausalLM"
        imports = f"from peft import {loader}\nfrom transformers import AutoTokenizer"
    else:
        loader = "AutoModelForCausalLM"
        imports = f"from transformers import {loader}, AutoTokenizer"
    begin = f"prompt += {literal(begun)}  # the model was trained to go on from here\n" if begun else ""
    return f"""`pip install {part.form.needs}`, then

```python
{imports}

name = "{part.path}"
tokenizer = AutoTokenizer.from_pretrained(name)
model = {loader}.from_pretrained(name)
turns = [
{lines},
]
prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
{begin}inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```"""


def _vllm(part: Part, begun: str) -> str:
    said = f"vLLM: `vllm serve {part.path}`."
    if begun:
        said += (
            " Its chat endpoint takes the begun answer as a last turn of the assistant's, with "
            '`"continue_final_message": true` and `"add_generation_prompt": false`.'
        )
    return said


def _gguf(part: Part, turns: list[dict[str, str]], tokens: int) -> str:
    prefix = f"{part.place}/" if part.place else ""
    files = [f"{prefix}{name}" for name in part.files if name.endswith(".gguf")]
    user = next(turn["content"] for turn in turns if turn["role"] == "user")
    system = next((turn["content"] for turn in turns if turn["role"] == "system"), None)
    asked = (f"-sys {_shell(system)} " if system else "") + f"-p {_shell(user)}"
    said = [f"llama.cpp:\n\n```shell\nllama-cli -m {files[0]} --jinja -n {tokens} --temp 0 {asked}\n```"]
    if "Modelfile" in part.files:
        create = f"ollama create countdown -f {prefix}Modelfile"
        said.append(f"Ollama:\n\n```shell\n{create}\nollama run countdown {_shell(user)}\n```")
    said.append("LM Studio, Jan and others built on llama.cpp open the file as it is.")
    if len(files) > 1:
        said.append(f"The same weights are there as {', '.join(f'`{name}`' for name in files[1:])} too.")
    return "\n\n".join(said)


def _shell(text: str) -> str:
    # Dollar quoting, so that the lines of the prompt stay one line here.
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
