"""The head made from token counts: an ordinary checkpoint whose logits are ``E h + log q``, to the
last digits.
"""

import copy

import pytest
import torch
from builders import attached_head
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.models import fold
from headless_trainer.models.candidate_head import CandidateHead, candidate_matrix, untie
from headless_trainer.models.fold import fold_bias, unfold
from headless_trainer.models.lm_head import attach_lm_head, warn_of_dropped_head
from headless_trainer.objective.prior import candidate_log_prior, log_prior

VOCAB, WIDTH = 101, 16
DECODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
LLAMA = DECODER | {
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
OPT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
OPT |= {"word_embed_proj_dim": WIDTH, "max_position_embeddings": 32}
SETTINGS = {
    "gpt2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "opt": OPT,
    "bloom": {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2},
    **dict.fromkeys(("gpt_neox", "phi"), DECODER),
    **dict.fromkeys(("llama", "qwen3", "olmo2", "gemma"), LLAMA),
    "granite": LLAMA | {"logits_scaling": 8.0, "embedding_multiplier": 3.0},
    "nemotron": DECODER | {"num_key_value_heads": 1},  # its LayerNorm adds one to its gain
    "gemma2": LLAMA | {"query_pre_attn_scalar": 8},
}
ENCODER = DECODER | {"max_position_embeddings": 40}
LAYER_NORM = ["gpt2", "gpt_neox", "opt", "bloom"]  # end in a LayerNorm, and their head has no bias
RMS_NORM = ["llama", "qwen3", "olmo2", "gemma"]


def make_trunk(model_type: str, dtype=torch.float32, **changes):
    """A trunk as training might leave it: gains far from one, of both signs, and biases far from
    zero.
    """
    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    settings = special | SETTINGS[model_type] | {"vocab_size": VOCAB} | changes
    trunk = AutoModel.from_config(AutoConfig.for_model(model_type.partition(",")[0], **settings))
    with torch.no_grad():
        for parameter in trunk.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.5)
            else:
                parameter.mul_(3)
    return trunk.to(dtype).eval()


@pytest.fixture
def counts():
    generator = torch.Generator().manual_seed(1)
    counts = (1e5 * torch.rand(VOCAB, generator=generator) ** 8).long()
    counts[7] = 0
    return counts


@pytest.fixture
def ids():
    return torch.randint(4, VOCAB, (3, 9), generator=torch.Generator().manual_seed(2))


def reload(model, folder, **settings):
    model.save_pretrained(folder)
    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **settings
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return loaded.eval()


@torch.no_grad()
def implied(trunk, ids, bias=None, rows=None):
    """``E h + bias`` from the trunk alone, in its dtype."""
    hidden = trunk(input_ids=ids).last_hidden_state
    rows = trunk.get_input_embeddings().weight if rows is None else rows
    logits = hidden @ rows.T
    return logits if bias is None else logits + bias.to(logits.dtype)


