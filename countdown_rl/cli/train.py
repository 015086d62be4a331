"""``countdown-rl train``: GRPO on a LoRA adapter."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from countdown_rl import processes
from countdown_rl.cli import check_view, console, live
from countdown_rl.training.config import TRACKERS, TRAIN_CHOICES, TrainOptions

DEFAULT = TrainOptions()

BATCH, POLICY, OPTIMISER, LORA = "Batch", "Policy gradient", "Optimiser", "Adapter and precision"
RUN, SAMPLING = "Run", "Completions"


def _one_of(name: str) -> str:
    choices = TRACKERS if name == "report_to" else TRAIN_CHOICES[name]
    return "One of " + ", ".join(f"`{choice}`" for choice in choices) + "."


def train(
    model: Annotated[
        str, typer.Option(help="The shipped model's name, a directory, a GGUF file or a Hub id.")
    ] = "countdown-tiny",
    revision: Annotated[str | None, typer.Option(help="Which revision of a Hub model.")] = None,
    data: Annotated[Path, typer.Option(help="What gen-data wrote, or one JSONL file.")] = Path("artifacts/data"),
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/adapter"),
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps.", rich_help_panel=BATCH)] = DEFAULT.steps,
    prompts: Annotated[int, typer.Option(min=1, help="Puzzles a step.", rich_help_panel=BATCH)] = DEFAULT.prompts,
    generations: Annotated[
        int, typer.Option(min=2, help="Completions of each puzzle: the group.", rich_help_panel=BATCH)
    ] = DEFAULT.generations,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Completions in one forward and backward pass.", rich_help_panel=BATCH)
    ] = DEFAULT.micro_batch,
    steps_per_generation: Annotated[
        int,
        typer.Option(min=1, help="Steps that share one round of completions, each its own.", rich_help_panel=BATCH),
    ] = DEFAULT.steps_per_generation,
    iterations: Annotated[
        int, typer.Option(min=1, help="How often each completion is learnt from.", rich_help_panel=BATCH)
    ] = DEFAULT.iterations,
    reward: Annotated[
        list[str],
        typer.Option(metavar="NAME=WEIGHT", help="What counts, and how much. Repeat it.", rich_help_panel=POLICY),
    ] = list(DEFAULT.reward),  # noqa: B006
    loss_type: Annotated[str, typer.Option(help=_one_of("loss_type"), rich_help_panel=POLICY)] = DEFAULT.loss_type,
    scale_rewards: Annotated[
        str,
        typer.Option(help=f"Divide by the spread within. {_one_of('scale_rewards')}", rich_help_panel=POLICY),
    ] = DEFAULT.scale_rewards,
    importance: Annotated[
        str,
        typer.Option(
            help=f"Level of the probability ratios (sequence is GSPO). {_one_of('importance')}",
            rich_help_panel=POLICY,
        ),
    ] = DEFAULT.importance,
    beta: Annotated[
        float,
        typer.Option(min=0, help="Weight of the KL term to the starting model.", rich_help_panel=POLICY),
    ] = DEFAULT.beta,
    epsilon: Annotated[
        float, typer.Option(min=0, help="Clip the ratio below 1 minus this.", rich_help_panel=POLICY)
    ] = DEFAULT.epsilon,
    epsilon_high: Annotated[
        float, typer.Option(min=0, help="Clip the ratio above 1 plus this.", rich_help_panel=POLICY)
    ] = DEFAULT.epsilon_high,
    mask_truncated: Annotated[
        bool,
        typer.Option(help="Leave completions that hit the length limit out of the loss.", rich_help_panel=POLICY),
    ] = DEFAULT.mask_truncated,
    curriculum: Annotated[
        bool,
        typer.Option(help="Draw more of the kinds of puzzles solved sometimes, not always.", rich_help_panel=BATCH),
    ] = DEFAULT.curriculum,
    trl: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE", help="Any other field of TRL's GRPOConfig. Repeat it.", rich_help_panel=POLICY
        ),
    ] = list(DEFAULT.trl),  # noqa: B006
    temperature: Annotated[
        float, typer.Option(min=0.01, help="Of the sampling, and of the loss.", rich_help_panel=SAMPLING)
    ] = DEFAULT.temperature,
    top_p: Annotated[
        float, typer.Option(min=0.01, max=1, help="Sample from the likeliest part.", rich_help_panel=SAMPLING)
    ] = DEFAULT.top_p,
    max_completion_length: Annotated[
        int, typer.Option(min=1, help="Tokens a completion may have.", rich_help_panel=SAMPLING)
    ] = DEFAULT.max_completion_length,
    max_prompt_length: Annotated[
        int,
        typer.Option(min=1, help="Tokens a prompt may have; a longer one is refused.", rich_help_panel=SAMPLING),
    ] = DEFAULT.max_prompt_length,
    learning_rate: Annotated[
        float, typer.Option(min=0, help="At its highest.", rich_help_panel=OPTIMISER)
    ] = DEFAULT.learning_rate,
    scheduler: Annotated[str, typer.Option(help=_one_of("scheduler"), rich_help_panel=OPTIMISER)] = DEFAULT.scheduler,
    warmup_steps: Annotated[
        int, typer.Option(min=0, help="Steps over which the learning rate rises.", rich_help_panel=OPTIMISER)
    ] = DEFAULT.warmup_steps,
    weight_decay: Annotated[float, typer.Option(min=0, rich_help_panel=OPTIMISER)] = DEFAULT.weight_decay,
    adam_beta1: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=OPTIMISER)] = DEFAULT.adam_beta1,
    adam_beta2: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=OPTIMISER)] = DEFAULT.adam_beta2,
    max_grad_norm: Annotated[
        float, typer.Option(min=0, help="Longer gradients are cut to this.", rich_help_panel=OPTIMISER)
    ] = DEFAULT.max_grad_norm,
    lora_r: Annotated[int, typer.Option(min=1, help="Rank.", rich_help_panel=LORA)] = DEFAULT.lora_r,
    lora_alpha: Annotated[
        int, typer.Option(min=1, help="The update is scaled by alpha / r.", rich_help_panel=LORA)
    ] = DEFAULT.lora_alpha,
    lora_dropout: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=LORA)] = DEFAULT.lora_dropout,
    precision: Annotated[
        str, typer.Option(help=f"Of the frozen base. {_one_of('precision')}", rich_help_panel=LORA)
    ] = DEFAULT.precision,
    gradient_checkpointing: Annotated[
        bool, typer.Option(help="Less memory, about a fifth slower.", rich_help_panel=LORA)
    ] = DEFAULT.gradient_checkpointing,
    seed: Annotated[int, typer.Option(min=0, help="Of every random choice.", rich_help_panel=RUN)] = DEFAULT.seed,
    threads: Annotated[
        int,
        typer.Option(min=0, help="Processor threads; 0 takes what this process may use.", rich_help_panel=RUN),
    ] = DEFAULT.threads,
    log: Annotated[Path, typer.Option(help="The CSV of the run.", rich_help_panel=RUN)] = Path(
        "artifacts/train/log.csv"
    ),
    log_every: Annotated[int, typer.Option(min=1, help="Steps a row.", rich_help_panel=RUN)] = DEFAULT.log_every,
    checkpoints: Annotated[Path, typer.Option(help="Where an unfinished run is kept.", rich_help_panel=RUN)] = Path(
        "artifacts/train/checkpoints"
    ),
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Steps between checkpoints; 0 keeps none.", rich_help_panel=RUN)
    ] = DEFAULT.checkpoint_every,
    save_minutes: Annotated[
        float,
        typer.Option(min=0, help="Minutes between checkpoints, beside the steps; 0: none.", rich_help_panel=RUN),
    ] = DEFAULT.save_minutes,
    sample_every: Annotated[
        int,
        typer.Option(min=0, help="Steps between samples of completions; 0 keeps none.", rich_help_panel=RUN),
    ] = DEFAULT.sample_every,
    sample_size: Annotated[
        int, typer.Option(min=1, help="Completions a sample.", rich_help_panel=RUN)
    ] = DEFAULT.sample_size,
    report_to: Annotated[
        list[str],
        typer.Option(help=f"{_one_of('report_to')} Offline, beside the log. Repeat it.", rich_help_panel=RUN),
    ] = list(DEFAULT.report_to),  # noqa: B006
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Begin again, whatever there is to continue.", rich_help_panel=RUN),
    ] = False,
    processes_: Annotated[
        int, typer.Option("--processes", min=1, help="Processes on this machine, one a GPU.", rich_help_panel=RUN)
    ] = 1,
    launch: Annotated[
        str | None,
        typer.Option(
            help=f"How they share the work: {', '.join(f'`{name}`' for name in processes.LAUNCHES)}, or an Accelerate "
            "configuration file. Default: `ddp`.",
            rich_help_panel=RUN,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only see whether it can begin, and how much memory it needs.", rich_help_panel=RUN
        ),
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run code that comes with a model.", rich_help_panel=LORA)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.", rich_help_panel=RUN)] = False,
) -> None:
    """Train a LoRA adapter with GRPO.

    The base is held in 4-bit NF4 where that is sound and fast; on a processor without a GPU its values are
    quantized once and computed with in full. A run that was stopped continues when the same command is run
    again. Beside the log go samples of completions (`countdown-rl samples`) and a picture of the run.

    **Examples**

    `countdown-rl train --model countdown-tiny --data artifacts/data --out artifacts/adapter`

    `countdown-rl train --reward correct=1 --reward format=0.1 --generations 32 --learning-rate 1e-4`

    `countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --check`

    `countdown-rl train --model Qwen/Qwen2.5-3B-Instruct --processes 8 --launch zero2`
    """
    given = {key: value for key, value in locals().items() if key in asdict(DEFAULT)}
    options = TrainOptions(**given | {"reward": tuple(reward), "trl": tuple(trl), "report_to": tuple(report_to)})
    if not processes.launched():
        processes.share(prompts * generations, micro_batch, processes_)
        if launch is not None:
            processes.configuration(launch)
    if check:
        from countdown_rl.training import preflight

        checked = preflight.check(
            options,
            model=model,
            revision=revision,
            data=data,
            out=out,
            checkpoints=checkpoints,
            processes=processes_,
            trust_remote_code=trust_remote_code,
        )
        check_view.show(checked, as_json=as_json)
        return
    if not processes.launched() and (processes_ > 1 or launch is not None):
        raise typer.Exit(processes.start(sys.argv[1:], processes=processes_, launch=launch or "ddp"))
    from countdown_rl.training import train as training

    with live.watching(steps) as watch:
        try:
            result = training.train(
                options,
                model=model,
                revision=revision,
                data=data,
                out=out,
                log=log,
                checkpoints=checkpoints,
                restart=restart,
                trust_remote_code=trust_remote_code,
                on_step=watch,
                on_note=console.note,
                on_warning=console.warn,
            )
        except KeyboardInterrupt:
            console.note(training.how_to_continue(checkpoints))
            raise
    facts = result.facts
    console.note(
        f"Wrote {out}: reward {facts['reward_first']:.3f} at first, {facts['reward_last_tenth']:.3f} "
        f"at the end; {facts['correct_last_tenth']:.0%} of sampled completions solved their puzzle."
    )
    about = {"out": str(out), "log": str(log), "resumed": result.resumed, "warnings": result.warnings}
    console.result(about | facts, as_json=as_json)
