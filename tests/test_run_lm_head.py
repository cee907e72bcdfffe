"""run_lm_head.py: from a headless checkpoint to a causal language model that any client loads."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from headless_trainer.checkpoints import save_token_counts
from headless_trainer.evaluation import log_prior
from run_lm_head import main


@pytest.fixture
def checkpoint(tmp_path, clm_tokenizer):
    torch.manual_seed(0)
    trunk = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, vocab_size=len(clm_tokenizer)))
    trunk.save_pretrained(tmp_path / "trunk")
    clm_tokenizer.save_pretrained(tmp_path / "trunk")
    counts = torch.arange(len(clm_tokenizer))
    save_token_counts(tmp_path / "trunk", counts, {"tokens_seen": 1.0})
    return tmp_path / "trunk", trunk.eval(), counts


def implied_logits(trunk, ids, bias):
    with torch.no_grad():
        return trunk(ids).last_hidden_state @ trunk.wte.weight.T + bias


@pytest.mark.parametrize("init", ["prior", "embeddings"])
def test_counts_of_the_checkpoint(tmp_path, checkpoint, init):
    folder, trunk, counts = checkpoint
    main(["--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "lm"), "--init", init])
    model, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "lm").eval(), torch.tensor([[7, 30, 200]])
    want = implied_logits(trunk, ids, log_prior(counts) if init == "prior" else 0.0)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, want, rtol=1e-4, atol=1e-4)


def test_counts_of_a_corpus(tmp_path, checkpoint, text_file):
    folder, trunk, counts = checkpoint
    flags = ["--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "lm"), "--smoothing", "0.5"]
    main([*flags, "--train_file", str(text_file), "--max_seq_length", "16"])
    model, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "lm").eval(), torch.tensor([[7, 30, 200]])
    with torch.no_grad():
        added = model(ids).logits - implied_logits(trunk, ids, 0.0)
    torch.testing.assert_close(added[0, 0], added[0, 2], rtol=1e-4, atol=1e-4)  # the same log q at every position
    assert added.exp().sum(-1).allclose(torch.ones(3), rtol=1e-3)
    assert not added[0, 0].allclose(log_prior(counts), atol=0.1)


def refused(*argv) -> str:
    with pytest.raises(SystemExit) as error:
        main([str(argument) for argument in argv])
    return str(error.value)


def test_what_cannot_work_is_refused(tmp_path, checkpoint, clm_tokenizer):
    folder, _, _ = checkpoint
    (folder / "token_counts.safetensors").unlink()
    flags = ["--model_name_or_path", folder, "--output_dir", tmp_path / "lm"]
    assert "holds no token_counts.safetensors" in (text := refused(*flags)) and "--train_file" in text
    assert "model_name_or_path is not given" in refused("--output_dir", tmp_path / "lm")
    assert "already holds" in refused(*flags[:2], "--output_dir", folder)
    llama = LlamaModel(
        LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=300)
    )
    llama.save_pretrained(tmp_path / "llama")
    clm_tokenizer.save_pretrained(tmp_path / "llama")
    save_token_counts(tmp_path / "llama", torch.ones(300, dtype=torch.long), {})
    assert "does not end in a LayerNorm" in refused("--model_name_or_path", tmp_path / "llama", *flags[2:])
