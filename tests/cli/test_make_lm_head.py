"""run_lm_head.py: from a headless checkpoint to a language model that any client loads, with and
without training.
"""

import json
import math

import pytest
import torch
import transformers
from builders import SMALL, on_hub, refused, save, tiny_model
from transformers import BertConfig, BertModel, ElectraConfig, ElectraModel, LlamaConfig, LlamaModel

from headless_trainer.arguments import DataArguments, LMHeadArguments, ModelArguments
from headless_trainer.checkpoints.token_counts import load_token_counts, save_token_counts
from headless_trainer.cli import lm_head_steps, pretrain
from headless_trainer.cli.make_lm_head import check_arguments, main
from headless_trainer.objective.prior import log_prior


@pytest.fixture
def checkpoint(tmp_path, clm_tokenizer):
    trunk = tiny_model("clm", len(clm_tokenizer), layers=1, dropout=0.1)
    save(tmp_path / "trunk", trunk, clm_tokenizer)
    counts = torch.arange(len(clm_tokenizer))
    save_token_counts(tmp_path / "trunk", counts, {"tokens_seen": 1.0})
    return tmp_path / "trunk", trunk.eval(), counts


IDS = torch.tensor([[7, 30, 200]])


@torch.no_grad()
def implied_logits(trunk, bias):
    return trunk(IDS).last_hidden_state @ trunk.wte.weight.T + bias


@torch.no_grad()
def logits_of(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits


def make_head(folder, output, *flags):
    main(
        [
            str(argument)
            for argument in ("--model_name_or_path", folder, "--output_dir", output, *flags)
        ]
    )
    return output


@pytest.mark.parametrize("init, drawn", [("prior", 0.0), ("prior", 0.6), ("embeddings", 0.0)])
def test_the_head_is_what_the_pretraining_implies(tmp_path, checkpoint, init, drawn):
    folder, trunk, counts = checkpoint
    save_token_counts(folder, counts, {"candidates": 100.0, "drawn_candidates": 100 * drawn})
    prior = ((1 - drawn) * log_prior(counts).exp() + drawn / len(counts)).log()
    want = implied_logits(trunk, prior if init == "prior" else 0.0)
    got = logits_of(make_head(folder, tmp_path / "lm", "--init", init))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    # For a headless training that continues it.
    assert torch.equal(load_token_counts(tmp_path / "lm")[0], counts)
    assert (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "lm").model_max_length
        == trunk.config.n_positions
    )


def test_a_model_that_was_only_evaluated_keeps_the_counts(tmp_path, checkpoint, text_file):
    save_token_counts(checkpoint[0], checkpoint[2], {"candidates": 100.0, "drawn_candidates": 60.0})
    flags = [
        "--train_file",
        text_file,
        "--max_seq_length",
        "16",
        "--max_eval_samples",
        "4",
        "--do_eval",
    ]
    counts, totals = load_token_counts(make_head(checkpoint[0], tmp_path / "lm", *flags))
    assert (
        torch.equal(counts, checkpoint[2])
        and totals["candidates"] == 100
        and totals["drawn_candidates"] == 60
    )


def test_a_trunk_on_the_hub_brings_its_counts(tmp_path, checkpoint, text_file):
    save_token_counts(checkpoint[0], checkpoint[2], {"candidates": 100.0})
    name = on_hub(checkpoint[0], "me/trunk", tmp_path / "hub")
    got = logits_of(make_head(name, tmp_path / "lm", "--cache_dir", tmp_path / "hub"))
    assert got.equal(logits_of(make_head(checkpoint[0], tmp_path / "local")))
    assert torch.equal(load_token_counts(tmp_path / "lm")[0], checkpoint[2])
    flags = [
        "--cache_dir",
        tmp_path / "hub",
        "--train_file",
        text_file,
        "--max_seq_length",
        16,
        "--max_steps",
        1,
    ]
    pretrain.main(
        [*map(str, ["--model_name_or_path", name, "--output_dir", tmp_path / "further", *flags])]
    )
    assert load_token_counts(tmp_path / "further")[0].sum() > checkpoint[2].sum()


