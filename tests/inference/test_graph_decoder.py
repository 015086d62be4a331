"""Decoding over a static cache against ``generate``; on a CPU, where the same steps run without a graph."""

import math
from collections import Counter

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode

from countdown_rl.core.errors import out_of_memory
from countdown_rl.inference import generate, graph_decoder
from countdown_rl.inference.graph_decoder import GraphDecoder, supports
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models import load, reference
from tests.support import architectures, fake_cuda, tiny_llama

FULL_ATTENTION = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma",
    "gpt2",
    "phi3",
    "olmo2",
    "cohere",
    "granite",
    "smollm3",
)
OTHER_ATTENTION = (
    "mistral",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "jamba",
    "mamba",
    "falcon_h1",
    "qwen3_5_text",
)
OTHER_ATTENTION += ("qwen3_next", "bloom")
TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7", *"abcdefghijkl")


def adapted(model):
    import peft

    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False
    )
    return peft.get_peft_model(model, config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = tiny_llama.tokenizer()
    tokenizer.padding_side = "left"
    return tokenizer


@pytest.fixture(scope="module")
def model():
    # With tied embeddings a random model repeats its last token.
    return adapted(tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).float())


def both(model, tokenizer, tokens=40):
    stop = Stop(tokenizer, model, "</answer>")
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    ours = GraphDecoder(model).decode(prompts, Decoding(tokens), stop)
    with torch.no_grad():
        theirs = generate.generate(model, stop, prompts, max_new_tokens=tokens, do_sample=False)
    return ours, theirs


@pytest.mark.parametrize("name", FULL_ATTENTION)
@pytest.mark.parametrize("precision", ["fp32", "nf4"])
def test_greedy_texts_are_those_of_generate(name, precision, tmp_path):
    path = architectures.checkpoint(tmp_path / name, name)
    loaded = load.load_model(reference.find_model(str(path)), precision=precision, device="cpu")
    model = adapted(loaded.model)
    assert supports(model)
    ours, theirs = both(model, loaded.tokenizer)
    assert ours == theirs


