"""Every supported architecture trains, saves and loads; what cannot work is refused with the reason."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from architectures import (
    ARCHITECTURES,
    DEBERTA,
    ENCODER,
    LLAMA,
    WIDTH,
    make_config,
    make_model,
)
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headless_trainer.arguments import HeadlessTrainingArguments
from headless_trainer.models.candidate_head import CandidateHead
from headless_trainer.models.projection import find_projection
from headless_trainer.models.trunk import check_causal, find_trunk, infer_task
from headless_trainer.models.vocabulary_head import VocabularyHead
from headless_trainer.trainers.headless import HeadlessTrainer
from headless_trainer.trainers.step import CARRIED
from headless_trainer.trainers.vanilla import VanillaTrainer

ROWS, LENGTH = 8, 12


def make_trainer(trainer_class, model, folder, tokenizer, **settings):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 300, (ROWS, LENGTH), generator=generator)
    defaults = {
        "output_dir": str(folder),
        "objective": "vanilla" if trainer_class is VanillaTrainer else "headless",
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "weight_decay": 0.0,
        "mlm_probability": 0.5 if settings.get("task", infer_task(model)) == "mlm" else 0.15,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = HeadlessTrainingArguments(**defaults | settings)
    dataset = [{"input_ids": row} for row in rows]
    return trainer_class(model, args, train_dataset=dataset, processing_class=tokenizer)


@pytest.fixture
def tokenizer_for(mlm_tokenizer, clm_tokenizer):
    return lambda name: mlm_tokenizer if ARCHITECTURES[name].task == "mlm" else clm_tokenizer


def logged_losses(trainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


# Training --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["trunk", "language model"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_headless_trains_every_parameter_of_every_architecture(name, given, tmp_path, tokenizer_for):
    model = make_model(name, lm=given != "trunk")
    before = copy.deepcopy(find_trunk(model).state_dict())
    # the trunk of a bare AutoModel tells its task from the configuration, as the language model does from its class
    trainer = make_trainer(HeadlessTrainer, model, tmp_path, tokenizer_for(name))
    assert trainer.task == ARCHITECTURES[name].task
    assert trainer.model is find_trunk(model)
    trainer.train()
    losses = logged_losses(trainer)
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)

    after = trainer.model.state_dict()
    frozen = ["encoder.embed_positions.weight"] if name == "roformer" else []  # sines, which nothing trains
    assert [key for key in after if torch.equal(before[key], after[key])] == frozen

    trainer.save_model()
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert all(key.startswith("pooler.") for key in info["missing_keys"])
    state = loaded.state_dict()
    assert set(after) <= set(state)
    for key, value in after.items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vanilla_loss_and_gradients_are_those_of_the_full_logits(name, tmp_path, tokenizer_for):
    model = make_model(name, lm=True)
    find_trunk(model)  # removes the pooler, which the reference must not have either
    plain = copy.deepcopy(model)
    trainer = make_trainer(VanillaTrainer, model, tmp_path, tokenizer_for(name))
    plain.load_state_dict(model.state_dict())  # a padding id that is a token has been given a vector, and is trained
    plain.get_input_embeddings().padding_idx = None
    assert trainer.task == ARCHITECTURES[name].task
    batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 2, torch.device("cpu"))
    loss = sum(trainer.compute_loss(model, batch) for batch in batches)
    loss.backward()

    logits, labels = [], []
    for batch in batches:
        carried = batch[CARRIED]
        assert len(carried.predicted) > 4
        full = plain(**{key: value for key, value in batch.items() if key != CARRIED}).logits
        assert full.shape == (*batch["input_ids"].shape, 300)
        logits.append(full.flatten(0, 1)[carried.predicted])
        labels.append(carried.target_ids)
    expected = F.cross_entropy(torch.cat(logits), torch.cat(labels))
    expected.backward()

    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    wanted = dict(plain.named_parameters())
    seen = 0
    for key, parameter in model.named_parameters():
        got, want = parameter.grad, wanted[key].grad
        assert (got is None) == (want is None), key
        if got is not None:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
            seen += got.abs().sum() > 0
    assert seen > 5  # an all-zero gradient would match anything

    model.zero_grad()
    trainer.train()
    assert all(math.isfinite(value) for value in logged_losses(trainer)) and len(logged_losses(trainer)) == 2


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("name", ["bert", "gpt_neox"])
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_bf16_and_gradient_checkpointing_train(name, objective, tmp_path, tokenizer_for):
    trainer_class = HeadlessTrainer if objective == "headless" else VanillaTrainer
    losses = {}
    for kind, settings in {
        "plain": {},
        "bf16": {"bf16": True},
        "checkpointed": {"gradient_checkpointing": True},
    }.items():
        model = make_model(name, lm=True)
        trainer = make_trainer(trainer_class, model, tmp_path / kind, tokenizer_for(name), **settings)
        trainer.train()
        losses[kind] = logged_losses(trainer)
        assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
    assert losses["checkpointed"] == pytest.approx(losses["plain"], rel=1e-5)
    assert losses["bf16"] == pytest.approx(losses["plain"], rel=2e-2)
    assert losses["bf16"] != losses["plain"]  # autocast was on


# The trunk and its embedding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "albert", "mpnet"])
def test_find_trunk_removes_the_pooler(name):
    trunk = make_model(name)
    assert any(key.startswith("pooler.") for key in trunk.state_dict())
    assert find_trunk(trunk) is trunk
    assert not any(key.startswith("pooler.") for key in trunk.state_dict())
    assert trunk(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state.shape == (1, 3, WIDTH)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_find_trunk_of_a_language_model_is_its_base(name):
    model = make_model(name, lm=True)
    trunk = find_trunk(model)
    assert trunk is model.base_model and trunk is not model
    assert isinstance(trunk, type(make_model(name)))


@pytest.mark.parametrize(
    ("name", "projection"),
    [("electra", "embeddings_project"), ("albert", "encoder.embedding_hidden_mapping_in")],
)
def test_narrow_embeddings_are_widened_by_the_trunks_own_projection(name, projection):
    trunk = find_trunk(make_model(name))
    ids = torch.tensor([5, 6, 7])
    embedded = CandidateHead(trunk).vectors(ids)
    rows, linear = trunk.get_input_embeddings().weight[ids], trunk.get_submodule(projection)
    assert rows.shape == (3, 8) and embedded.shape == (3, WIDTH)
    torch.testing.assert_close(embedded, rows @ linear.weight.T + linear.bias)
    embedded.sum().backward()
    assert linear.weight.grad.abs().sum() > 0 and trunk.get_input_embeddings().weight.grad.abs().sum() > 0


def test_an_embedding_of_the_layers_width_is_used_as_it_is():
    for name in ("electra", "albert"):
        trunk = find_trunk(make_model(name, embedding_size=WIDTH))
        ids = torch.tensor([5, 6, 7])
        expected = trunk.get_input_embeddings()(ids)
        if name == "albert":  # which projects even then
            expected = trunk.encoder.embedding_hidden_mapping_in(expected)
        torch.testing.assert_close(CandidateHead(trunk).vectors(ids), expected)


def test_gemma_embeds_with_its_scale():
    trunk = make_model("gemma")
    ids = torch.tensor([5, 6, 7])
    torch.testing.assert_close(CandidateHead(trunk).vectors(ids), trunk.embed_tokens.weight[ids] * WIDTH**0.5)


@pytest.mark.parametrize("training", [True, False])
def test_the_head_leaves_the_mode_and_the_attention_of_the_trunk(training):
    trunk = make_model("gpt_neox").train(training)
    attention = trunk.config._attn_implementation
    CandidateHead(trunk)
    check_causal(trunk)
    assert trunk.training is training and trunk.config._attn_implementation == attention != "eager"


def test_checks_run_where_the_attention_kernel_does_not(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("this kernel needs a GPU")

    for name in ("gpt_neox", "llama", "bert"):
        model = make_model(name, lm=True)
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", refuse)
        with pytest.raises(RuntimeError, match="needs a GPU"):
            model(input_ids=torch.tensor([[5, 6]]))
        CandidateHead(find_trunk(model))
        VocabularyHead(model)
        monkeypatch.undo()


# Refusals ----------------------------------------------------------------------------------------------------------------

SEQ2SEQ = {
    "t5": {"d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    "bart": {
        "d_model": WIDTH,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 32,
    },
}


@pytest.mark.parametrize(("model_type", "class_name"), [("t5", "T5Model"), ("bart", "BartModel")])
def test_encoder_decoders_are_refused(model_type, class_name):
    model = AutoModel.from_config(AutoConfig.for_model(model_type, vocab_size=300, **SEQ2SEQ[model_type]))
    with pytest.raises(ValueError, match=f"^model {class_name} is an encoder-decoder, which .* Use an encoder"):
        find_trunk(model)


def test_a_model_without_token_embedding_is_refused():
    config = AutoConfig.for_model(
        "vit", hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=32
    )
    with pytest.raises(
        ValueError, match=r"^model ViTModel has no token embedding \(torch\.nn\.Embedding\), so there is"
    ):
        find_trunk(AutoModel.from_config(config))


@pytest.mark.parametrize("model", [nn.Linear(2, 2), None])
def test_what_is_no_transformers_model_is_refused(model):
    with pytest.raises(ValueError, match=f"must be a transformers PreTrainedModel, got {type(model).__name__}"):
        find_trunk(model)


def test_embedding_and_output_widths_that_differ_are_refused():
    trunk = make_model("gpt_neox")
    trunk.set_input_embeddings(nn.Embedding(300, 2 * WIDTH))
    trunk.embed_in.register_forward_hook(
        lambda module, args, output: output[..., :WIDTH] if args[0].dim() > 1 else None
    )
    embedding = trunk.get_input_embeddings()
    trunk.get_input_embeddings = lambda: nn.Embedding(300, 2 * WIDTH)  # what the trunk reads, but not what it returns
    with pytest.raises(
        ValueError, match="^model GPTNeoXModel has outputs of width 16 and embeddings of width 32: contrastive weight"
    ):
        CandidateHead(trunk)
    assert embedding.weight.shape == (300, 2 * WIDTH)


GEMMA2 = LLAMA | {"query_pre_attn_scalar": 8, "vocab_size": 300}


@pytest.mark.parametrize(
    ("model_type", "settings", "named"),
    [
        ("gemma2", GEMMA2, r"final_logit_softcapping=30\.0"),
        ("granite", LLAMA | {"vocab_size": 300, "logits_scaling": 8.0}, r"logits_scaling=8\.0"),
        ("cohere", LLAMA | {"vocab_size": 300}, r"logit_scale=0\.0625"),
        # a name that is not in the table: found because the logits are not what the projection returns
        ("deberta-v2", ENCODER | DEBERTA | {"vocab_size": 300, "legacy": False}, "a head"),
    ],
)
def test_vanilla_refuses_heads_that_change_their_logits(model_type, settings, named):
    lm_class = AutoModelForMaskedLM if model_type == "deberta-v2" else AutoModelForCausalLM
    model = lm_class.from_config(AutoConfig.for_model(model_type, **settings))
    with pytest.raises(ValueError, match=f"^model {type(model).__name__} has {named} that changes its logits after"):
        VocabularyHead(model)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [("gemma2", GEMMA2 | {"final_logit_softcapping": None}), ("granite", LLAMA | {"vocab_size": 300})],
)
def test_vanilla_takes_them_once_the_setting_is_off(model_type, settings):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    assert VocabularyHead(model).projection is model.lm_head


def test_vanilla_refuses_a_trunk(tmp_path, clm_tokenizer):
    message = "^model GPTNeoXModel has no vocabulary projection: objective 'vanilla' needs a ...ForMaskedLM"
    with pytest.raises(ValueError, match=message):
        make_trainer(VanillaTrainer, make_model("gpt_neox"), tmp_path, clm_tokenizer)


@pytest.mark.parametrize("name", [name for name, architecture in ARCHITECTURES.items() if architecture.task == "mlm"])
def test_next_tokens_are_not_predicted_by_a_trunk_that_reads_them(name):
    with pytest.raises(ValueError, match="^task is 'clm' but the outputs of model .* depend on the tokens that follow"):
        check_causal(find_trunk(make_model(name)))


@pytest.mark.parametrize("name", [name for name, architecture in ARCHITECTURES.items() if architecture.task == "clm"])
def test_decoders_are_causal(name):
    check_causal(make_model(name))


def test_a_bert_told_to_be_a_decoder_is_causal():
    check_causal(make_model("bert", is_decoder=True))


# Tasks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_infer_task_from_class_trunk_and_configuration(name):
    task = ARCHITECTURES[name].task
    assert infer_task(make_config(name)) == task
    assert infer_task(make_model(name)) == task
    assert infer_task(make_model(name, lm=True)) == task


def test_infer_task_believes_the_class_before_the_architecture():
    model = AutoModelForCausalLM.from_config(make_config("bert", is_decoder=True))
    assert type(model).__name__ == "BertLMHeadModel"
    assert infer_task(model) == "clm"
    assert infer_task(AutoModelForMaskedLM.from_config(make_config("bert"))) == "mlm"


@pytest.mark.parametrize("model_type", ["vit", "clip"])
def test_infer_task_refuses_the_unknown(model_type):
    config = AutoConfig.for_model(model_type)
    with pytest.raises(
        ValueError, match=f"cannot be told from model {type(config).__name__}: set task to 'mlm' or 'clm'"
    ):
        infer_task(config)


# The vocabulary head -----------------------------------------------------------------------------------------------------


def head_and_batch(name: str = "gpt_neox", seed: int = 0, **changes):
    model = make_model(name, lm=True, seed=seed, **changes)
    ids = torch.randint(5, 300, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    labels = torch.where(torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5, ids, -100)
    return model, VocabularyHead(model), ids, labels


def predicted(labels):
    """Positions counted over the rows, and targets."""
    positions = (labels.flatten() >= 0).nonzero()[:, 0]
    return positions, labels.flatten()[positions]


def reference(model, ids, labels):
    logits = model(input_ids=ids).logits
    return F.cross_entropy(logits[labels >= 0], labels[labels >= 0], reduction="sum")


@pytest.mark.parametrize("name", ["bert", "gpt_neox", "opt-projected", "xlm", "electra"])
def test_the_head_can_be_called_again_and_between_other_forwards(name):
    model, head, ids, labels = head_and_batch(name)
    model.eval()
    plain = model(input_ids=ids).logits
    assert plain.shape == (2, LENGTH, 300)
    expected = F.cross_entropy(plain[labels >= 0], labels[labels >= 0], reduction="sum")
    for _ in range(2):
        torch.testing.assert_close(head.loss(model, {"input_ids": ids}, *predicted(labels)), expected)
        hidden = head.hidden(model, {"input_ids": ids}, predicted(labels)[0])
        scores = F.linear(hidden, head.projection.weight, head.projection.bias)
        torch.testing.assert_close(scores, plain[labels >= 0])
        torch.testing.assert_close(model(input_ids=ids).logits, plain)
    with torch.no_grad():
        model.base_model(input_ids=ids, output_hidden_states=True)
    torch.testing.assert_close(head.loss(model, {"input_ids": ids}, *predicted(labels)), expected)


@pytest.mark.parametrize("name", ["bert", "gpt_neox"])
def test_the_head_with_nothing_to_predict_is_zero_and_attached(name):
    model, head, ids, labels = head_and_batch(name)
    loss = head.loss(model, {"input_ids": ids}, *predicted(torch.full_like(labels, -100)))
    assert loss.item() == 0
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.base_model.parameters())
    assert head.hidden(model, {"input_ids": ids}, torch.empty(0, dtype=torch.long)).shape == (0, 16)


def test_the_head_never_makes_the_full_logits():
    model, head, ids, labels = head_and_batch()
    shapes = []
    head.projection.register_forward_hook(lambda module, args, output: shapes.append((args[0].shape, output.shape)))
    head.loss(model, {"input_ids": ids}, *predicted(labels))
    assert shapes == [((1, int((labels >= 0).sum()), WIDTH), ())]


def test_the_head_recovers_from_a_forward_that_failed():
    model, head, ids, labels = head_and_batch()
    with pytest.raises(IndexError):
        head.loss(model, {"input_ids": ids + 300}, *predicted(labels))
    assert model(input_ids=ids).logits.shape == (2, LENGTH, 300)
    torch.testing.assert_close(head.loss(model, {"input_ids": ids}, *predicted(labels)), reference(model, ids, labels))


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_with_a_head_is_saved_and_generates_as_without(tied, tmp_path):
    model, head, ids, labels = head_and_batch(tie_word_embeddings=tied)
    plain = make_model("gpt_neox", lm=True, tie_word_embeddings=tied).eval()
    head.loss(model, {"input_ids": ids}, *predicted(labels))
    model.eval()
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    generated = model.generate(ids, **settings)
    assert generated.shape == (2, LENGTH + 5)
    torch.testing.assert_close(generated, plain.generate(ids, **settings))
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(loaded(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=0, atol=0)


@pytest.mark.parametrize("copied", ["deepcopy", "torch.save"])
def test_a_copy_of_a_model_with_a_head_is_independent(copied):
    model, head, ids, labels = head_and_batch()
    if copied == "deepcopy":
        other = copy.deepcopy(model)
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(input_ids=ids).logits.abs().sum() == 0  # its projection reads its own weights
    assert model(input_ids=ids).logits.abs().sum() > 0
    torch.testing.assert_close(head.loss(model, {"input_ids": ids}, *predicted(labels)), reference(model, ids, labels))
    log_size = math.log(300) * int((labels >= 0).sum())
    assert VocabularyHead(other).loss(other, {"input_ids": ids}, *predicted(labels)).item() == pytest.approx(
        log_size, rel=1e-5
    )


def test_two_heads_on_one_model_both_work():
    model, first, ids, labels = head_and_batch()
    second = VocabularyHead(model)
    expected = reference(model, ids, labels)
    for head in (first, second, first):
        torch.testing.assert_close(head.loss(model, {"input_ids": ids}, *predicted(labels)), expected)


def test_headless_next_token_prediction_refuses_an_encoder(tmp_path, clm_tokenizer):
    with pytest.raises(ValueError, match="^task is 'clm' but the outputs of model BertModel depend on the tokens that"):
        make_trainer(HeadlessTrainer, make_model("bert"), tmp_path, clm_tokenizer, task="clm")


@pytest.mark.parametrize("trainer_class", [HeadlessTrainer, VanillaTrainer])
def test_a_trained_model_can_be_copied_and_pickled(trainer_class, tmp_path, clm_tokenizer):
    trainer = make_trainer(trainer_class, make_model("gpt_neox", lm=True), tmp_path, clm_tokenizer)
    trainer.train()
    ids = torch.arange(5, 15)[None]
    expected = trainer.model.eval()(input_ids=ids)[0]
    torch.testing.assert_close(copy.deepcopy(trainer.model)(input_ids=ids)[0], expected)
    buffer = io.BytesIO()
    torch.save(trainer.model, buffer)
    size = sum(parameter.numel() * 4 for parameter in trainer.model.parameters())
    assert buffer.tell() < 2 * size + 100_000  # neither the trainer nor its optimizer came along


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_find_projection_knows_heads_that_read_the_trunk(name):
    model = make_model(name, lm=True)
    assert find_projection(model) is model.get_output_embeddings()
    if ARCHITECTURES[name].task == "clm" or name in ("xlm", "eurobert"):
        find_projection(model, of_trunk=True)
    else:
        with pytest.raises(
            ValueError, match="^model .*ForMaskedLM has layers between its trunk and its vocabulary proj"
        ):
            find_projection(model, of_trunk=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_the_head_compiles_and_is_not_compiled_again_and_again(name):
    model, head, ids, labels = head_and_batch(name)
    compiled = torch.compile(model, backend="eager")
    torch._dynamo.utils.counters.clear()
    graphs = []
    for count in range(2, 10):
        labels = torch.full_like(ids, -100)
        labels[:, :count] = ids[:, :count]  # another number of predictions each time
        expected = reference(model, ids, labels)
        torch.testing.assert_close(head.loss(compiled, {"input_ids": ids}, *predicted(labels)), expected)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0 and graphs[1] == graphs[-1]  # at the second size the compiler learns that sizes vary
