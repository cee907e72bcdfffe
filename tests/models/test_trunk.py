"""Every supported architecture trains, saves and loads; what cannot work is refused with the
reason.
"""

import copy
import io
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from architectures import ARCHITECTURES, LLAMA, WIDTH, make_config, make_model
from builders import attached_head, logged, make_trainer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    FunnelBaseModel,
    FunnelConfig,
    Gemma4Config,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headless_trainer.models.candidate_head import CandidateHead
from headless_trainer.models.lm_head import attach_lm_head
from headless_trainer.models.projection import find_projection
from headless_trainer.models.trunk import (
    check_direction,
    check_headless,
    drop_pooler,
    find_trunk,
    infer_task,
    saved_class_with_head,
)
from headless_trainer.models.vocabulary_head import VocabularyHead
from headless_trainer.objective.losses import vocabulary_cross_entropy
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.evaluation import vocabulary_scores
from headless_trainer.trainers.step import CARRIED, predictions

ROWS, LENGTH = 8, 12


def trainer_of(objective, model, folder, tokenizer, token_counts=None, **settings):
    rows = torch.randint(5, 300, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    settings = {
        "objective": objective, "max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2, "weight_decay": 0.0, "save_strategy": "no",
        "mlm_probability": 0.5 if settings.get("task", infer_task(model)) == "mlm" else 0.15,
    } | settings  # fmt: skip
    return make_trainer(
        folder,
        model,
        [{"input_ids": row} for row in rows],
        settings,
        processing_class=tokenizer,
        token_counts=token_counts,
    )


@pytest.fixture
def tokenizer_for(mlm_tokenizer, clm_tokenizer):
    return lambda name: mlm_tokenizer if ARCHITECTURES[name].task == "mlm" else clm_tokenizer


@pytest.mark.parametrize("given", ["trunk", "language model"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_headless_trains_every_parameter_of_every_architecture(
    name, given, tmp_path, tokenizer_for
):
    model = make_model(name, lm=given != "trunk")
    before = copy.deepcopy(find_trunk(model).state_dict())
    # the trunk of a bare AutoModel tells its task from the configuration, as the language model
    # does from its class
    trainer = trainer_of("headless", model, tmp_path, tokenizer_for(name))
    assert trainer.task == ARCHITECTURES[name].task
    assert trainer.model is find_trunk(model)
    trainer.train()
    losses = logged(trainer)
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)

    after = trainer.model.state_dict()
    # Sines, which nothing trains.
    frozen = ["encoder.embed_positions.weight"] if name == "roformer" else []
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
def test_sampled_softmax_trains_the_trunk_and_the_head_of_every_architecture(
    name, tmp_path, tokenizer_for
):
    model = make_model(name, lm=True)
    drop_pooler(find_trunk(model))
    before = copy.deepcopy(model.state_dict())
    counts = torch.ones(300, dtype=torch.long)
    trainer = trainer_of("sampled_softmax", model, tmp_path, tokenizer_for(name), counts)
    trainer.train()
    losses = logged(trainer)
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)

    after = trainer.model.state_dict()
    # Sines, which nothing trains.
    frozen = ["roformer.encoder.embed_positions.weight"] if name == "roformer" else []
    assert [key for key in after if torch.equal(before[key], after[key])] == frozen


# End in an RMSNorm without a bias in the head, or have layers in the head that cannot be the
# identity.
WITHOUT_FREE_HEAD = [
    "albert", "electra", "eurobert", "gemma", "llama", "olmo2", "opt-projected", "qwen3"
]  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_which_architectures_have_a_free_head(name):
    trunk, counts = make_model(name), torch.arange(300)
    if name not in WITHOUT_FREE_HEAD:
        attach_lm_head(trunk, counts)
        return
    with pytest.raises(ValueError, match=f"{type(make_model(name, lm=True)).__name__}"):
        attach_lm_head(trunk, counts)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vanilla_loss_and_gradients_are_those_of_the_full_logits(name, tmp_path, tokenizer_for):
    model = make_model(name, lm=True)
    drop_pooler(find_trunk(model))  # which the reference must not have either
    plain = copy.deepcopy(model)
    trainer = trainer_of("vanilla", model, tmp_path, tokenizer_for(name))
    # A padding id that is a token has been given a vector, and is trained.
    plain.load_state_dict(model.state_dict())
    plain.get_input_embeddings().padding_idx = None
    assert trainer.task == ARCHITECTURES[name].task
    batches, _ = trainer.get_batch_samples(
        iter(trainer.get_train_dataloader()), 2, torch.device("cpu")
    )
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
            torch.testing.assert_close(
                got, want, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}"
            )
            seen += got.abs().sum() > 0
    assert seen > 5  # an all-zero gradient would match anything

    model.zero_grad()
    trainer.train()
    assert all(math.isfinite(value) for value in logged(trainer)) and len(logged(trainer)) == 2


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_trunk_task_and_projection_of_every_architecture(name):
    model, trunk, task = make_model(name, lm=True), make_model(name), ARCHITECTURES[name].task
    assert {infer_task(each) for each in (make_config(name), trunk, model)} == {task}
    assert find_projection(model) is model.get_output_embeddings()
    if task == "clm" or name in ("xlm", "eurobert"):
        find_projection(model, of_trunk=True)
    else:
        with pytest.raises(ValueError, match="model .*ForMaskedLM has layers between"):
            find_projection(model, of_trunk=True)
    assert find_trunk(model) is model.base_model is not model and isinstance(
        model.base_model, type(trunk)
    )
    pooled = any(key.startswith("pooler.") for key in trunk.state_dict())
    assert pooled == (name in ("bert", "roberta", "xlm-roberta", "albert", "mpnet"))
    assert find_trunk(trunk) is trunk
    drop_pooler(trunk)
    assert not any(key.startswith("pooler.") for key in trunk.state_dict())
    check_direction(trunk, task)
    other = "mlm" if task == "clm" else "clm"
    refusal = f"task is '{other}' but the outputs of model .*Model (do not )?depend"
    with pytest.raises(ValueError, match=refusal):
        check_direction(trunk, other)