@pytest.mark.parametrize("tune", ["all", "lora"])
@pytest.mark.parametrize("name", FULL_ATTENTION)
def test_greedy_tokens_under_autocast_have_the_models_largest_logits(name, tune, tmp_path):
    path = architectures.checkpoint(tmp_path / name, name)
    precision = "fp32" if tune == "all" else "bf16"
    loaded = load.load_model(reference.find_model(str(path)), precision=precision, device="cpu")
    policy = adapted(loaded.model) if tune == "lora" else loaded.model
    AcceleratorState._reset_state(reset_partial_state=True)  # of another test, in other precision
    policy = Accelerator(cpu=True, mixed_precision="bf16").prepare(policy)
    prompts = [loaded.tokenizer.encode(text) for text in TEXTS]
    completions = GraphDecoder(policy).decode(
        prompts, Decoding(24), Stop(loaded.tokenizer, policy, "</answer>")
    )
    for prompt, ids in zip(prompts, completions, strict=True):
        with torch.no_grad():
            logits = policy(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        short = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float(short.max()) < 0.1 * float(logits.std())


@pytest.mark.parametrize("name", OTHER_ATTENTION)
def test_other_attention_is_left_to_generate(name, tmp_path):
    path = architectures.checkpoint(tmp_path / name, name)
    assert not supports(
        load.load_model(reference.find_model(str(path)), precision="fp32", device="cpu").model
    )


def test_rows_end_at_different_steps_and_are_dropped(model, tokenizer, monkeypatch):
    sizes = []
    take = graph_decoder._Steps.take
    recorded = lambda self, rows, size: sizes.append(size) or take(self, rows, size)  # noqa: E731
    monkeypatch.setattr(graph_decoder._Steps, "take", recorded)
    monkeypatch.setattr(graph_decoder, "_MIN_ROWS", 1)
    init = Stop.__init__

    def end_at_more_tokens(self, *args):  # so that rows of a random model end
        init(self, *args)
        self.ids |= set(range(0, 320, 9))
        self.may_end[::9] = True

    monkeypatch.setattr(Stop, "__init__", end_at_more_tokens)
    ours, theirs = both(model, tokenizer, 64)
    assert ours == theirs
    assert len({len(ids) for ids in ours}) > 3
    assert sizes == sorted(sizes, reverse=True) != []


def test_all_rows_share_one_search_for_their_ends(model, tokenizer):
    searched = []

    class NoEnds:
        def __getitem__(self, tokens):
            searched.append(tuple(tokens.shape))
            return torch.zeros(tokens.shape, dtype=torch.bool)

    stop = Stop(tokenizer, model, "</answer>")
    stop.may_end = NoEnds()
    GraphDecoder(model).decode([[5, 6, 7]] * 10, Decoding(20), stop)
    assert searched == [(16, 8), (16, 8), (16, 4)]  # a graph of 16 rows


class Launches(TorchDispatchMode):
    """Operations of a step that launch a kernel on a GPU, where an RMS norm is one."""

    VIEWS = (
        "t",
        "permute",
        "transpose",
        "expand",
        "unsqueeze",
        "slice",
        "select",
        "detach",
        "alias",
        "view",
    )
    VIEWS += ("split", "split_with_sizes", "_unsafe_view")

    def __init__(self, monkeypatch):
        super().__init__()
        self.names, rms_norm = [], torch.nn.functional.rms_norm

        def one_kernel(*args):
            count = len(self.names)
            out = rms_norm(*args)
            self.names[count:] = ["rms_norm"]
            return out

        monkeypatch.setattr(torch.nn.functional, "rms_norm", one_kernel)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        self.names += [name] if name not in self.VIEWS else []
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_written_out_layer_launches_few_kernels_and_casts_nothing(
    name, dtype, tmp_path, monkeypatch
):
    counts = []
    for layers in (1, 2):
        path = architectures.checkpoint(
            tmp_path / f"{name}{layers}", name, num_hidden_layers=layers
        )
        model = load.load_model(
            reference.find_model(str(path)), precision="fp32", device="cpu"
        ).model.to(dtype)
        decoder = GraphDecoder(adapted(model), dtype)
        with torch.no_grad():
            _, steps = decoder._read([[5, 6, 7]], 4)
            with Launches(monkeypatch) as launches:
                steps._next(Decoding(1))
        counts.append(Counter(launches.names))
    counts[1].subtract(counts[0])
    assert sum(counts[1].values()) <= (28 if name == "qwen3" else 25), counts[1]
    assert counts[1]["_to_copy"] == 0


def test_quantized_layers_stay_apart_and_their_adapters_join(tokenizer):
    class Quantized(torch.nn.Linear):
        pass

    model = tiny_llama.model(
        tie_word_embeddings=False, initializer_range=0.2, attention_bias=True
    ).float()
    for layer in model.model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.__class__ = Quantized
    model = adapted(model)
    decoder = GraphDecoder(model)
    decoder._columns(1)
    assert {len(layer.qkv.separate) for layer in decoder._layers} == {3}
    assert {len(layer.gate_up.adapters.a) for layer in decoder._layers} == {8}
    ours, theirs = both(model, tokenizer)
    assert ours == theirs


def test_joined_weights_lie_in_memory_once(tokenizer):
    model = tiny_llama.model(tie_word_embeddings=False).float()
    names = {name for name, _ in model.named_parameters()}
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    decoder = GraphDecoder(model)
    decoder._columns(1)
    for block, layer in zip(model.model.layers, decoder._layers, strict=True):
        parts = (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj, layer.qkv)
        assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    assert {name for name, _ in model.named_parameters()} == names
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("tune", ["all", "lora"])
def test_weights_of_another_type_are_copied_once_a_batch(tokenizer, tune):
    model = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2)
    model = adapted(model) if tune == "lora" else model.float()
    stop, prompts = Stop(tokenizer, model, "</answer>"), [[5, 6, 7], [9, 9]]
    decoder = GraphDecoder(model, torch.bfloat16)
    before = decoder.decode(prompts, Decoding(16), stop)
    trained = [
        weight for name, weight in model.named_parameters() if tune == "all" or "lora_B" in name
    ]
    with torch.no_grad():
        for weight in trained:
            weight.mul_(-1)
    after = decoder.decode(prompts, Decoding(16), stop)
    decoder.release()  # before a loss that needs the memory
    assert not decoder._copies
    assert decoder.decode(prompts, Decoding(16), stop) == after
    assert (
        after == GraphDecoder(model, torch.bfloat16).decode(prompts, Decoding(16), stop) != before
    )


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.5, "top_p": 0.8, "top_k": 9, "min_p": 0.01}], ids=str
)
def test_a_graph_samples_what_its_steps_do_and_leaves_the_generator_where_they_do(
    model, tokenizer, cuda, sampling
):
    stop, prompts = Stop(tokenizer, model, "</answer>"), [[5, 6, 7], [8, 9]]
    results = []
    for graphs in (False, True):
        torch.manual_seed(3)
        decoder = GraphDecoder(model)
        decoder.graphs = graphs
        with cuda:
            batches = [
                decoder.decode(prompts, Decoding(12, **{"temperature": 0.7} | sampling), stop)
                for _ in range(2)
            ]
        results.append((batches, float(torch.rand(()))))
    assert results[0] == results[1]
    assert results[0][0][0] != results[0][0][1]
    assert cuda.captures == 1


