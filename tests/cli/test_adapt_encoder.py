"""The preset for encoders continues every class that its first lines name."""

import json

import pytest
import torch
from builders import SMALL, save
from transformers import AutoConfig, AutoModelForMaskedLM

from headless_trainer.cli.pretrain import main

ENCODERS = {
    "xlm-roberta": {},
    "modernbert": {"local_attention": 8, "num_hidden_layers": 4},
    "eurobert": {"tie_word_embeddings": False},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("model_type", ENCODERS)
def test_the_preset_trains_scores_and_saves(
    tmp_path, text_file, mlm_tokenizer, model_type, isolated
):
    torch.manual_seed(0)
    sizes = SMALL | {"vocab_size": 300, "max_position_embeddings": 40, "pad_token_id": 0}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = AutoConfig.for_model(model_type, **sizes | ids | ENCODERS[model_type])
    model = AutoModelForMaskedLM.from_config(config)
    flags = {
        "model_name_or_path": save(tmp_path / "base", model, mlm_tokenizer),
        "train_file": text_file,
        "eval_old_file": text_file,
        "output_dir": tmp_path / "run",
        "cache_dir": tmp_path / "cache",
        "isolate_documents": isolated,
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "max_seq_length": 32,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    main(["adapt_encoder", *(f"--{name}={value}" for name, value in flags.items())])
    figures = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    before = next(logs for logs in history if "eval_loss" in logs)
    assert figures["eval_loss"] < before["eval_loss"] and before["step"] == 0
    assert figures["eval_old_loss"] > 0
    saved = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert type(saved) is type(model)