def test_counts_of_a_corpus_keep_the_share_of_drawn_candidates(tmp_path, checkpoint, text_file):
    folder, trunk, counts = checkpoint
    flags = ["--counts_from", "corpus", "--train_file", text_file, "--max_seq_length", "16"]
    priors = {}
    for name, drawn in (("targets", 0.0), ("mixture", 60.0)):
        save_token_counts(folder, counts, {"candidates": 100.0, "drawn_candidates": drawn})
        logits = logits_of(make_head(folder, tmp_path / name, *flags))
        priors[name] = (logits - implied_logits(trunk, 0.0)).exp()
    torch.testing.assert_close(
        priors["targets"][0, 0], priors["targets"][0, 2], rtol=1e-4, atol=1e-6
    )
    assert priors["targets"].sum(-1).allclose(torch.ones(3), rtol=1e-3)
    assert not priors["targets"][0, 0].log().allclose(log_prior(counts), atol=0.1)
    one_row = logits_of(make_head(folder, tmp_path / "one", *flags, "--max_train_samples", "1"))
    assert not one_row.allclose(logits, atol=0.1)
    torch.testing.assert_close(
        priors["mixture"], 0.4 * priors["targets"] + 0.6 / len(counts), rtol=1e-3, atol=1e-6
    )


def test_counts_of_a_corpus_are_those_of_what_can_be_predicted(tmp_path, encoder, text_file):
    flags = [
        "--max_seq_length",
        "16",
        "--counts_from",
        "corpus",
        "--train_file",
        text_file,
        "--line_by_line",
        "true",
    ]
    model = transformers.AutoModelForMaskedLM.from_pretrained(
        make_head(encoder[0], tmp_path / "mlm", *flags)
    )
    bias = model.get_output_embeddings().bias
    # [CLS] and [SEP], of each line, are never predicted: like the other special tokens they get
    # what the rarest token gets.
    assert bias[:5].max() <= bias.min() + 1e-5