def test_completions_of_one_prompt_differ_and_depend_on_the_generator(model, tokenizer):
    stop = Stop(tokenizer, model, "</answer>")
    decoder = GraphDecoder(model)
    prompts, hot = [[5, 6, 7]] * 4, Decoding(12, temperature=1.0)
    runs = [
        decoder.decode(prompts, hot, stop, torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(map(tuple, runs[0]))) == 4


def by_graphs(cuda, model, tokenizer):
    decoder = GraphDecoder(model)
    decoder.graphs = True
    prompts = [tokenizer.encode(text) for text in TEXTS]
    with cuda:
        return decoder, decoder.decode(prompts, Decoding(20), Stop(tokenizer, model, "</answer>"))


@pytest.fixture
def cuda(monkeypatch):
    return fake_cuda.FakeCuda(monkeypatch)


def test_graphs_give_the_texts_of_generate(model, tokenizer, cuda):
    decoder, ours = by_graphs(cuda, model, tokenizer)
    assert ours == both(model, tokenizer, 20)[1]
    assert decoder.graphs
    assert cuda.captures == 1
    assert (
        cuda.replays == 20
    )  # the first tokens are those of the prompts, and the graph is replayed once to check it


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"on_capture": lambda: float(torch.ones(1))}, "previous error during capture"),
        ({"step": lambda logits: float(logits.sum())}, "synchronizing"),
        ({"on_replay": lambda logits: logits.mul_(1.1)}, "its logits differ"),
        ({"on_replay": lambda logits: logits.fill_(math.nan)}, "its logits differ"),
    ],
    ids=["capture", "read by the host", "other logits", "not a number"],
)
def test_without_a_graph_that_works_the_steps_run_one_by_one(
    model, tokenizer, cuda, fault, message
):
    if read := fault.pop("step", None):
        step = cuda._next
        cuda._next = lambda *args: (logits := step(*args), read(logits))[0]
    vars(cuda).update(fault)
    with pytest.warns(UserWarning, match=f"no CUDA graph of this model.*{message}"):
        decoder, ours = by_graphs(cuda, model, tokenizer)
    assert ours == both(model, tokenizer, 20)[1]
    assert not decoder.graphs
    assert (cuda.stream, cuda.mode) == (cuda.main, 0)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory. Tried to allocate 1 GiB", "CUBLAS_STATUS_ALLOC_FAILED"]
)
@pytest.mark.filterwarnings("error:no CUDA graph")
def test_memory_that_runs_out_in_a_capture_is_raised_as_such(model, tokenizer, cuda, message):
    def full():
        raise RuntimeError(message)

    cuda.on_capture = full
    with pytest.raises(RuntimeError, check=out_of_memory):
        by_graphs(cuda, model, tokenizer)
    assert (cuda.stream, cuda.mode) == (cuda.main, 0)


def test_graphs_are_kept_until_weights_move_or_longer_rows_come(
    model, tokenizer, cuda, monkeypatch
):
    class Early(Stop):
        def __call__(self, ids):
            return len(ids) == 3 + ids[0] % 60  # rows end at different steps

        def cut(self, ids, start=0):
            return ids[: min(len(ids), 3 + ids[0] % 60)]

    monkeypatch.setattr(graph_decoder, "_MIN_ROWS", 1)
    stop = Early(tokenizer, model, "</answer>")
    stop.may_end[:] = True
    prompts = [[5 + row % 7, 9 + row] for row in range(64)]
    plain = GraphDecoder(model).decode(prompts, Decoding(48), stop)
    decoder, captures = GraphDecoder(model), []
    decoder.graphs = True
    adapter = model.get_submodule("base_model.model.model.layers.0.mlp.up_proj").lora_B["default"]
    own = adapter.weight.data

    def decode(prompts):
        before = cuda.captures
        with cuda:
            completions = decoder.decode(prompts, Decoding(48), stop)
        captures.append(cuda.captures - before)
        return completions

    assert decode(prompts) == decode(prompts) == plain
    assert 1 < captures[0] <= 4
    assert captures[1] == 0
    with torch.no_grad():
        own.mul_(-1)  # as an optimizer does
    changed = decode(prompts)
    assert changed == GraphDecoder(model).decode(prompts, Decoding(48), stop) != plain
    with torch.no_grad():
        own.mul_(-1)
    adapter.weight.data = own.clone()
    assert decode(prompts) == plain
    decode([[5] * 40, *prompts[1:]])
    assert [count > 0 for count in captures[2:]] == [False, True, True]
