"""What a model's stored scores depend on: every file that its answers come from, and no other."""

import shutil

import pytest
from builders import flip, on_hub, save, tiny_model
from transformers import BertConfig, BertTokenizer

from headless_trainer.models.identity import identify

CONFIG = BertConfig()


@pytest.fixture
def model_folder(tmp_path, mlm_tokenizer) -> str:
    return save(tmp_path / "model", tiny_model("mlm"), mlm_tokenizer)


def change(folder, name: str) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.is_file() else "") + "\n")


def test_a_copy_of_a_model_is_the_same_model(tmp_path, model_folder, mlm_tokenizer):
    copy = shutil.copytree(model_folder, tmp_path / "copy")
    assert identify(str(copy), CONFIG, mlm_tokenizer) == identify(
        model_folder, CONFIG, mlm_tokenizer
    )


@pytest.mark.parametrize(
    "name",
    [
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "modeling_own.py",
        "model.safetensors.index.json",
    ],
)
def test_a_changed_file_of_tokenizer_or_code_makes_another_model(
    tmp_path, model_folder, mlm_tokenizer, name
):
    before = identify(model_folder, CONFIG, mlm_tokenizer)
    change(tmp_path / "model", name)
    after = identify(model_folder, CONFIG, mlm_tokenizer)
    assert after.weights == before.weights
    assert after.tokenizer_and_code != before.tokenizer_and_code


def test_a_vocabulary_file_that_only_the_tokenizers_class_knows_counts(
    tmp_path, model_folder, mlm_tokenizer, monkeypatch
):
    monkeypatch.setattr(BertTokenizer, "vocab_files_names", {"codes": "bpe.codes"})
    tokenizer = BertTokenizer(vocab={"[UNK]": 0, "a": 1})
    before = identify(model_folder, CONFIG, tokenizer)
    change(tmp_path / "model", "bpe.codes")
    assert identify(model_folder, CONFIG, tokenizer) != before


@pytest.mark.parametrize("name", ["README.md", "trainer_state.json", "results.json", "notes.txt"])
def test_files_that_change_no_answer_do_not_count(tmp_path, model_folder, mlm_tokenizer, name):
    before = identify(model_folder, CONFIG, mlm_tokenizer)
    change(tmp_path / "model", name)
    assert identify(model_folder, CONFIG, mlm_tokenizer) == before


def test_a_tokenizer_named_apart_from_its_model_counts(tmp_path, model_folder, mlm_tokenizer):
    tokenizer_folder = tmp_path / "tokenizer"
    mlm_tokenizer.save_pretrained(tokenizer_folder)
    before = identify(model_folder, CONFIG, mlm_tokenizer, str(tokenizer_folder))
    change(tmp_path / "model", "vocab.txt")  # of a tokenizer that is not used
    assert identify(model_folder, CONFIG, mlm_tokenizer, str(tokenizer_folder)) == before
    change(tokenizer_folder, "tokenizer.json")
    assert identify(model_folder, CONFIG, mlm_tokenizer, str(tokenizer_folder)) != before


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path, model_folder, mlm_tokenizer):
    cache = tmp_path / "cache"
    name = on_hub(model_folder, "me/model", cache)
    before = identify(name, CONFIG, mlm_tokenizer, cache_dir=str(cache))
    assert identify(name, CONFIG, mlm_tokenizer, cache_dir=str(cache)) == before
    repository = cache / "models--me--model"
    shutil.copytree(repository / "snapshots" / ("0" * 40), repository / "snapshots" / ("1" * 40))
    (repository / "refs" / "main").write_text("1" * 40)
    after = identify(name, CONFIG, mlm_tokenizer, cache_dir=str(cache))
    assert after.tokenizer_and_code != before.tokenizer_and_code


def test_weights_and_configuration_make_a_model_and_tokenizer_files_do_not(
    tmp_path, model_folder, mlm_tokenizer
):
    before = identify(model_folder, CONFIG, mlm_tokenizer)
    flip(tmp_path / "model" / "model.safetensors")
    other_weights = identify(model_folder, CONFIG, mlm_tokenizer)
    change(tmp_path / "model", "config.json")
    other_config = identify(model_folder, CONFIG, mlm_tokenizer)
    assert len({before.weights, other_weights.weights, other_config.weights}) == 3
    assert before.tokenizer_and_code == other_config.tokenizer_and_code
