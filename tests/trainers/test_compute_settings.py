"""How a step is computed changes what it costs and not what it is: compilation, bfloat16,
checkpointing, attention.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from builders import Gradients, assert_gradients, logged, make_trainer, tiny_model
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, TrainerCallback
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import import_utils

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, PackedStream
from headless_trainer.cli.pretrain import main
from headless_trainer.trainers.finite import check_precision
from headless_trainer.trainers.step import CARRIED

LENGTH = 16
# Its new name is one of transformers 5.23.
CHECKPOINTING = sorted(
    {"gradient_checkpointing", "activation_checkpointing"}
    & {field.name for field in dataclasses.fields(HeadlessTrainingArguments)}
)


def rows(tokenizer, count: int, lengths=(LENGTH,)) -> list[dict]:
    """Rows with documents that end inside them."""
    generator, end = (
        torch.Generator().manual_seed(1),
        tokenizer.sep_token_id or tokenizer.eos_token_id,
    )
    made = []
    for _, length in zip(range(count), itertools.cycle(lengths), strict=False):
        ids = torch.randint(5, len(tokenizer), (length,), generator=generator)
        ids[torch.randint(1, length, (2,), generator=generator)] = end
        made.append({"input_ids": ids})
    return made


class Graphs(TrainerCallback):
    """Counts what the compiler compiled, after each step."""

    def __init__(self):
        self.counts = []

    def on_step_end(self, args, state, control, **kwargs):
        self.counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def train(
    folder, task, tokenizer, *, data=None, attention="sdpa", dropout=0.0, callbacks=(), **settings
):
    objective = settings.get("objective", "headless")
    settings = {
        "max_steps": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2, "save_strategy": "no", "task": task, "mlm_probability": 0.3 if task == "mlm" else 0.15,
    } | settings  # fmt: skip
    gradients, data = Gradients(), rows(tokenizer, 34) if data is None else data
    model = tiny_model(task, len(tokenizer), objective, dropout=dropout, attention=attention)
    parameters = {"processing_class": tokenizer, "callbacks": [gradients, *callbacks]}
    if objective == "sampled_softmax":
        parameters["token_counts"] = torch.ones(len(tokenizer), dtype=torch.long)
    run = make_trainer(folder, model, data, settings, **parameters)
    run.train()
    return run, gradients.kept


def compiled_and_not(tmp_path, task, tokenizer, backend, **settings):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    graphs = Graphs()
    run, gradients = train(
        tmp_path / "compiled",
        task,
        tokenizer,
        callbacks=[graphs],
        torch_compile_backend=backend,
        **settings,
    )
    plain, want = train(tmp_path / "plain", task, tokenizer, **settings)
    torch._dynamo.reset()
    return run, gradients, graphs.counts, plain, want


def check_graphs(graphs: list[int]) -> None:
    assert 0 < graphs[0] == graphs[3], (
        "the fifth step of an epoch has a batch of 2 rows, the others have 4"
    )
    assert graphs[4] <= 2 * graphs[0] and graphs[4] == graphs[-1]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["headless", "sampled_softmax"])
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_the_trunk_is_compiled_once(tmp_path, task, tokenizer, objective):
    """Whatever the numbers of targets, and at most once again where the last batch of an epoch is
    smaller.
    """
    settings = {"negatives": "step", "isolate_documents": True, "max_steps": 6}
    settings["objective"] = objective
    run, gradients, graphs, plain, want = compiled_and_not(
        tmp_path, task, tokenizer, "eager", **settings
    )
    check_graphs(graphs)
    assert logged(run) == pytest.approx(logged(plain), rel=1e-6)
    assert_gradients(gradients, want, 1e-6)
    assert min(len(set(logged(plain, name))) for name in ("pool_tokens", "predicted_tokens")) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("task", "backend", "settings"), [
    ("clm", "inductor", {"isolate_documents": True}),  # what --torch_compile takes by default
    ("mlm", "inductor", {"isolate_documents": True}),
    ("clm", "inductor", {"sparse_embedding_updates": True}),
    ("mlm", "aot_eager", {"bf16": True}),  # inductor would take a minute on two cores
])  # fmt: skip
def test_compiled_with_its_backward(tmp_path, task, tokenizer, backend, settings):
    """Values of the uncompiled run, and a checkpoint like any other."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 6} | settings
    run, gradients, graphs, plain, want = compiled_and_not(
        tmp_path, task, tokenizer, backend, **settings
    )
    check_graphs(graphs)
    tolerance = 2e-2 if "bf16" in settings else 1e-4
    assert logged(run) == pytest.approx(logged(plain), rel=tolerance)
    if "isolate_documents" in settings:
        assert_gradients(gradients, want, tolerance)
    weights, others = (
        load_file(tmp_path / n / "checkpoint-6" / "model.safetensors")
        for n in ("compiled", "plain")
    )
    assert weights.keys() == others.keys()


