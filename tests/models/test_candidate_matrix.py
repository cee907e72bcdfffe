"""Headless training with a second matrix, for candidates alone: as an untied head has it, and
without the head.
"""

import json
import logging

import processes
import pytest
import torch
from builders import Tokenizer, assert_resumes, tiny_model, trainer_for
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from headless_trainer import attach_lm_head, load_token_counts
from headless_trainer.cli import make_lm_head as lm_head
from headless_trainer.cli import pretrain
from headless_trainer.models.candidate_head import candidate_matrix, load_trunk, untie
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers.step import CARRIED


def untied_trainer(folder, task, tokenizer, **settings):
    torch.manual_seed(0)
    trunk = untie(tiny_model(task, len(tokenizer)))
    run = trainer_for(folder, task, tokenizer, **settings)
    data = {"train_dataset": run.train_dataset, "eval_dataset": run.eval_dataset}
    return type(run)(trunk, run.args, **data, processing_class=tokenizer)


def test_loss_and_gradients_are_those_of_the_paper_s_loss_with_two_matrices(
    tmp_path, task, tokenizer
):
    run = untied_trainer(tmp_path, task, tokenizer)
    model, matrix = run.model, candidate_matrix(run.model)
    (batch,), _ = run.get_batch_samples(iter(run.get_train_dataloader()), 1, torch.device("cpu"))
    run.compute_loss(model, batch).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    inputs = {name: value for name, value in batch.items() if name != CARRIED}
    hidden = model(**inputs).last_hidden_state.flatten(0, 1)[batch[CARRIED].predicted]
    # (K, K), of every target with every other.
    scores = hidden @ matrix(batch[CARRIED].target_ids).T
    (scores.logsumexp(-1) - scores.diagonal()).mean().backward()
    assert set(found) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)
    seen = model.get_input_embeddings().weight.grad.norm(dim=-1) > 0
    # The input role alone.
    assert set(seen.nonzero().flatten().tolist()) <= set(inputs["input_ids"].flatten().tolist())


def test_what_leaves_the_run_is_an_ordinary_trunk_and_a_file(tmp_path, task, tokenizer, caplog):
    run = untied_trainer(tmp_path, task, tokenizer)
    run.train()
    run.save_model()
    matrix = candidate_matrix(run.model).weight
    assert not torch.equal(matrix, run.model.get_input_embeddings().weight)
    assert "candidates have a separate matrix" in " ".join(
        (tmp_path / "README.md").read_text().split()
    )
    assert "candidate_embeddings.weight" not in load_file(tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING):
        ordinary = AutoModel.from_pretrained(tmp_path)
    assert "candidate_embeddings" not in caplog.text and candidate_matrix(ordinary) is None
    # Its embedding would score in place of the matrix, and nobody would know.
    for use in (lambda: attach_lm_head(ordinary, tmp_path), lambda: type(run)(ordinary, run.args)):
        with pytest.raises(ValueError, match="separate candidate matrix, which AutoModel"):
            use()
    trunk = load_trunk(tmp_path)
    assert torch.equal(candidate_matrix(trunk).weight, matrix)
    for name, value in run.model.state_dict().items():
        assert torch.equal(trunk.state_dict()[name], value), name
    (tmp_path / "candidate_embeddings.safetensors").unlink()
    with pytest.raises(ValueError, match="candidate_embeddings.safetensors"):
        load_trunk(tmp_path)


def test_the_free_head_scores_with_it(tmp_path, task, tokenizer):
    run = untied_trainer(tmp_path, task, tokenizer)
    run.train()
    run.save_model()
    model = attach_lm_head(tmp_path)
    log_q = log_prior(load_token_counts(tmp_path)[0]).float()
    ids = torch.tensor([[7, 9, 11, 13]])
    with torch.no_grad():
        expected = (
            run.model.eval()(ids).last_hidden_state @ candidate_matrix(run.model).weight.T + log_q
        )
        torch.testing.assert_close(
            model(ids).logits.log_softmax(-1), expected.log_softmax(-1), rtol=1e-4, atol=1e-4
        )
    model.save_pretrained(tmp_path / "lm")
    kind = AutoModelForCausalLM if task == "clm" else AutoModelForMaskedLM
    again, config = (
        kind.from_pretrained(tmp_path / "lm"),
        json.loads((tmp_path / "lm" / "config.json").read_text()),
    )
    assert (
        torch.equal(again(ids).logits, model(ids).logits)
        and "has_candidate_embeddings" not in config
    )


def test_resume_is_exact(tmp_path, task, tokenizer):
    settings = {"save_strategy": "steps", "save_steps": 1}
    whole, _ = assert_resumes(
        lambda folder: untied_trainer(folder, task, tokenizer, **settings), tmp_path, 1
    )
    trunk = load_trunk(tmp_path / "whole" / "checkpoint-2")
    assert torch.equal(candidate_matrix(trunk).weight, candidate_matrix(whole.model).weight)