@pytest.mark.parametrize("model", [None, torch.nn.Linear(2, 2)])
def test_what_is_no_model_has_no_task(model):
    with pytest.raises(
        ValueError, match=f"must be a transformers PreTrainedModel, got {type(model).__name__}"
    ):
        infer_task(model)


@pytest.mark.parametrize(("name", "size", "projection"), [
    ("electra", 8, "embeddings_project"), ("albert", 8, "encoder.embedding_hidden_mapping_in"), ("electra", WIDTH, None),
    ("albert", WIDTH, "encoder.embedding_hidden_mapping_in"),  # which projects at the width of its layers even then
    ("gemma", WIDTH, None),
])  # fmt: skip
def test_vectors_are_as_the_trunk_embeds(name, size, projection):
    trunk = find_trunk(make_model(name, **{} if name == "gemma" else {"embedding_size": size}))
    ids = torch.tensor([5, 6, 7])
    embedded, expected = CandidateHead(trunk).vectors(ids), trunk.get_input_embeddings().weight[ids]
    assert expected.shape == (3, size) and embedded.shape == (3, WIDTH)
    if projection:
        linear = trunk.get_submodule(projection)
        expected = expected @ linear.weight.T + linear.bias
    torch.testing.assert_close(embedded, expected * WIDTH**0.5 if name == "gemma" else expected)
    embedded.sum().backward()
    assert trunk.get_input_embeddings().weight.grad.any() and (
        not projection or linear.weight.grad.any()
    )


@pytest.mark.parametrize(
    ("name", "training"), [("gpt_neox", True), ("llama", False), ("bert", True)]
)
def test_checks_run_where_the_attention_kernel_does_not_and_leave_it(monkeypatch, name, training):
    def refuse(*args, **kwargs):
        raise RuntimeError("this kernel needs a GPU")

    model = make_model(name, lm=True).train(training)
    attention = model.config._attn_implementation
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, attention, refuse)
    with pytest.raises(RuntimeError, match="needs a GPU"):
        model(input_ids=torch.tensor([[5, 6]]))
    CandidateHead(find_trunk(model))
    attached_head(model)
    assert model.training is training and model.config._attn_implementation == attention != "eager"