def relative_error(got, want):
    return ((got.double() - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("model_type", [*LAYER_NORM, "phi", "opt of the post-norm kind"])
@torch.no_grad()
def test_a_reloaded_checkpoint_gives_the_implied(
    model_type, dtype, tolerance, counts, ids, tmp_path
):
    model_type, _, post_norm = model_type.partition(" ")
    trunk = make_trunk(model_type, dtype, **{"do_layer_norm_before": False} if post_norm else {})
    expected = implied(trunk, ids, log_prior(counts))
    assert relative_error(implied(trunk, ids), expected) > 0.1  # the prior is no small part of it
    loaded = reload(attach_lm_head(trunk, counts), tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    assert relative_error(loaded(input_ids=ids).logits, expected) < tolerance


WIDE_BERT = {"hidden_size": 256, "num_hidden_layers": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made_wide", [False, True])
@pytest.mark.parametrize(("model_type", "changes"), [
    *((name, {}) for name in LAYER_NORM), *(("bert", WIDE_BERT | {"layer_norm_eps": eps}) for eps in (1e-12, 1e-5)),
])  # fmt: skip
@torch.no_grad()
def test_16_bits_are_as_close_as_the_unfolded_sum(
    model_type, changes, made_wide, dtype, counts, ids
):
    """Made in float32 and then cast, as users do, or made in 16 bits."""
    trunk, prior = make_trunk(model_type, **changes), log_prior(counts)
    cast = copy.deepcopy(trunk).to(dtype)
    want = implied(copy.deepcopy(trunk if made_wide else cast).double(), ids, prior)
    model = attach_lm_head(trunk if made_wide else cast, counts).to(dtype)
    logits = model(ids).logits, implied(cast, ids, prior)
    assert {each.dtype for each in logits} == {dtype}
    error, allowed = ((each.double() - want).square().mean().sqrt() for each in logits)
    assert error < 1.5 * allowed


@pytest.mark.parametrize("gains", ["tiny", "zero", "cancelling"])
@torch.no_grad()
def test_the_fold_does_not_depend_on_the_gains(gains, counts, ids):
    trunk = make_trunk("gpt2")
    if gains == "cancelling":  # the sum of bias / gain is minus the width
        trunk.ln_f.bias.copy_(-trunk.ln_f.weight)
    else:
        trunk.ln_f.weight[::3] *= 1e-6 if gains == "tiny" else 0.0
    expected = implied(trunk, ids, log_prior(counts))
    assert relative_error(attach_lm_head(trunk, counts)(input_ids=ids).logits, expected) < 1e-5


@torch.no_grad()
def test_fold_bias_by_hand():
    config = AutoConfig.for_model(
        "gpt2", vocab_size=2, n_embd=2, n_layer=1, n_head=1, n_positions=8
    )
    model = AutoModelForCausalLM.from_config(config)
    model.transformer.ln_f.weight.copy_(torch.tensor([2.0, 3.0]))
    model.transformer.ln_f.bias.copy_(torch.tensor([10.0, 20.0]))
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double()
    folded = fold_bias(model, weight, torch.tensor([100.0, 200.0]).double())
    # Two normalised values are (1, -1) or (-1, 1): the old outputs were (12, 17) or (8, 23), the
    # new ones are (2, 0) or (0, 2).
    assert (
        model.transformer.ln_f.weight.tolist() == model.transformer.ln_f.bias.tolist() == [1.0, 1.0]
    )
    torch.testing.assert_close(
        folded @ torch.tensor([2.0, 0.0]).double(), torch.tensor([112.0, 217.0]).double()
    )
    torch.testing.assert_close(
        folded @ torch.tensor([0.0, 2.0]).double(), torch.tensor([108.0, 223.0]).double()
    )


@pytest.mark.parametrize(
    "kind", [*LAYER_NORM, "phi", *RMS_NORM, "granite", "gemma2", "nemotron", "opt, projected"]
)
@torch.no_grad()
def test_init_embeddings_is_the_plain_projection(kind, ids, tmp_path):
    model_type, _, projected = kind.partition(",")
    trunk = make_trunk(model_type, **{"word_embed_proj_dim": 8} if projected else {})
    rows = trunk.get_input_embeddings().weight
    if model_type.startswith("gemma"):  # as the trunk embeds, which is what was contrasted
        rows = rows * WIDTH**0.5
    loaded = reload(attach_lm_head(trunk, init="embeddings"), tmp_path)
    assert relative_error(loaded(input_ids=ids).logits, implied(trunk, ids, rows=rows)) < 1e-5


NO_NORM = "model .*ForCausalLM does not end in a LayerNorm .*'embeddings'"
MODERN = LLAMA | {"vocab_size": VOCAB, "cls_token_id": 2, "sep_token_id": 3}
# Its last LayerNorm has a gain but no bias, into which log q could go.
NO_BIAS = {"d_model": WIDTH, "n_heads": 2, "n_layers": 2, "max_seq_len": 32, "vocab_size": VOCAB}
# By a trunk's LayerNorm, which the head's dense layer has no bias to undo.
SHIFTED = MODERN | {"norm_bias": True}


@pytest.mark.parametrize("trunk, changes, given, text", [
    *((name, {}, {}, NO_NORM) for name in (*RMS_NORM, "nemotron")),
    ("opt", {"_remove_final_layer_norm": True}, {}, NO_NORM),
    ("opt", {"word_embed_proj_dim": 8}, {}, NO_NORM),
    ("mpt", NO_BIAS, {}, NO_NORM),
    ("vit", DECODER | {"image_size": 32}, {}, "no token embedding"),
    ("clip_text_model", DECODER | {"vocab_size": VOCAB}, {}, "model CLIPTextModel has no language-modelling head"),
    *(("modernbert-decoder", SHIFTED, {"init": init}, "ModernBertDecoderForCausalLM has layers between")
      for init in ("prior", "embeddings")),
    ("gpt2", {}, {"token_counts": None}, "init is 'prior' but token_counts is None .* 101 rows"),
    ("gpt2", {}, {"token_counts": torch.arange(100)}, "token_counts has 100 entries .* 101 rows"),
    ("gpt2", {}, {"init": "zeros"}, "init must be 'prior' or 'embeddings', got 'zeros'"),
])  # fmt: skip
def test_refused(trunk, changes, given, text, counts):
    if trunk in SETTINGS:
        model = make_trunk(trunk, **changes)
    else:
        model = AutoModel.from_config(AutoConfig.for_model(trunk, **changes))
    with pytest.raises(ValueError, match=text):
        attach_lm_head(model, **{"token_counts": counts} | given)


def test_a_trunk_whose_architecture_has_no_language_model_gets_no_free_head(caplog):
    settings = DECODER | {"vocab_size": VOCAB}
    trunk = AutoModel.from_config(AutoConfig.for_model("clip_text_model", **settings))
    # transformers warns of the configuration's tokens.
    caplog.clear()
    assert warn_of_dropped_head(trunk, None) is False
    (warning,) = caplog.messages
    assert "CLIPTextModel" in warning


def test_what_is_not_folded(counts, monkeypatch):
    """A bias below layers of a head; and a fold in shards is not undone."""
    config = AutoConfig.for_model("modernbert-decoder", **MODERN, decoder_bias=False)
    with pytest.raises(ValueError, match="ModernBertDecoderForCausalLM has layers between"):
        fold_bias(
            AutoModelForCausalLM.from_config(config), torch.zeros(VOCAB, WIDTH), torch.zeros(VOCAB)
        )
    model = attach_lm_head(make_trunk("gpt2"), counts)
    monkeypatch.setattr(fold, "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(ValueError, match="model GPT2Model has log q folded"):
        unfold(model.transformer)


ENCODERS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "mpnet", "roformer", "deberta-v2"), ENCODER),
    "distilbert": {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "xlm": {
        "emb_dim": WIDTH,
        "n_layers": 2,
        "n_heads": 2,
        "n_words": VOCAB,
    },  # its head is the projection alone
    "fnet": {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "intermediate_size": 24,
    },  # with a pooler below its head
    "modernbert": ENCODER | MODERN,  # its LayerNorms have no bias
}
# A head narrower than the trunk, or one whose dense layer has no bias to put the constant in.
NEW_LAYERS = {
    "electra": ENCODER | {"embedding_size": 8},
    "albert": ENCODER | {"embedding_size": 8},
    "modernbert, shifted": ENCODER | SHIFTED,
}
SETTINGS |= ENCODERS | NEW_LAYERS


@pytest.mark.parametrize("model_type", ENCODERS)
@torch.no_grad()
def test_an_encoder_fills_masks_without_training(model_type, counts, ids, tmp_path):
    trunk = make_trunk(model_type)
    attach_lm_head(trunk, counts).save_pretrained(tmp_path)
    model, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    # What is left is that GELU is not quite linear around zero.
    assert relative_error(model.eval()(ids).logits, implied(trunk, ids, log_prior(counts))) < 5e-5
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    for name, value in trunk.state_dict().items():
        if not name.startswith("pooler."):  # which nothing trains
            assert torch.equal(model.base_model.state_dict()[name], value), name


@torch.no_grad()
def test_the_layers_before_the_projection_return_what_they_read_however_far_out(counts):
    trunk = make_trunk("bert")
    model = attach_lm_head(trunk, counts)
    normalised = torch.full((1, WIDTH), -((1 / (WIDTH - 1)) ** 0.5))
    normalised[0, 3] = (
        WIDTH - 1
    ) ** 0.5  # the farthest that a normalised value can be, on either side
    norm = trunk.encoder.layer[-1].output.LayerNorm
    for values in (normalised, -normalised):
        hidden = values * norm.weight + norm.bias
        torch.testing.assert_close(
            model.cls.predictions.transform(hidden), hidden, rtol=1e-4, atol=1e-4
        )


@torch.no_grad()
def test_a_narrow_head_begins_as_the_candidate_matrix():
    trunk = untie(make_trunk("electra"))
    candidate_matrix(trunk).weight.mul_(2.0)
    model = attach_lm_head(trunk, init="embeddings", new_layers=True)
    assert torch.equal(model.get_output_embeddings().weight, candidate_matrix(trunk).weight)


@pytest.mark.parametrize("activation", ["gelu", "silu", "gelu_new", "relu"])
@torch.no_grad()
def test_activations_that_pass_values_on(activation, counts, ids):
    trunk = make_trunk("bert", hidden_act=activation)
    assert (
        relative_error(
            attach_lm_head(trunk, counts)(ids).logits, implied(trunk, ids, log_prior(counts))
        )
        < 5e-5
    )


@pytest.mark.parametrize(
    ("model_type", "trained"), [("bert", True), ("bert", False), ("modernbert", True)]
)
def test_layers_that_pass_through_do_not_end_a_training(model_type, trained, counts, ids):
    model = attach_lm_head(make_trunk(model_type), counts, new_layers=trained)
    assert all(weight.requires_grad for weight in model.parameters()) is (
        model_type == "bert" and trained
    )
    attached = [weight.requires_grad for weight in model.parameters()]
    attached_head(model.requires_grad_(True))  # as it is loaded
    assert attached == [weight.requires_grad for weight in model.parameters()]
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(4):
        losses.append(model(ids, labels=ids).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]


@torch.no_grad()
def test_a_decoder_with_layers_before_its_projection(counts, ids, tmp_path):
    torch.manual_seed(0)
    trunk = AutoModel.from_config(AutoConfig.for_model("modernbert-decoder", **MODERN)).eval()
    model = reload(attach_lm_head(trunk, counts), tmp_path)
    assert (
        relative_error(model(input_ids=ids).logits, implied(trunk, ids, log_prior(counts))) < 5e-5
    )


@pytest.mark.parametrize("model_type", ["bert", "roberta", "xlm"])
@torch.no_grad()
def test_an_encoder_made_a_decoder_gets_a_causal_head(model_type, counts, ids, tmp_path):
    trunk = make_trunk(
        model_type, **({"causal": True} if model_type == "xlm" else {"is_decoder": True})
    )
    want = implied(trunk, ids, log_prior(counts))
    changed = ids.clone()
    changed[:, -1] = 5
    torch.testing.assert_close(implied(trunk, changed, log_prior(counts))[:, :-1], want[:, :-1])
    model = reload(attach_lm_head(trunk, counts), tmp_path)
    assert relative_error(model(input_ids=ids, use_cache=False).logits, want) < 5e-5
    assert type(model).__name__.endswith(("LMHeadModel", "ForCausalLM"))
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[0] == 3


@pytest.mark.parametrize("model_type", [*NEW_LAYERS, "a gain of zero"])
def test_heads_that_cannot_pass_through_are_refused_or_kept_for_training(model_type, counts):
    trunk = make_trunk("bert" if "zero" in model_type else model_type)
    if "zero" in model_type:
        trunk.encoder.layer[-1].output.LayerNorm.weight.data[5] = (
            0.0  # nothing can be divided by it
        )
    with pytest.raises(ValueError, match="model .*ForMaskedLM has layers between"):
        attach_lm_head(trunk, counts)
    model = attach_lm_head(trunk, counts, new_layers=True)
    assert model.config.tie_word_embeddings
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    torch.testing.assert_close(model.get_output_embeddings().bias, log_prior(counts))
    if "zero" in model_type:  # the layers are as they were
        assert model.cls.predictions.transform.dense.weight.abs().max() < 1


@pytest.mark.parametrize("model_type", [*LAYER_NORM, "phi"])
def test_the_trunk_is_copied_and_the_head_is_untied(model_type, counts, tmp_path):
    trunk = make_trunk(model_type)
    trunk.config.use_cache = False  # as training leaves it
    before, config = copy.deepcopy(trunk.state_dict()), trunk.config.to_dict()
    model = attach_lm_head(trunk, counts)
    torch.testing.assert_close(trunk.state_dict(), before, rtol=0, atol=0)
    assert trunk.config.to_dict() == config
    assert not model.training and all(parameter.requires_grad for parameter in model.parameters())
    owned = {parameter.data_ptr() for parameter in model.parameters()}
    assert not owned & {parameter.data_ptr() for parameter in trunk.parameters()}
    for made in (model, reload(model, tmp_path)):
        assert made.config.tie_word_embeddings is False and made.config.use_cache is True
        head, embedding = made.get_output_embeddings().weight, made.get_input_embeddings().weight
        assert head.data_ptr() != embedding.data_ptr()
        torch.testing.assert_close(embedding, trunk.get_input_embeddings().weight, rtol=0, atol=0)
    for role in ("pad", "bos", "eos"):
        assert getattr(model.generation_config, f"{role}_token_id") == getattr(
            trunk.config, f"{role}_token_id"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", LAYER_NORM)
def test_the_trunk_in_a_folded_decoder_is_given_back_bit_for_bit(
    model_type, dtype, counts, tmp_path
):
    trunk = make_trunk(model_type, dtype)
    attach_lm_head(trunk, counts).save_pretrained(tmp_path)
    folded = AutoModel.from_pretrained(tmp_path, dtype="auto")
    norms = [
        name
        for name, value in trunk.state_dict().items()
        if not torch.equal(value, folded.state_dict()[name])
    ]
    assert len(norms) == 2 and all("norm" in name or "ln_f" in name for name in norms)
    restored = unfold(folded)
    torch.testing.assert_close(restored.state_dict(), trunk.state_dict(), rtol=0, atol=0)
    assert not hasattr(restored.config, "headless_fold")
    assert unfold(restored) is restored  # nothing is left to undo


def test_a_trainer_trains_the_trunk_as_it_was(counts, tmp_path):
    trunk = make_trunk("gpt2")
    attach_lm_head(trunk, counts).save_pretrained(tmp_path / "lm")
    args = HeadlessTrainingArguments(str(tmp_path / "run"), use_cpu=True)
    for auto_class in (AutoModel, AutoModelForCausalLM):
        trainer = HeadlessTrainer(auto_class.from_pretrained(tmp_path / "lm"), args)
        torch.testing.assert_close(trainer.model.state_dict(), trunk.state_dict(), rtol=0, atol=0)
        trainer.model.save_pretrained(tmp_path / "again")
        assert "headless_fold" not in (tmp_path / "again" / "config.json").read_text()


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_new_model_with_the_configuration_of_a_folded_decoder_has_no_fold(
    counts, tmp_path, objective
):
    attach_lm_head(make_trunk("gpt2"), counts).save_pretrained(tmp_path / "lm")
    config = AutoConfig.from_pretrained(tmp_path / "lm")
    settings = {"objective": objective, "head_bias": "prior" if objective == "vanilla" else "none"}
    model = AutoModelForCausalLM.from_config(config)
    norm = copy.deepcopy(model.transformer.ln_f.state_dict())
    args = HeadlessTrainingArguments(str(tmp_path / "run"), use_cpu=True, **settings)
    kind = HeadlessTrainer if objective == "headless" else VanillaTrainer
    trainer = kind(model, args, token_counts=counts)
    torch.testing.assert_close(model.transformer.ln_f.state_dict(), norm, rtol=0, atol=0)
    assert not hasattr(trainer.model.config, "headless_fold")


@torch.no_grad()
def test_a_folded_decoder_that_was_trained_since_keeps_what_it_learnt(counts, ids):
    trunk = make_trunk("gpt2", torch.float64)
    model = attach_lm_head(trunk, counts)
    norm = model.transformer.ln_f
    norm.weight.mul_(1.5)
    norm.bias.add_(0.25)
    expected = trunk.ln_f.weight * (model.transformer(ids).last_hidden_state - 1) + trunk.ln_f.bias
    torch.testing.assert_close(unfold(model.transformer)(ids).last_hidden_state, expected)


@torch.no_grad()
def test_a_head_made_of_a_folded_decoder_is_that_of_its_trunk(counts, ids, tmp_path):
    trunk = make_trunk("gpt2")
    model = attach_lm_head(trunk, counts)
    again = attach_lm_head(model, counts)
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    "totals, drawn_share", [({}, 0.0), ({"candidates": 200.0, "drawn_candidates": 50.0}, 0.25)]
)
@torch.no_grad()
def test_the_folder_says_what_the_head_is(totals, drawn_share, counts, ids, tmp_path):
    trunk = make_trunk("gpt2")
    trunk.save_pretrained(tmp_path)
    save_token_counts(tmp_path, counts, totals)
    want = implied(trunk, ids, candidate_log_prior(counts, drawn_share))
    # A language model may be given for its trunk.
    whole = AutoModelForCausalLM.from_config(trunk.config)
    whole.base_model.load_state_dict(trunk.state_dict())
    for given in ((tmp_path,), (str(tmp_path),), (trunk, tmp_path), (whole, tmp_path)):
        assert relative_error(attach_lm_head(*given)(ids).logits, want) < 1e-5
    others = counts.flip(0)  # instead of the folder's, whose share of drawn candidates remains
    want = implied(trunk, ids, candidate_log_prior(others, drawn_share))
    assert relative_error(attach_lm_head(tmp_path, others)(ids).logits, want) < 1e-5


def test_a_folder_without_counts_or_with_a_head_is_refused(counts, tmp_path):
    trunk = make_trunk("gpt2")
    trunk.save_pretrained(tmp_path / "trunk")
    with pytest.raises(FileNotFoundError, match="holds no token_counts.safetensors"):
        attach_lm_head(tmp_path / "trunk")
    attach_lm_head(tmp_path / "trunk", counts)  # what the folder lacks is given, or not needed
    attach_lm_head(tmp_path / "trunk", init="embeddings")
    (tmp_path / "trunk" / "token_counts.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="token_counts.safetensors' is damaged"):
        attach_lm_head(tmp_path / "trunk")
    attach_lm_head(trunk, counts).save_pretrained(tmp_path / "lm")
    save_token_counts(tmp_path / "lm", counts, {})
    with pytest.raises(ValueError, match="holds a GPT2LMHeadModel, which already has a head"):
        attach_lm_head(tmp_path / "lm")


def test_a_trunk_keeps_its_pooler(counts):
    trunk = make_trunk("bert")
    before = copy.deepcopy(trunk.state_dict())
    assert "pooler.dense.weight" in before
    attach_lm_head(trunk, counts)
    torch.testing.assert_close(trunk.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["gpt_neox", "llama"])
def test_the_model_made_is_the_model_read_back(model_type, dtype, ids, tmp_path):
    # tables that no checkpoint holds, such as rotary frequencies, are not to be rounded to the
    # checkpoint's dtype
    trunk = make_trunk(model_type, dtype, max_position_embeddings=512)
    ids = torch.randint(4, VOCAB, (1, 400), generator=torch.Generator().manual_seed(3))
    model = attach_lm_head(trunk, init="embeddings")
    loaded = reload(model, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(
            model(input_ids=ids).logits, loaded(input_ids=ids).logits, rtol=0, atol=0
        )
    assert {buffer.dtype for name, buffer in model.named_buffers() if "inv_freq" in name} == {
        torch.float32
    }


class ScaledHead(CandidateHead):
    """Its scores are three times those of the embedding."""

    def vectors(self, ids):
        return 3 * super().vectors(ids)


def test_vectors_of_a_head_class_that_a_narrower_head_cannot_hold_are_refused():
    trunk = make_trunk("electra")
    with pytest.raises(ValueError, match="head_class ScaledHead .* width 16.* width 8"):
        attach_lm_head(trunk, init="embeddings", new_layers=True, head_class=ScaledHead)


def test_a_head_class_that_scales_vectors_becomes_the_head_of_equal_width():
    counts = torch.arange(1, VOCAB + 1)
    trunk = make_trunk("gpt2")
    embedding = trunk.get_input_embeddings().weight
    model = attach_lm_head(trunk, token_counts=counts, head_class=ScaledHead)
    ids = torch.tensor([[5, 6, 7]])
    scores = model(input_ids=ids).logits[0]
    outputs = trunk(input_ids=ids).last_hidden_state[0]
    # Differences between tokens, since log q is defined up to a constant.
    expected = 3 * outputs @ embedding.T + log_prior(counts)
    differences = scores - scores[:, :1]
    torch.testing.assert_close(differences, expected - expected[:, :1], rtol=1e-4, atol=1e-4)
