"""The presets parse, and hold the numbers of the paper's tables 6 to 10. The numbers here are
typed from the tables.
"""

import pytest
import yaml

from headless_trainer.arguments import (
    DataArguments,
    HeadlessTrainingArguments,
    LMHeadArguments,
    ModelArguments,
)
from headless_trainer.command_line import PRESETS, parse_args
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments

PRETRAINING = [name for name, path in PRESETS.items() if "\nobjective: " in path.read_text("utf-8")]
OBJECTIVES = ["headless", "vanilla"]


def parse(
    name: str, *flags: str
) -> tuple[ModelArguments, DataArguments, HeadlessTrainingArguments]:
    return parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], [name, *flags])


@pytest.mark.parametrize("name", PRETRAINING)
def test_every_preset_parses_alone(name):
    model, data, training = parse(name)
    assert training.output_dir == f"runs/{name}"  # no two presets share a folder
    adapts = name.startswith("adapt_")
    objective = "headless"
    if adapts:
        objective = "sampled_softmax"
    elif name.endswith("vanilla"):
        objective = "vanilla"
    assert training.objective == objective
    assert training.task in ("mlm", "clm")
    own_text = name == "demo" or name.startswith(("recipe_", "adapt_"))  # which take the reader's
    assert own_text or data.dataset_name or data.train_file
    # 0.98 harms a baseline: docs/findings/do_adamws_settings_decide.md
    assert training.adam_beta2 == 0.999 or not own_text