def test_a_matrix_whose_weights_are_in_several_files_is_saved_resumed_and_read(
    tmp_path, clm_tokenizer, weights_in_several_files
):
    settings = {"save_strategy": "steps", "save_steps": 1}
    whole, _ = assert_resumes(
        lambda folder: untied_trainer(folder, "clm", clm_tokenizer, **settings), tmp_path, 1
    )
    matrix = candidate_matrix(whole.model).weight
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert (checkpoint / "model.safetensors.index.json").is_file()
    assert torch.equal(candidate_matrix(load_trunk(checkpoint)).weight, matrix)
    whole.save_model()
    index = json.loads((tmp_path / "whole" / "model.safetensors.index.json").read_text())
    stored = {}
    for file in set(index["weight_map"].values()):
        stored |= load_file(tmp_path / "whole" / file)
    without_matrix = AutoModel.from_pretrained(tmp_path / "whole").state_dict()
    assert stored.keys() == index["weight_map"].keys() == without_matrix.keys()
    assert index["metadata"]["total_size"] == sum(values.nbytes for values in stored.values())
    assert index["metadata"]["total_parameters"] == sum(map(torch.numel, stored.values()))
    trunk = load_trunk(tmp_path / "whole")
    assert torch.equal(candidate_matrix(trunk).weight, matrix)
    assert torch.equal(trunk.wte.weight, whole.model.wte.weight)
    whole.saved_dtype = torch.bfloat16
    whole.save_model()
    rounded = json.loads((tmp_path / "whole" / "model.safetensors.index.json").read_text())
    assert rounded["weight_map"] == index["weight_map"]
    assert rounded["metadata"]["total_size"] == index["metadata"]["total_size"] // 2


def _process(rank: int, folder: str) -> None:
    run = untied_trainer(
        folder, "clm", Tokenizer(60), negatives="world", per_device_train_batch_size=2, max_steps=3
    )
    run.train()
    torch.save(run.model.state_dict(), f"{folder}/{rank}.pt")


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    processes.run(_process, 2, str(tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    one = untied_trainer(
        tmp_path / "one", "clm", Tokenizer(60), per_device_train_batch_size=4, max_steps=3
    )
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    one.train()
    for name, want in one.model.state_dict().items():
        assert torch.equal(found[0][name], found[1][name]), name
        assert (found[0][name] - want).norm() <= 1e-3 * (want - before[name]).norm() + 1e-6, name
    assert (
        candidate_matrix(one.model).weight - before["candidate_embeddings.weight"]
    ).norm() > 1e-3


def test_a_run_does_not_go_on_with_one_matrix_more_or_less(tmp_path, clm_tokenizer):
    settings = {"save_strategy": "steps", "save_steps": 1}
    untied_trainer(tmp_path / "two", "clm", clm_tokenizer, **settings).train()
    trainer_for(tmp_path / "one", "clm", clm_tokenizer, **settings).train()
    with pytest.raises(
        ValueError, match="holds candidate_embeddings.weight, which this model does not have"
    ):
        trainer_for(tmp_path / "a", "clm", clm_tokenizer).train(
            str(tmp_path / "two" / "checkpoint-1")
        )
    with pytest.raises(ValueError, match="lacks candidate_embeddings.weight.*tie_word_embeddings"):
        untied_trainer(tmp_path / "b", "clm", clm_tokenizer).train(
            str(tmp_path / "one" / "checkpoint-1")
        )


def test_what_it_does_not_work_with_is_refused(tmp_path, clm_tokenizer, sharded):
    with pytest.raises(ValueError, match="tie_word_embeddings is False.*DeepSpeed or FSDP"):
        untied_trainer(tmp_path, "clm", clm_tokenizer)
    with pytest.raises(ValueError, match="ddp_find_unused_parameters is True"):
        untied_trainer(tmp_path, "clm", clm_tokenizer, ddp_find_unused_parameters=True)


@pytest.mark.slow
def test_from_the_command_line(tmp_path, text_lines):
    (tmp_path / "a.txt").write_text("\n".join(text_lines))
    flags = [
        "--train_file",
        str(tmp_path / "a.txt"),
        "--use_cpu",
        "true",
        "--report_to",
        "none",
        "--max_steps",
        "2",
    ]
    flags += [
        "--max_seq_length",
        "32",
        "--per_device_train_batch_size",
        "2",
        "--tie_word_embeddings",
        "false",
    ]
    sizes = "n_embd=16,n_head=2,n_layer=1,n_positions=32"
    first = [
        "--model_type",
        "gpt2",
        "--config_overrides",
        sizes,
        "--train_tokenizer",
        "true",
        "--vocab_size",
        "300",
    ]
    pretrain.main([*flags, *first, "--output_dir", str(tmp_path / "run")])
    lm_head.main(
        ["--model_name_or_path", str(tmp_path / "run"), "--output_dir", str(tmp_path / "lm")]
    )
    ids = AutoTokenizer.from_pretrained(tmp_path / "lm")("the", return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    torch.testing.assert_close(model(ids).logits, attach_lm_head(tmp_path / "run")(ids).logits)
    pretrain.main(
        [
            *flags,
            "--model_name_or_path",
            str(tmp_path / "run"),
            "--output_dir",
            str(tmp_path / "on"),
        ]
    )
    assert candidate_matrix(load_trunk(tmp_path / "on")) is not None
    # A configuration alone brings no matrix along.
    shape = ["--config_name", str(tmp_path / "run"), "--tokenizer_name", str(tmp_path / "run")]
    pretrain.main([*flags[:-2], *shape, "--output_dir", str(tmp_path / "tied")])
    assert candidate_matrix(load_trunk(tmp_path / "tied")) is None