OTHERS = {
    "t5": {
        "d_model": WIDTH,
        "d_kv": 8,
        "d_ff": 24,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 300,
    },
    "vit": {
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
    },
}


@pytest.mark.parametrize(("model", "text"), [
    ("t5", "model T5Model is an encoder-decoder"),
    ("vit", "model ViTModel shows no token embedding"),
    (nn.Linear(2, 2), "PreTrainedModel, got Linear"),
    (None, "PreTrainedModel, got NoneType"),
])  # fmt: skip
def test_what_is_no_language_model_is_refused(model, text):
    if isinstance(model, str):
        model = AutoModel.from_config(AutoConfig.for_model(model, **OTHERS[model]))
    with pytest.raises(ValueError, match=text):
        find_trunk(model)


class OwnConfig(PreTrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=20, hidden_size=16, **settings):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        super().__init__(**settings)


class OwnTrunk(PreTrainedModel):
    """A model of one's own that returns a tuple."""

    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids=None, **kwargs):
        return (self.embedding(input_ids),)


class OwnModel(OwnTrunk):
    """One with layers that are no model below its head."""

    base_model_prefix = "layers"

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(self.embedding, nn.Linear(16, 16))
        self.head = nn.Linear(16, config.vocab_size)

    def get_output_embeddings(self):
        return self.head


def test_models_of_ones_own_are_refused_with_what_they_lack():
    with pytest.raises(ValueError, match="OwnModel has a Sequential below its head, which is no"):
        find_trunk(OwnModel(OwnConfig()))
    trunk = find_trunk(OwnTrunk(OwnConfig()))
    with pytest.raises(ValueError, match="OwnTrunk returns a tuple without last_hidden_state"):
        check_direction(trunk, "clm")
    with pytest.raises(ValueError, match="OwnTrunk has one token, so that there is nothing"):
        find_trunk(OwnTrunk(OwnConfig(vocab_size=1)))


def test_embedding_and_output_widths_that_differ_are_refused():
    trunk = make_model("gpt_neox")
    trunk.get_input_embeddings = lambda: nn.Embedding(300, 2 * WIDTH)  # not what it returns
    with pytest.raises(
        ValueError, match="model GPTNeoXModel has outputs of width 16 and embeddings of width 32"
    ):
        CandidateHead(trunk)


def test_a_trunk_with_fewer_outputs_than_tokens_is_refused():
    sizes = {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16, "block_sizes": [1, 1]}
    trunk = FunnelBaseModel(FunnelConfig(vocab_size=300, **sizes))
    with pytest.raises(ValueError, match="model FunnelBaseModel has 4 outputs for 8 tokens"):
        CandidateHead(trunk)


GEMMA2 = LLAMA | {"query_pre_attn_scalar": 8, "vocab_size": 300}


def test_a_head_with_layers_after_its_projection_is_refused():
    model = make_model("deberta-v2", lm=True, legacy=False)
    with pytest.raises(
        ValueError, match="model DebertaV2ForMaskedLM changes its logits after the projection"
    ):
        attached_head(model)


def test_the_cap_of_a_model_of_several_modalities_is_that_of_its_text_model():
    torch.manual_seed(0)
    text = LLAMA | {
        "vocab_size": 300,
        "vocab_size_per_layer_input": 300,
        "hidden_size_per_layer_input": 4,
        "global_head_dim": 8,
        "num_kv_shared_layers": 0,
        "final_logit_softcapping": 2.0,
    }
    config = Gemma4Config(text_config=text, vision_config=None, audio_config=None)
    model = AutoModelForCausalLM.from_config(config)
    model.lm_head.weight.data.normal_(std=0.5)
    head = attached_head(model)
    assert head.softcap == 2.0
    ids = torch.arange(5, 15)[None]
    predicted = torch.arange(9)
    targets = ids[0, 1:]

    def loss_of(hidden, weight, bias):
        return vocabulary_cross_entropy(hidden, targets, weight, bias, softcap=head.softcap)

    logits = model(input_ids=ids).logits[0, :-1]
    loss = head.within(model, {"input_ids": ids}, predicted, loss_of)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets))