@pytest.mark.parametrize("task", ["clm", pytest.param("mlm", marks=pytest.mark.slow)])
def test_bfloat16(tmp_path, task, tokenizer, monkeypatch, caplog):
    dtypes, compute_loss = [], HeadlessTrainer.compute_loss

    def watched(self, *args, **kwargs):
        loss = compute_loss(self, *args, **kwargs)
        dtypes.append(
            (
                loss.dtype,
                torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            )
        )
        return loss

    monkeypatch.setattr(HeadlessTrainer, "compute_loss", watched)
    settings = {"max_steps": 60, "data": rows(tokenizer, 8), "learning_rate": 3e-2}
    run, got = train(tmp_path / "half", task, tokenizer, bf16=True, **settings)
    assert set(dtypes) == {(torch.float32, torch.bfloat16)}
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    full, want = train(tmp_path / "full", task, tokenizer, **settings)
    assert (
        logged(run)[0] == pytest.approx(logged(full)[0], rel=1e-3)
        and logged(run)[0] != logged(full)[0]
    )
    got, want = (torch.cat([grad.flatten() for grad in grads.values()]) for grads in (got, want))
    assert torch.cosine_similarity(got, want, dim=0) > 0.999
    half, whole = (
        sum(logged(each)[-8:]) / 8 - sum(logged(each, "loss_floor")[-8:]) / 8
        for each in (run, full)
    )
    start = logged(full)[0] - logged(full, "loss_floor")[0]
    assert half < 0.8 * start and half == pytest.approx(whole, rel=0.15)
    assert "16-bit" not in caplog.text
    HeadlessTrainer(full.model.bfloat16(), full.args, processing_class=tokenizer)
    assert "The model has 16-bit weights, which lose small updates" in caplog.text


def test_dropout_that_the_backward_pass_would_draw_anew_is_refused():
    args = SimpleNamespace(device=torch.device("mps"), gradient_checkpointing=True, tf32=None)
    check_precision(args, tiny_model("clm"))
    with pytest.raises(
        ValueError, match="activation_checkpointing is True but torch draws other dropout .* on mps"
    ):
        check_precision(args, tiny_model("clm", dropout=0.1))


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("name", CHECKPOINTING)
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_checkpointing_recomputes_the_same_gradient(tmp_path, task, tokenizer, name):
    """With dropout: the recomputed forward draws the same."""
    settings = {"dropout": 0.2, "max_steps": 3}
    plain, want = train(tmp_path / "plain", task, tokenizer, **settings)
    run, got = train(tmp_path / "checkpointed", task, tokenizer, **{name: True}, **settings)
    checkpointed, not_checkpointed = (
        any(getattr(module, "gradient_checkpointing", False) for module in each.model.modules())
        for each in (run, plain)
    )
    assert checkpointed and not not_checkpointed
    assert logged(run) == logged(plain)
    assert (
        all(torch.equal(got[name], grad) for name, grad in want.items())
        and got.keys() == want.keys()
    )


ABSENT = [
    ("gpt2", "flash_attention_2"),
    ("bert", "org/flash-attn2"),
    ("gpt2", "flash"),
    ("gpt2", "flex_attention"),
]


@pytest.mark.parametrize(("model_type", "attention"), [*ABSENT, ("deberta-v2", "sdpa")])
def test_an_attention_that_is_not_there(model_type, attention, tmp_path, monkeypatch):
    for package in ("is_kernels_available", "is_flash_attn_2_available"):
        monkeypatch.setattr(import_utils, package, lambda *_: False)
    # Before any data.
    with pytest.raises(SystemExit, match=f"attn_implementation is '{attention}'"):
        main(["--model_type", model_type, "--attn_implementation", attention, "--train_file", "nothing.txt",
              "--output_dir", str(tmp_path), "--max_steps", "1", "--use_cpu"])  # fmt: skip