def test_a_head_that_the_model_cannot_have_is_refused_before_texts_and_repository(
    tmp_path, clm_tokenizer, text_file, monkeypatch, capsys
):
    config = LlamaConfig(
        vocab_size=len(clm_tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    folder = save(tmp_path / "llama", LlamaModel(config), clm_tokenizer)
    done = []
    monkeypatch.setattr(lm_head_steps.texts, "find_texts", lambda *args, **kwargs: done.append(1))
    monkeypatch.setattr(lm_head_steps, "HubPushes", lambda args: done.append(2))
    flags = ["--counts_from", "corpus", "--train_file", text_file, "--push_to_hub"]
    with pytest.raises(SystemExit, match="cannot store log q"):
        make_head(folder, tmp_path / "lm", *flags, "--hub_model_id", "me/model")
    assert not done


@pytest.mark.parametrize(("flags", "said"), [
    (["--do_eval", "--streaming"], "streaming is True but nothing is trained: leave it out"),
    (["--counts_from", "corpus", "--streaming", "--max_train_samples", "10"], "leave --streaming out"),
    (["--counts_from", "corpus", "--sample_by", "paragraph"], "sample_by is 'paragraph' but only .txt files"),
    (["--counts_from", "corpus", "--cache_dir", __file__], "cache_dir .* cannot be written to"),
])  # fmt: skip
def test_settings_that_texts_do_not_have_are_refused(tmp_path, checkpoint, flags, said):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one row"}\n' * 20)
    with pytest.raises(SystemExit, match=said):
        make_head(checkpoint[0], tmp_path / "lm", *flags, "--train_file", rows)


@pytest.mark.parametrize(("flags", "said"), [
    (["--task", "mlm"], "task is 'mlm' but .* was trained for 'clm', and so is its head"),
    (["--task", "mlm", "--mlm_probability", "0.3"], "mlm_probability is 0.3 but nothing is masked"),
    (["--weight_decay", "0.1"], "weight_decay is 0.1 but nothing is trained or scored"),
    (["--optim", "sgd"], "optim is 'sgd' but nothing is trained or scored"),
    (["--max_seq_length", "16"], "max_seq_length is 16 but nothing is trained or scored"),
    (["--text_column", "body"], "text_column is 'body' but nothing is trained or scored"),
    (["--isolate_documents"], "isolate_documents is True but nothing is trained or scored"),
    (["--vocab_size", "5000"], "vocab_size is 5000 but the head uses the checkpoint's own tokens"),
])  # fmt: skip
def test_settings_that_the_head_alone_does_not_have_are_refused(tmp_path, checkpoint, flags, said):
    with pytest.raises(SystemExit, match=said):
        make_head(checkpoint[0], tmp_path / "lm", *flags)


def test_what_has_no_free_head_is_refused(tmp_path, checkpoint, clm_tokenizer):
    folder, _, counts = checkpoint
    save_token_counts(folder, counts[:-1], {})
    text = refused(main, "--model_name_or_path", folder, "--output_dir", tmp_path / "lm")
    assert (
        f"token_counts has {len(counts) - 1} entries and the embedding has {len(counts)} rows"
        in text
    )
    save(tmp_path / "llama", LlamaModel(LlamaConfig(**SMALL, vocab_size=300)), clm_tokenizer)
    save_token_counts(tmp_path / "llama", torch.ones(300, dtype=torch.long), {})
    text = refused(
        main, "--model_name_or_path", tmp_path / "llama", "--output_dir", tmp_path / "lm"
    )
    assert "does not end in a LayerNorm" in text


def test_several_processes_with_nothing_to_train_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(LMHeadArguments, "world_size", 2)
    args = LMHeadArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match="^2 processes "):
        check_arguments(ModelArguments(model_name_or_path="m"), DataArguments(), args)


FAST = [
    "--max_seq_length",
    "16",
    "--per_device_train_batch_size",
    "8",
    "--disable_tqdm",
    "true",
    "--use_cpu",
]
FAST += ["--validation_split_percentage", "20", "--save_strategy", "no"]
TRAIN = ["--do_train", "--learning_rate", "1e-2", "--max_steps"]


def tune(folder, output, text_file, *flags):
    make_head(folder, output, "--train_file", text_file, *FAST, *flags)
    return transformers.AutoModelForCausalLM.from_pretrained(output).eval()


@pytest.mark.slow
def test_zero_steps_of_learning_leave_the_free_head(tmp_path, checkpoint, text_file):
    folder, trunk, counts = checkpoint
    tune(folder, tmp_path / "lm", text_file, *TRAIN, "2", "--learning_rate", "0")
    want = implied_logits(trunk, log_prior(counts))
    torch.testing.assert_close(logits_of(tmp_path / "lm"), want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["prior", "embeddings"])
@pytest.mark.parametrize("frozen", [False, True])
def test_fine_tuning_improves_on_held_out_text(tmp_path, checkpoint, text_file, init, frozen):
    folder, trunk, _ = checkpoint
    flags = ["--init", init, "--eval_strategy", "steps", "--eval_steps", "10", *TRAIN, "20"]
    model = tune(
        folder, tmp_path / "lm", text_file, *flags, *(["--freeze_trunk"] if frozen else [])
    )
    history = json.loads((tmp_path / "lm" / "trainer_state.json").read_text())["log_history"]
    first, last = [logs["eval_cross_entropy"] for logs in history if "eval_cross_entropy" in logs]
    assert last < first < math.log(300)
    after, before = model.base_model.state_dict(), trunk.state_dict()
    changed = {name.split(".")[0] for name, value in after.items() if not value.equal(before[name])}
    # a head with a bias is folded into the last LayerNorm, trained or not
    folded = {"ln_f"} if init == "prior" else set()
    if frozen:
        assert changed == folded
    else:
        assert {"wte", "h", "ln_f"} <= changed


def test_training_starts_at_the_prior_or_at_the_embeddings(tmp_path, checkpoint, text_file):
    folder, _, _ = checkpoint
    losses = {}
    for init in ("prior", "embeddings"):
        tune(folder, tmp_path / init, text_file, "--init", init, "--do_eval")
        losses[init] = json.loads((tmp_path / init / "eval_results.json").read_text())[
            "eval_cross_entropy"
        ]
    assert losses["prior"] != pytest.approx(losses["embeddings"], abs=1e-3)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_was_not(tmp_path, checkpoint, text_file):
    folder, _, _ = checkpoint
    flags = [*TRAIN, "4", "--save_strategy", "steps", "--save_steps", "2"]
    whole = tune(folder, tmp_path / "whole", text_file, *flags)
    flags += ["--resume_from_checkpoint", tmp_path / "whole" / "checkpoint-2"]
    resumed = tune(folder, tmp_path / "resumed", text_file, *flags)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.fixture
def encoder(tmp_path, mlm_tokenizer):
    torch.manual_seed(0)
    trunk = BertModel(BertConfig(**SMALL, vocab_size=len(mlm_tokenizer)), add_pooling_layer=False)
    save(tmp_path / "encoder", trunk, mlm_tokenizer)
    counts = torch.arange(len(mlm_tokenizer))
    save_token_counts(tmp_path / "encoder", counts, {})
    return tmp_path / "encoder", trunk.eval(), counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_fills_masks_without_training(tmp_path, encoder, dtype):
    folder, trunk, counts = encoder
    trunk.to(dtype).save_pretrained(folder)
    trunk.float()
    make_head(folder, tmp_path / "mlm")
    fill = transformers.pipeline("fill-mask", str(tmp_path / "mlm"), top_k=300)
    found = {answer["token"]: answer["score"] for answer in fill("the miller [MASK] the river.")}
    ids = fill.tokenizer("the miller [MASK] the river.", return_tensors="pt").input_ids
    place = (ids[0] == fill.tokenizer.mask_token_id).nonzero().item()
    with torch.no_grad():
        scores = trunk(ids).last_hidden_state[
            0, place
        ] @ trunk.get_input_embeddings().weight.T + log_prior(counts)
    want = scores.softmax(-1)
    for token, score in found.items():
        assert score == pytest.approx(
            want[token].item(), rel=1e-3 if dtype == torch.float32 else 0.1
        )
    assert len(found) == 300


@pytest.mark.parametrize("flags", [[], ["--freeze_trunk"]])
def test_an_encoder_is_fine_tuned(tmp_path, encoder, text_file, flags):
    folder, trunk, counts = encoder
    make_head(
        folder, tmp_path / "mlm", "--train_file", text_file, *FAST, *TRAIN, "3", "--do_eval", *flags
    )
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "mlm")
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    assert torch.equal(head.weight, embedding) is (not flags)
    assert torch.equal(embedding, trunk.get_input_embeddings().weight) is bool(flags)
    torch.testing.assert_close(head.bias, log_prior(counts), atol=0.1, rtol=0)
    assert "eval_cross_entropy" in json.loads((tmp_path / "mlm" / "eval_results.json").read_text())


def test_layers_that_nothing_trained_need_training(tmp_path, mlm_tokenizer, text_file):
    folder = tmp_path / "electra"
    save(
        folder,
        ElectraModel(ElectraConfig(**SMALL, embedding_size=8, vocab_size=300)),
        mlm_tokenizer,
    )
    save_token_counts(folder, torch.arange(300), {})
    flags = ["--model_name_or_path", folder, "--output_dir", tmp_path / "mlm"]
    assert "fine-tune it with `headless-trainer lm-head --do_train`" in refused(main, *flags)
    make_head(folder, tmp_path / "mlm", "--train_file", text_file, *FAST, *TRAIN, "2")
    assert (
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "mlm").config.embedding_size
        == 8
    )
