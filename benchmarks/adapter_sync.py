"""Small adapters in a vLLM engine, sent as they are and merged into bf16 weights; and what LoRA costs the engine.

    python -m benchmarks.adapter_sync [--model countdown-tiny] [--prompts 16]

Needs vLLM; ``make test-vllm`` makes an environment with it. A new adapter is changed by three steps of AdamW on the
model's own completions. Writes ``results/adapter_sync.json``. ``policy`` is the policy in bf16, as training has it. Of
it and of each engine, at each learning rate: the correlation of the change of its log-probabilities with that of the
policy in fp32, and the share of that change which it has (the slope of the regression). Of each engine also the tokens
a second of processor time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import bench
from countdown_rl.cli.quiet import silence_libraries

RATES = (1e-5, 5e-5, 2e-4)
#: What an engine computes in, and what it gets.
ENGINES = (("fp32", "adapter"), ("fp32", "merged"), ("bf16", "adapter"), ("bf16", "merged"))
LENGTH = 96


def measure(precision: str, sent: str, model: str, prompts: int) -> dict[str, Any]:
    """The figures of an engine that gets the adapter, or all weights in bf16, in a process of its own."""
    words = ("--model", model, "--prompts", str(prompts), "--engine", precision, sent)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.adapter_sync", *words],
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


class Policy:
    """The model with a new adapter, and completions that it drew."""

    def __init__(self, name: str, prompts: int) -> None:
        import torch

        from countdown_rl.models import load, reference

        silence_libraries()
        torch.manual_seed(0)
        self.ref = reference.find_model(name)
        self.tokenizer = load.load_tokenizer(self.ref)
        self.model, self.low = (self._model(precision) for precision in ("fp32", "bf16"))
        self.sequences = [
            self._complete(f"Numbers: {n} 7 50 3 Target: {n + 10}") for n in range(10, 10 + prompts)
        ]
        self.start = {name: value.clone() for name, value in self._adapter(self.model).items()}

    def _model(self, precision: str) -> Any:
        import peft
        import torch

        from countdown_rl.models import load

        config = peft.LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(load.load_model(self.ref, precision=precision).model, config)
        for parameter in model.parameters():
            parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
        assert model.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
        return model.eval()

    @staticmethod
    def _adapter(model: Any) -> dict[str, Any]:
        return {name: value.data for name, value in model.named_parameters() if value.requires_grad}

    def _complete(self, text: str) -> tuple[list[int], list[int]]:
        import torch

        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        ids = torch.tensor([prompt["input_ids"]])
        drawn = self.model.generate(input_ids=ids, do_sample=True, top_k=0, max_new_tokens=LENGTH)
        return prompt["input_ids"], drawn[0, ids.shape[1] :].tolist()

    def train(self, rate: float) -> None:
        """Change a new adapter by three steps: every other completion becomes more likely, the others less."""
        import torch

        own = self._adapter(self.model)
        for name, value in self.start.items():
            own[name].copy_(value)
        optimiser = torch.optim.AdamW(
            [value for value in self.model.parameters() if value.requires_grad], lr=rate
        )
        for _ in range(3):
            for number, sequence in enumerate(self.sequences):
                ((-1) ** number * self._logps(self.model, *sequence).mean()).backward()
            optimiser.step()
            optimiser.zero_grad()
        for name, value in self._adapter(self.low).items():
            value.copy_(own[name])

    def logps(self) -> Any:
        """The log-probabilities of all tokens: in fp32, and in bf16 as training computes them."""
        import torch

        with torch.no_grad():
            exact = torch.cat([self._logps(self.model, *sequence) for sequence in self.sequences])
            with torch.autocast("cpu", torch.bfloat16):
                return exact, torch.cat(
                    [self._logps(self.low, *sequence) for sequence in self.sequences]
                )

    @staticmethod
    def _logps(model: Any, prompt: list[int], completion: list[int]) -> Any:
        import torch

        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
        return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def figures(policy: Policy, precision: str, sent: str) -> dict[str, Any]:
    """What ``measure`` returns, of an engine in this process."""
    import accelerate
    import torch

    from countdown_rl.models import reference
    from countdown_rl.training.grpo.vllm_internals import PolicyEngine

    engine = PolicyEngine(
        str(reference.local_path(policy.ref)),
        torch.bfloat16 if precision == "bf16" else torch.float32,
        model=policy.model,
        adapters=Path(tempfile.gettempdir()) if sent == "adapter" else None,
        accelerator=accelerate.Accelerator(cpu=True),
        processing_class=policy.tokenizer,
        max_model_length=512,
        max_num_seqs=64,
    )
    engine.dtype = torch.bfloat16  # that weights are sent in

    from vllm import SamplingParams  # after the engine, which quiets it

    def logps() -> torch.Tensor:
        engine.sync_weights()
        inputs = [
            {"prompt_token_ids": prompt + completion} for prompt, completion in policy.sequences
        ]
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        outputs = engine.llm.generate(inputs, params, use_tqdm=False)
        values = []
        for (prompt, completion), output in zip(policy.sequences, outputs, strict=True):
            ranked = output.prompt_logprobs[len(prompt) :]
            values += [
                logprobs[token].logprob for logprobs, token in zip(ranked, completion, strict=True)
            ]
        return torch.tensor(values)

    def rate() -> float:
        params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
        begin = time.process_time()
        engine.llm.generate(
            [{"prompt_token_ids": prompt} for prompt, _ in policy.sequences], params, use_tqdm=False
        )
        return len(policy.sequences) * LENGTH / (time.process_time() - begin)

    (exact, low), own, rows = policy.logps(), logps(), []
    for learning_rate in RATES:
        policy.train(learning_rate)
        now_exact, now_low = policy.logps()
        change = now_exact - exact
        row = {"learning_rate": learning_rate, "mean_change": float(change.abs().mean())}
        for name, other in {"policy": now_low - low, "engine": logps() - own}.items():
            row[f"{name}_correlation"] = float(torch.corrcoef(torch.stack([change, other]))[0, 1])
            row[f"{name}_share"] = float(change @ other / change.square().sum())
        rows.append(row)
    return {
        "precision": precision,
        "sent": sent,
        "tokens_a_second": max(rate() for _ in range(3)),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--engine", nargs=2, help="print the figures of this one")
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(figures(Policy(args.model, args.prompts), *args.engine)))
        return
    results = [measure(*engine, args.model, args.prompts) for engine in ENGINES]
    bench.save(
        "adapter_sync", {"model": args.model, "completions": args.prompts, "engines": results}
    )


if __name__ == "__main__":
    main()