@torch.no_grad()
def assert_documents_are_alone(run, task: str, end: int, tolerance: float) -> None:
    batches, _ = run.get_batch_samples(iter(run.get_train_dataloader()), 2, run.args.device)
    pieces = 0
    model = run.model.eval()
    for batch in batches:
        inputs = dict(batch)
        predicted = set(inputs.pop(CARRIED).predicted.tolist())
        shown = inputs["input_ids"]
        hidden = model(**inputs).last_hidden_state
        for row in range(len(shown)):
            # Where documents end is read before masking, which never touches an end.
            ends = [
                0,
                *(1 + position for position in (shown[row] == end).nonzero().flatten().tolist()),
                shown.shape[1],
            ]
            for start, stop in itertools.pairwise(ends):
                if start < stop:
                    alone = model(
                        input_ids=shown[row : row + 1, start:stop], use_cache=False
                    ).last_hidden_state[0]
                    assert (hidden[row, start:stop] - alone).abs().max() < tolerance
                    pieces += 1
                    if task == "clm":
                        last = row * shown.shape[1] + stop - 1
                        assert last not in predicted, "the last token of a piece predicts nothing"
    assert pieces > 2 * len(batches) * 4


def flash_stand_in(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    cu_seq_lens_q=None,
    max_length_q=None,
    **_,
):
    """What flash attention computes, ``(B, T, H, D)``: rows are one document each unless the bounds
    of documents are given.
    """
    assert attention_mask is None
    rows, _, length, width = query.shape
    if cu_seq_lens_q is None:
        bounds = torch.arange(0, rows * length + 1, length)
    else:
        bounds = cu_seq_lens_q
        assert bounds.dtype == torch.int32 and bounds[0] == 0 and bounds[-1] == rows * length
        assert bounds.diff().max() <= max_length_q
    document = torch.searchsorted(bounds, torch.arange(rows * length), right=True)
    visible = (document[:, None] == document).tril()
    flat = (
        part.transpose(0, 1).reshape(1, -1, rows * length, width) for part in (query, key, value)
    )
    output = torch.nn.functional.scaled_dot_product_attention(
        *flat, attn_mask=visible, scale=scaling, enable_gqa=True
    )
    return output[0].transpose(0, 1).reshape(rows, length, -1, width), None


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
DECODERS = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neox": SIZES | {"intermediate_size": 64},
    "llama": SIZES | {"intermediate_size": 64, "num_key_value_heads": 1},
}


def isolating(
    folder, model_type: str, tokenizer, text_lines, attention=None, dtype=torch.float32, **settings
):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type, vocab_size=len(tokenizer), pad_token_id=0, **DECODERS[model_type]
    )
    model = AutoModel.from_config(config, attn_implementation=attention, dtype=dtype)
    texts = Dataset.from_dict({"text": text_lines[:40]}).to_iterable_dataset()
    rows = PackedStream(texts, tokenizer, max_seq_length=30)
    settings |= {
        "task": "clm",
        "isolate_documents": True,
        "max_steps": 1,
        "per_device_train_batch_size": 4,
    }
    settings["tf32"] = False  # an earlier torch_compile enabled it for the whole process
    return make_trainer(folder, model, rows, settings, processing_class=tokenizer)


@pytest.mark.parametrize("model_type", DECODERS)
def test_flash_attention_is_told_where_documents_end(
    tmp_path, clm_tokenizer, text_lines, monkeypatch, model_type
):
    """Positions that restart are enough for it in a batch of one row alone."""
    run = isolating(tmp_path, model_type, clm_tokenizer, text_lines)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "org/kernel", flash_stand_in)
    run.model.config._attn_implementation = "org/kernel"
    assert_documents_are_alone(run, "clm", clm_tokenizer.eos_token_id, 1e-5)


def test_tf32_stays_off_beside_torch_compile(tmp_path, clm_tokenizer, text_lines):
    torch.backends.cuda.matmul.allow_tf32 = True  # as accelerate does, for the whole process
    isolating(tmp_path, "gpt2", clm_tokenizer, text_lines, tf32=False)
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", DECODERS)
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention", "flash_attention_2"])
def test_isolated_documents_on_a_gpu(tmp_path, clm_tokenizer, text_lines, attention, model_type):
    if attention == "flash_attention_2" and not import_utils.is_flash_attn_2_available():
        pytest.skip("flash-attn is not installed")
    if attention == "flex_attention" and model_type == "gpt2":
        pytest.skip("GPT-2 has no flex attention")
    dtype, tolerance = (torch.bfloat16, 0.1) if "flash" in attention else (torch.float32, 1e-3)
    run = isolating(
        tmp_path, model_type, clm_tokenizer, text_lines, attention, dtype, use_cpu=False
    )
    assert run.model.config._attn_implementation == attention
    assert_documents_are_alone(run, "clm", clm_tokenizer.eos_token_id, tolerance)