PYTHIA, DISTILBERT = (
    "EleutherAI/pythia-70m-deduped",
    "distilbert/distilbert-base-multilingual-cased",
)
# Task, GPUs, rows a step (vanilla, headless), length, steps, warmup, learning rate, weight decay,
# schedule.
TABLES = {
    "encoder": ("mlm", 8, (256, 512), 128, 1_000_000, 10_000, 1e-4, 0.01, "linear"),  # table 6
    "decoder": ("clm", 16, (1024, 1024), 2048, 143_000, 1_430, 1e-3, 0.1, "cosine"),  # table 7
    "multilingual": ("mlm", 1, (64, 64), 128, 400_000, 10_000, 2e-4, 0.01, "linear"),  # table 8
    "small_encoder": ("mlm", 1, (64, 64), 128, 400_000, 10_000, 2e-4, 0.01, "linear"),  # table 9
    "small_decoder": (
        "clm",
        1,
        (128, 128),
        128,
        1_000_000,
        2_000,
        2.5e-4,
        0.01,
        "cosine",
    ),  # table 10, figure 8
}
# Configuration and tokenizer, where section 6 trains none.
NAMES = {
    "encoder": ("google-bert/bert-base-uncased", PYTHIA),
    "decoder": (PYTHIA, PYTHIA),
    "multilingual": (DISTILBERT, DISTILBERT),
    "small_encoder": ("google/bert_uncased_L-4_H-512_A-8", None),
    "small_decoder": ("openai-community/gpt2", "openai-community/gpt2"),
}
DEVICE_BATCHES = {
    "encoder": (32, 64),
    "decoder": (8, 8),
    "multilingual": (64, 64),
    "small_encoder": (64, 64),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("pair", TABLES)
def test_presets_hold_the_numbers_of_the_tables(pair, objective):
    (task, gpus, rows, length, steps, warmup, *rest), names = TABLES[pair], NAMES[pair]
    model, data, training = parse(f"paper_{pair}_{objective}")
    headless = objective == "headless"
    device_rows = training.per_device_train_batch_size
    assert device_rows * training.gradient_accumulation_steps * gpus == rows[headless]
    assert pair not in DEVICE_BATCHES or device_rows == DEVICE_BATCHES[pair][headless]
    assert (training.task, data.max_seq_length, training.max_steps) == (task, length, steps)
    assert training.get_warmup_steps(steps) == warmup
    assert [training.learning_rate, training.weight_decay, training.lr_scheduler_type] == rest
    assert (training.adam_beta1, training.adam_beta2) == (
        (0.9, 0.95) if pair == "decoder" else (0.9, 0.999)
    )
    assert (training.adam_epsilon, training.max_grad_norm) == (1e-8, 1.0)
    assert training.optim.value.startswith("adamw_torch")
    assert yaml.safe_load(PRESETS[f"paper_{pair}_{objective}"].read_text("utf-8"))["fp16"] == "auto"
    if task == "mlm":
        assert training.mlm_probability == 0.15
    # the paper's loss: candidates of the micro-batch, plain dot products, packed documents that
    # see each other
    assert training.negatives == "micro_batch"
    assert not training.isolate_documents and not data.line_by_line
    assert (
        model.config_name,
        model.tokenizer_name,
    ) == names and model.model_name_or_path is None  # random weights
    assert model.train_tokenizer == (names[1] is None)
    # A decoder's tokenizer on an encoder.
    assert model.mask_token == ("<|padding|>" if pair == "encoder" else None)


def test_presets_have_the_shape_of_table_10_and_the_languages_of_table_8():
    model = parse("paper_small_decoder_headless")[0]
    assert model.parsed_config_overrides() == {"n_embd": 192, "n_head": 3, "n_layer": 3}
    languages = [
        name.rpartition(".")[2] for name in parse("paper_multilingual_headless")[1].train_file
    ]
    assert sorted(languages) == ["ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "zh"]


@pytest.mark.parametrize("pair", TABLES)
def test_a_pair_differs_only_where_the_paper_says_so(pair):
    files = [PRESETS[f"paper_{pair}_{objective}"] for objective in OBJECTIVES]
    headless, vanilla = (yaml.safe_load(file.read_text(encoding="utf-8")) for file in files)
    differences = {
        key for key in headless.keys() | vanilla.keys() if headless.get(key) != vanilla.get(key)
    }
    batch = {"per_device_train_batch_size"} if pair == "encoder" else set()
    assert differences == {"objective", "output_dir"} | batch


@pytest.mark.parametrize(
    ("source", "learning_rate", "weight_decay"), [("text", 1e-4, 0.1), ("table14", 1e-5, 0.0)]
)
def test_fine_tuning_presets_hold_the_numbers_of_section_4_2_and_table_14(
    source, learning_rate, weight_decay
):
    name = f"paper_lm_head_{source}"
    model, data, training = parse_args([ModelArguments, DataArguments, LMHeadArguments], [name])
    assert training.do_train and training.init == "embeddings" and not training.freeze_trunk
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps * 16 == 256
    assert (training.max_steps, training.get_warmup_steps(10_000)) == (10_000, 2_000)
    assert (training.learning_rate, training.weight_decay) == (learning_rate, weight_decay)
    assert training.lr_scheduler_type == "constant_with_warmup"
    pretraining = parse("paper_decoder_headless")
    assert model.model_name_or_path == pretraining[2].output_dir
    assert (data.dataset_name, data.max_seq_length) == (
        pretraining[1].dataset_name,
        pretraining[1].max_seq_length,
    )
    assert training.output_dir == f"runs/{name}"


@pytest.mark.parametrize(("name", "loss", "learning_rate", "weight_decay", "batch_size"), [
    ("paper_glue_cross_entropy", "cross_entropy", 5e-6, 0.01, 32),  # table 11
    ("paper_glue_balanced", "balanced", 1e-5, 0.0, 32),  # table 13
    ("paper_xnli", "cross_entropy", 2e-5, 0.0, 128),  # table 15
])  # fmt: skip
def test_fine_tuning_presets_hold_the_numbers_of_the_tables(
    name, loss, learning_rate, weight_decay, batch_size
):
    grid, training = parse_args(
        [GlueArguments, GlueTrainingArguments], [name, "--model_name_or_path", "any"]
    )
    assert (training.output_dir, grid.seeds, grid.loss) == (f"runs/{name}", [0, 1, 2], loss)
    assert (training.learning_rate, training.weight_decay) == (learning_rate, weight_decay)
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == batch_size
    assert (training.lr_scheduler_type, training.get_warmup_steps(500)) == (
        "constant_with_warmup",
        50,
    )
    assert (training.num_train_epochs, grid.max_seq_length) == (10, 128)
    tasks = pytest.importorskip("headless_trainer.fine_tuning.tasks", exc_type=ImportError)
    names = [task.name for task in tasks.select_tasks(grid.tasks, grid.languages)]
    languages = ["ar", "de", "en", "es", "fr", "hi", "zh"]  # table 5
    xnli = ["xnli", *(f"xnli_{language}" for language in languages)]
    assert names == (
        xnli if name == "paper_xnli" else ["mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli"]
    )