@pytest.mark.parametrize(("architecture", "has_head"), [
    ("GPT2LMHeadModel", True), ("LlamaForCausalLM", True), ("BertForMaskedLM", True), ("XLMWithLMHeadModel", True),
    ("ReformerModelWithLMHead", True), ("Gemma3ForConditionalGeneration", True), ("BertForPreTraining", True),
    ("BertModel", False), ("XLMRobertaModel", False), ("XLMForSequenceClassification", False),
    ("LayoutLMModel", False), ("ElectraForPreTraining", False), ("FunnelForPreTraining", False),
])  # fmt: skip
def test_the_class_that_wrote_a_checkpoint_says_whether_it_has_a_head(architecture, has_head):
    config = AutoConfig.for_model("bert", architectures=[architecture])
    assert saved_class_with_head(config) == (architecture if has_head else None)
    if has_head:
        with pytest.raises(ValueError, match=f"holds a {architecture}, which already has a head"):
            check_headless(config, "somewhere")
    else:
        check_headless(config, "somewhere")


@pytest.mark.parametrize(("model_type", "settings", "scale", "softcap"), [
    ("gemma2", GEMMA2 | {"final_logit_softcapping": 2.0}, 1.0, 2.0),
    ("granite", LLAMA | {"vocab_size": 300, "logits_scaling": 0.25}, 4.0, None),
    ("cohere", LLAMA | {"vocab_size": 300, "logit_scale": 3.0}, 3.0, None),
])  # fmt: skip
def test_scaled_and_capped_heads_are_trained_as_they_are(
    model_type, settings, scale, softcap, tmp_path, clm_tokenizer
):
    """Loss and every gradient from the model's own logits: whole, in chunks, sampled, and the
    scores of an evaluation.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **settings), dtype=torch.float64
    )
    model.lm_head.weight.data.zero_()  # scores that hide a cap
    assert softcap is None or attached_head(model).softcap == softcap
    model.lm_head.weight.data.normal_(std=0.5)  # scores that a cap bends
    counts, settings = (
        torch.arange(300),
        {"objective": "sampled_softmax", "task": "clm", "sampled_negatives": 75},
    )
    rows = [{"input_ids": torch.arange(20)}, {"input_ids": torch.arange(20, 40)}]
    run = make_trainer(
        tmp_path, model, rows, settings, token_counts=counts, processing_class=clm_tokenizer
    )
    head = run.head
    assert head.scale == pytest.approx(scale, rel=1e-6) and head.softcap == softcap
    (batch,), _ = run.get_batch_samples(iter(run.get_train_dataloader()), 1, torch.device("cpu"))
    inputs, carried = (
        {name: value for name, value in batch.items() if name != CARRIED},
        batch[CARRIED],
    )
    positions, targets, pool = carried.predicted, carried.target_ids, carried.candidates[0].pool
    logits = model(**inputs).logits.flatten(0, 1)[positions]
    want = F.cross_entropy(logits, targets)
    expected = len(targets) * log_prior(counts).exp()[pool.ids] + 75 / 300
    weighted = logits[:, pool.ids] + (pool.counts / expected).log()
    own = logits.gather(1, targets[:, None])  # a target counts once in its own row
    others = weighted.masked_fill(pool.ids == targets[:, None], -torch.inf)
    want_sampled = (torch.cat([others, own], 1).logsumexp(1) - own[:, 0]).mean()

    def exact(backend):
        compute = partial(vocabulary_cross_entropy, softcap=softcap, backend=backend)
        return head.within(
            model, inputs, positions, lambda hidden, *leaves: compute(hidden, targets, *leaves)
        )

    losses = (
        (want, exact("dense")),
        (want, exact("chunked")),
        (want_sampled, run.compute_loss(model, dict(batch))),
    )
    for wanted, loss in losses:
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
        pair = (
            torch.autograd.grad(each, [*model.parameters()], retain_graph=True)
            for each in (loss, wanted)
        )
        for found, gradient in zip(*pair, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-7)
    hidden = head.hidden(model, inputs, positions).detach()
    scores = vocabulary_scores(hidden, targets, head)["cross_entropy"]
    assert scores.mean().item() == pytest.approx(want.item(), rel=1e-5)
    # An ordinary model again.
    torch.testing.assert_close(model(**inputs).logits.flatten(0, 1)[positions], logits)


def other(model_type: str, kind=AutoModel, dtype=torch.float32, **settings):
    return kind.from_config(
        AutoConfig.for_model(model_type, **LLAMA | {"vocab_size": 40} | settings), dtype=dtype
    )


def test_trying_a_sparse_attention_leaves_it_sparse():
    """At a short row BigBird would change to full attention for good."""
    model = other("big_bird", attention_type="block_sparse", block_size=4, num_random_blocks=1)
    CandidateHead(find_trunk(model))
    assert model.attention_type == "block_sparse" == model.encoder.attention_type


BART = {
    "d_model": 16,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "encoder_layers": 1,
}
LLAMA4 = {"num_local_experts": 2, "intermediate_size_mlp": 24}
MINICPM = {"num_key_value_heads": 2, "dim_model_base": 8}
GEMMA3N = {
    "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "altup_num_inputs": 2,
    "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0], "layer_types": ["full_attention"] * 2,
    "final_logit_softcapping": 2.0,
}  # fmt: skip
CAUSAL = {"kind": AutoModelForCausalLM}
# Its outputs are wider than its embeddings.
MOBILEBERT = {
    "kind": AutoModelForMaskedLM,
    "embedding_size": WIDTH // 2,
    "intra_bottleneck_size": WIDTH // 2,
}


@pytest.mark.parametrize(("use", "name", "settings", "said"), [
    (VocabularyHead, "esm", {"kind": AutoModelForMaskedLM, "mask_token_id": 4, "pad_token_id": 1}, "changes its logits.* or --objective headless"),
    (VocabularyHead, "mobilebert", MOBILEBERT, r"changes its logits.* use a model whose head ends in a projection\.$"),
    (VocabularyHead, "recurrent_gemma", CAUSAL | {"num_hidden_layers": 3, "dtype": torch.bfloat16}, "changes its logits"),
    (find_trunk, "bart", BART | CAUSAL | {"is_encoder_decoder": False}, "BartForCausalLM shows no token embedding"),
    (find_trunk, "llama4_text", LLAMA4 | CAUSAL, "has a head but names no part below it: pass its AutoModel"),
    (attach_lm_head, "llama4_text", LLAMA4, "Llama4ForCausalLM names no part below its head: use the trunk alone"),
    (attach_lm_head, "minicpm3", MINICPM, "MiniCPM3Model always applies logits_scaling: it gets no free head"),
    (attach_lm_head, "gemma3n_text", GEMMA3N, "Gemma3nTextModel always applies final_logit_softcapping"),
])  # fmt: skip
def test_architectures_that_get_no_head_are_refused(use, name, settings, said):
    """A bias or cap after the projection, half an encoder-decoder, no name for the trunk, scales
    that stay.
    """
    model = other(name, **settings)
    with pytest.raises(ValueError, match=said):
        use(model, init="embeddings") if use is attach_lm_head else use(model)


def test_a_cap_in_a_configuration_that_takes_no_none_is_undone_for_a_loss():
    model = other("gemma3n_text", **GEMMA3N | CAUSAL)
    head = attached_head(model)
    big = head.within(
        model,
        {"input_ids": torch.arange(4)[None]},
        torch.arange(3),
        lambda hidden, *_: hidden.new_full((), 9.0),
    )
    assert (head.softcap, big.item(), model.config.final_logit_softcapping) == (2.0, 9.0, 2.0)


def test_a_factor_of_rounded_logits_is_found():
    head = attached_head(
        other("granite", dtype=torch.bfloat16, vocab_size=2_000, logits_scaling=0.3, **CAUSAL)
    )
    assert head.scale == pytest.approx(1 / 0.3, rel=5e-3)


def test_a_bert_told_to_be_a_decoder_is_one():
    check_direction(make_model("bert", is_decoder=True), "clm")
    model = AutoModelForCausalLM.from_config(make_config("bert", is_decoder=True))
    assert type(model).__name__ == "BertLMHeadModel" and infer_task(model) == "clm"


def test_infer_task_refuses_the_unknown():
    with pytest.raises(ValueError, match="model ViTConfig: set task"):
        infer_task(AutoConfig.for_model("vit"))


def head_and_batch(name: str = "gpt_neox", seed: int = 0, **changes):
    model = make_model(name, lm=True, seed=seed, **changes)
    ids = torch.randint(5, 300, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    labels = torch.where(
        torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(3)) < 0.5, ids, -100
    )
    return model, attached_head(model), ids, labels


def summed_loss(head, model, ids, positions, targets):
    def compute(hidden, weight, bias):
        return vocabulary_cross_entropy(hidden, targets, weight, bias, reduction="sum")

    return head.within(model, {"input_ids": ids}, positions, compute)


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
        torch.testing.assert_close(summed_loss(head, model, ids, *predictions(labels)), expected)
        hidden = head.hidden(model, {"input_ids": ids}, predictions(labels)[0])
        scores = F.linear(hidden, head.projection.weight, head.projection.bias)
        torch.testing.assert_close(scores, plain[labels >= 0])
        torch.testing.assert_close(model(input_ids=ids).logits, plain)
    with torch.no_grad():
        model.base_model(input_ids=ids, output_hidden_states=True)
    torch.testing.assert_close(summed_loss(head, model, ids, *predictions(labels)), expected)


@pytest.mark.parametrize("name", ["bert", "gpt_neox"])
def test_the_head_with_nothing_to_predict_is_zero_and_attached(name):
    model, head, ids, labels = head_and_batch(name)
    loss = summed_loss(head, model, ids, *predictions(torch.full_like(labels, -100)))
    assert loss.item() == 0
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.base_model.parameters())
    assert head.hidden(model, {"input_ids": ids}, torch.empty(0, dtype=torch.long)).shape == (0, 16)


def test_two_heads_on_one_model_work_and_recover_from_a_forward_that_failed():
    model, first, ids, labels = head_and_batch()
    second, expected = attached_head(model), reference(model, ids, labels)
    for head in (first, second, first):
        with pytest.raises(IndexError):
            summed_loss(head, model, ids + 300, *predictions(labels))
        assert model(input_ids=ids).logits.shape == (2, LENGTH, 300)
        torch.testing.assert_close(summed_loss(head, model, ids, *predictions(labels)), expected)
    shapes = []  # of which none has the full logits
    head.projection.register_forward_hook(
        lambda module, args, output: shapes.append((args[0].shape, output.shape))
    )
    summed_loss(head, model, ids, *predictions(labels))
    assert shapes == [((1, int((labels >= 0).sum()), WIDTH), ())]


def test_trainers_refuse_models_of_another_kind(tmp_path, clm_tokenizer):
    with pytest.raises(ValueError, match="task is 'clm' but the outputs of model BertModel"):
        trainer_of("headless", make_model("bert"), tmp_path, clm_tokenizer, task="clm")
    with pytest.raises(ValueError, match="model GPTNeoXModel has no vocabulary projection"):
        trainer_of("vanilla", make_model("gpt_neox"), tmp_path, clm_tokenizer)


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_trained_model_can_be_copied_and_pickled(objective, tmp_path, clm_tokenizer):
    trainer = trainer_of(objective, make_model("gpt_neox", lm=True), tmp_path, clm_tokenizer)
    trainer.train()
    ids = torch.arange(5, 15)[None]
    expected, other = trainer.model.eval()(input_ids=ids)[0], copy.deepcopy(trainer.model)
    torch.testing.assert_close(other(input_ids=ids)[0], expected)
    for parameter in other.parameters():
        parameter.data.zero_()
    assert not other(input_ids=ids)[0].sum()  # it reads its own weights
    torch.testing.assert_close(trainer.model(input_ids=ids)[0], expected)
    buffer = io.BytesIO()
    torch.save(trainer.model, buffer)
    size = sum(parameter.numel() * 4 for parameter in trainer.model.parameters())
    assert buffer.tell() < 2 * size + 100_000  # neither the trainer nor its optimizer came along


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
        torch.testing.assert_close(summed_loss(head, compiled, ids, *predictions(labels)), expected)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    # At the second size the compiler learns that sizes vary.
    assert graphs[0] > 0 and graphs[1] == graphs[-1]
