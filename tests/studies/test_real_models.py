"""studies/real_models.py and its helpers: what is asked for, conversations, and
whole tiny studies.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import save, tiny_model
from row_files import write_jsonl
from transformers import AutoModelForCausalLM

from headless_trainer.arguments import DataArguments

ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chat_tokenizer(clm_tokenizer, monkeypatch):
    monkeypatch.setattr(clm_tokenizer, "chat_template", TEMPLATE)
    return clm_tokenizer


def conversation(*contents: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": content} for number, content in enumerate(contents)
    ]


def arguments(study, tmp_path, *more: str):
    required = ["--model", "m", "--new_files", "n", "--old_files", "o"]
    return study("real_models").parse([*required, "--output_dir", str(tmp_path), *more])


# What is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "parts"),
    [
        ("vanilla", ("vanilla", None, ())),
        ("headless with --bf16 auto", ("headless", None, ("--bf16", "auto"))),
        ("sampled_softmax + LoRA 8", ("sampled_softmax", 8, ())),
        ("vanilla + LoRA 16 with --weight_decay 0", ("vanilla", 16, ("--weight_decay", "0"))),
    ],
)
def test_an_objective_is_taken_apart(study, label, parts):
    variant = study("real_models").parse_variant(label)
    assert (variant.objective, variant.lora_rank, variant.flags) == parts


@pytest.mark.parametrize(
    "label", ["exact", "vanilla+LoRA 8", "vanilla + LoRA", "vanilla + LoRA 0", "headless + LoRA 8"]
)
def test_an_unknown_objective_is_refused(study, tmp_path, capsys, label):
    with pytest.raises(SystemExit):
        arguments(study, tmp_path, "--objectives", label)
    said = capsys.readouterr().err
    assert "--objectives" in said
    assert label in said


@pytest.mark.parametrize(
    "more", [["--objectives", "sampled_softmax"], ["--objectives", "vanilla", "--shared_machine"]]
)
def test_equal_time_needs_the_seconds_of_the_exact_softmax(study, tmp_path, capsys, more):
    with pytest.raises(SystemExit):
        arguments(study, tmp_path, "--equal_time", *more)
    assert "--equal_time" in capsys.readouterr().err


def test_seconds_of_a_shared_machine_are_left_out(study, tmp_path, monkeypatch):
    script = study("real_models")
    run = script.Run(script.parse_variant("vanilla"), rate=1e-4, steps=8, seed=0)
    names = ("cross_entropy", "accuracy", "old_cross_entropy", "old_accuracy")
    ended = {f"eval_{name}": 0.5 for name in names}
    monkeypatch.setattr(script.shared, "results_of", lambda *_: ended)
    logs = {"step": 8, "tokens_seen": 64.0, "train_seconds": 5.0, "peak_memory_mib": 2048.0}
    monkeypatch.setattr(script.shared, "log_history", lambda _folder: [logs])
    seconds = []
    for more in ([], ["--shared_machine"]):
        figures = script.measured(arguments(study, tmp_path, *more), run)
        assert figures["memory"] == 2.0
        assert figures["unseen_mass"] is None
        seconds.append(figures["seconds"])
    assert seconds == [5.0, None]


def test_runs_of_equal_time_have_as_many_steps_as_the_exact_softmax_s_time_allows(study, tmp_path):
    script = study("real_models")
    args = arguments(study, tmp_path, "--max_steps", "100")
    exact, sampled = map(script.parse_variant, ("vanilla", "sampled_softmax"))
    rows = [
        {"objective": variant.label, "variant": variant, "rate": rate, "new": new, "seconds": time}
        for variant, rate, new, time in (
            (exact, 1e-4, [50.0, 52.0], [30.0, 30.0]),
            (exact, 3e-4, [49.0, 51.0], [31.0, 29.0]),
            (sampled, 1e-4, [52.0, 50.0], [9.0, 11.0]),
            (sampled, 3e-4, [60.0, math.inf], [9.0, 11.0]),
        )
    ]
    best = script.best_rows(rows)
    assert {label: row["rate"] for label, row in best.items()} == {
        "vanilla": 3e-4,
        "sampled_softmax": 1e-4,
    }
    assert script.settings_of_equal_time(args, best) == [(sampled, 1e-4, 300)]
    best["sampled_softmax"]["new"] = [math.inf, math.inf]  # diverged
    assert script.settings_of_equal_time(args, best) == []


def test_adapters_and_conversations_have_a_script_of_their_own(study, tmp_path):
    script = study("real_models")
    commands = {}
    for label, more in (("vanilla", []), ("vanilla + LoRA 4", []), ("vanilla", ["--chat"])):
        args = arguments(study, tmp_path, *more)
        run = script.Run(script.parse_variant(label), rate=1e-4, steps=8, seed=0)
        commands[label, *more] = script.command_of(args, run)
    assert commands["vanilla",][1] == "run_pretrain.py"
    assert commands["vanilla + LoRA 4",][1] == "studies/real_models_training.py"
    assert commands["vanilla + LoRA 4",][-2:] == ["--lora_rank", "4"]
    assert commands["vanilla", "--chat"][1] == "studies/real_models_training.py"
    assert commands["vanilla", "--chat"][-2:] == ["--chat", "true"]


def test_rows_of_unfinished_runs_are_left_out_on_request(study, tmp_path, monkeypatch):
    script = study("real_models")
    args = arguments(study, tmp_path, "--finished_only", "--seeds", "0", "1")
    variant = script.parse_variant("vanilla")
    for rate, seed in ((1e-4, 0), (1e-4, 1), (3e-4, 0)):
        folder = script.folder_of(args, script.Run(variant, rate, 8, seed))
        folder.mkdir()
        (folder / "eval_results.json").write_text("{}")
    monkeypatch.setattr(
        script, "measured", lambda args, run: dict.fromkeys(script.FIGURES, float(run.seed))
    )
    rows = script.rows_of(args, [(variant, 1e-4, 8), (variant, 3e-4, 8)])
    assert [(row["rate"], row["new"]) for row in rows] == [(1e-4, [0.0, 1.0])]


def test_a_record_names_no_folder_of_the_machine(study):
    script = study("real_models")
    label = "vanilla with --replay_file /home/me/corpora/old.txt --replay_share 0.2"
    row = {"objective": label, "rate": 1e-4, "variant": script.parse_variant(label)}
    assert script.recorded(row) == {
        "objective": "vanilla with --replay_file corpora/old.txt --replay_share 0.2",
        "rate": 1e-4,
    }


# Conversations --------------------------------------------------------------------------------


def test_answers_alone_are_learned(study, chat_tokenizer):
    messages = conversation("the river?", "a heron.", "her letter?", "the sky.", "and?")
    row = study("real_models_training").encode_conversation(messages, chat_tokenizer, 512)
    ids, mask = row["input_ids"], row["completion_mask"]
    whole = "<user>the river?\n<assistant>a heron.\n<user>her letter?\n<assistant>the sky.\n"
    assert chat_tokenizer.decode(ids) == whole
    learned = [token for token, is_answer in zip(ids, mask, strict=True) if is_answer]
    assert chat_tokenizer.decode(learned) == "a heron.\nthe sky.\n"


def test_a_long_conversation_is_cut(study, chat_tokenizer):
    encode = study("real_models_training").encode_conversation
    messages = conversation("the river?", "a heron.")
    whole = encode(messages, chat_tokenizer, 512)
    cut = encode(messages, chat_tokenizer, 9)
    assert cut == {name: values[:9] for name, values in whole.items()}
    assert len(whole["input_ids"]) > 9


def test_a_template_that_rewrites_earlier_messages_is_refused(study, chat_tokenizer):
    chat_tokenizer.chat_template = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(ValueError, match="chat is True"):
        study("real_models_training").encode_conversation(
            conversation("a?", "b.", "c?", "d."), chat_tokenizer, 512
        )


def test_an_adapter_of_a_headless_model_is_refused(study, tmp_path, capsys):
    flags = ["--lora_rank", "4", "--objective", "headless", "--train_file", "x.txt"]
    with pytest.raises(SystemExit) as refused:
        study("real_models_training").main([*flags, "--output_dir", str(tmp_path / "run")])
    assert "lora_rank is 4" in f"{refused.value} {capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--replay_file", "old.txt"], "replay_file is ['old.txt']"),
        (["--max_train_samples", "8"], "max_train_samples is 8"),
        (["--line_by_line", "true"], "line_by_line is True"),
    ],
)
def test_a_flag_that_conversations_do_not_read_is_refused(study, tmp_path, capsys, flags, value):
    required = ["--chat", "true", "--objective", "vanilla", "--task", "clm"]
    required += ["--model_name_or_path", "m", "--train_file", "x.jsonl"]
    with pytest.raises(SystemExit) as refused:
        study("real_models_training").main(
            [*required, *flags, "--output_dir", str(tmp_path / "run")]
        )
    assert value in f"{refused.value} {capsys.readouterr().err}"


def test_conversations_are_made_of_public_data(study, tmp_path):
    """Only true paraphrases are taken, and of two alternatives the right one."""
    paraphrases = write_jsonl(
        tmp_path / "mrpc.jsonl",
        [
            {"sentence1": "It rains.", "sentence2": "Rain falls.", "label": 1},
            {"sentence1": "It rains.", "sentence2": "It rained.", "label": 0},
        ],
    )
    events = write_jsonl(
        tmp_path / "copa.jsonl",
        [
            {
                "premise": "The lamp went out.",
                "choice1": "It was dark.",
                "choice2": "It was light.",
                "question": "effect",
                "label": 0,
            },
            {
                "premise": "She laughed.",
                "choice1": "She slept.",
                "choice2": "He joked.",
                "question": "cause",
                "label": 1,
            },
        ],
    )
    # A line separator within a text, which ends no row.
    medical = {"question": "Does tea help?", "long_answer": "A little.\u2028Drink it warm."}
    questions = tmp_path / "pubmedqa.jsonl"
    questions.write_text(json.dumps(medical, ensure_ascii=False) + "\n", encoding="utf-8")
    output = tmp_path / "chats.jsonl"
    study("real_models_conversations").main(
        [
            *(str(output), "--paraphrases", str(paraphrases), "--events", str(events)),
            *("--questions", str(questions), "--most", "2"),
        ]
    )
    rows = [json.loads(line) for line in output.read_text().split("\n")[:-1]]
    assert [row["messages"] for row in rows] == [
        conversation("Write this in other words: It rains.", "Rain falls."),
        conversation("The lamp went out. What happened as a result?", "It was dark."),
        conversation("She laughed. What was the cause of this?", "He joked."),
        conversation("Does tea help?", "A little.\u2028Drink it warm."),
    ]


def test_conversations_need_data(study, tmp_path, capsys):
    with pytest.raises(SystemExit):
        study("real_models_conversations").main([str(tmp_path / "chats.jsonl")])
    assert "--paraphrases" in capsys.readouterr().err


# Folders --------------------------------------------------------------------------------------


def test_a_package_s_folder_is_taken_as_it_is(study, tmp_path):
    source = tmp_path / "unpacked" / "package" / "model"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    study("real_models_folders").make_folder(
        tmp_path / "unpacked", "package/model", tmp_path / "made"
    )
    assert (tmp_path / "made" / "config.json").read_text() == "{}"


def test_parts_of_a_file_are_joined_in_their_order(study, tmp_path, monkeypatch):
    script = study("real_models_folders")
    joined = {}
    monkeypatch.setattr(
        script, "convert_gguf", lambda file, target: joined.update({target: file.read_bytes()})
    )
    for number in (2, 1, 3):
        folder = tmp_path / "unpacked" / f"package_{number}" / "data"
        folder.mkdir(parents=True)
        (folder / f"model.gguf.part{number}").write_bytes(b"%d" % number)
    script.make_folder(tmp_path / "unpacked", "*/data/*.gguf.part*", tmp_path / "made")
    assert joined == {tmp_path / "made": b"123"}


def test_a_package_without_the_model_s_files_is_refused(study, tmp_path):
    with pytest.raises(SystemExit, match=r"\*\.gguf"):
        study("real_models_folders").make_folder(tmp_path, "*.gguf", tmp_path / "made")


@pytest.mark.parametrize(("name", "value"), [("nothing", "'nothing'"), ("smollm2", "smollm2-135m")])
def test_what_cannot_be_made_is_refused_before_the_download(
    study, tmp_path, capsys, monkeypatch, name, value
):
    script = study("real_models_folders")
    monkeypatch.setattr(script, "download", lambda *_: pytest.fail("downloaded"))
    (tmp_path / "smollm2-135m-instruct").mkdir()
    with pytest.raises(SystemExit):
        script.main([str(tmp_path), "gemma", name])
    assert value in capsys.readouterr().err


# Whole studies --------------------------------------------------------------------------------


@pytest.fixture
def inputs(tmp_path, text_lines, chat_tokenizer):
    """Folder of a model, of new and old texts, and of conversations."""
    model = tiny_model(
        "clm",
        vocab_size=300,
        objective="vanilla",
        positions=128,
        bos_token_id=0,
        eos_token_id=0,
    )
    save(tmp_path / "model", model, chat_tokenizer)
    for name, lines in (("old", text_lines), ("new", [line[::-1] for line in text_lines])):
        documents = [" ".join(lines[first : first + 12]) for first in range(200)]
        (tmp_path / f"{name}.txt").write_text("\n".join(documents))
    chats = [{"messages": conversation(f"{line}?", line)} for line in text_lines]
    write_jsonl(tmp_path / "chats.jsonl", chats)
    return tmp_path


def run_study(folder: Path, new_file: str, *more: str) -> dict:
    """Run a study of few steps, and return its results."""
    command = [sys.executable, "studies/real_models.py", "--model", folder / "model"]
    command += ["--new_files", folder / new_file, "--old_files", folder / "old.txt"]
    command += ["--output_dir", folder / "runs", "--max_steps", "4", "--batch_size", "4"]
    command += ["--max_eval_samples", "8", *more]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "runs" / "results.json").read_text())["results"]


def test_an_adapter_alone_is_trained(inputs, study, own_cache):
    pytest.importorskip("peft")
    study("real_models_training").main(
        [
            *("--lora_rank", "2", "--objective", "sampled_softmax", "--task", "clm"),
            *("--model_name_or_path", str(inputs / "model"), "--max_seq_length", "32"),
            *("--train_file", str(inputs / "new.txt"), "--output_dir", str(inputs / "run")),
            *("--max_steps", "1", "--per_device_train_batch_size", "2", "--save_strategy", "no"),
        ]
    )
    adapter = json.loads((inputs / "run" / "adapter_config.json").read_text())
    assert adapter["r"] == 2
    adapted = {name.rpartition(".")[2] for name in adapter["target_modules"]}
    assert adapted == {"c_attn", "c_fc", "c_proj"}  # every linear layer but the head
    assert not (inputs / "run" / "model.safetensors").exists()


def test_held_out_answers_alone_are_measured(inputs, study, chat_tokenizer, own_cache):
    script = study("real_models_training")
    chats = str(inputs / "chats.jsonl")
    script.main(
        [
            *("--chat", "true", "--objective", "sampled_softmax", "--task", "clm"),
            *("--model_name_or_path", str(inputs / "model"), "--max_seq_length", "64"),
            *("--train_file", chats, "--eval_old_file", str(inputs / "old.txt")),
            *("--output_dir", str(inputs / "run"), "--do_eval", "true", "--max_eval_samples", "8"),
            *("--max_steps", "1", "--learning_rate", "0", "--save_strategy", "no"),
        ]
    )
    results = json.loads((inputs / "run" / "eval_results.json").read_text())
    data = DataArguments(train_file=[chats], max_seq_length=64)
    model = AutoModelForCausalLM.from_pretrained(inputs / "model").eval()
    losses = []
    for row in script.chat_rows(data, chat_tokenizer)["test"].take(8):
        ids = torch.tensor(row["input_ids"])
        with torch.no_grad():
            log_probabilities = model(ids[None]).logits[0, :-1].log_softmax(-1)
        of_targets = -log_probabilities.gather(1, ids[1:, None])[:, 0]
        is_answer = torch.tensor(row["completion_mask"])[1:] == 1
        losses += of_targets[is_answer].tolist()
    expected = sum(losses) / len(losses)
    assert results["eval_cross_entropy"] == pytest.approx(expected, rel=1e-4)
    assert results["eval_predicted_tokens"] == len(losses)
    assert results["eval_old_predicted_tokens"] == 8 * 63


@pytest.mark.slow
def test_a_whole_study(inputs):
    pytest.importorskip("lm_eval")
    pytest.importorskip("peft")
    texts = (inputs / "old.txt").read_text().splitlines()
    lambada = write_jsonl(inputs / "lambada.jsonl", [{"text": text[:60]} for text in texts[:9]])
    objectives = ["vanilla", "sampled_softmax + LoRA 4 with --exact_every 2", "headless"]
    flags = ["--rates", "1e-2", "--lm_eval_rows", "5"]
    flags += ["--lm_eval_files", f"lambada_openai={lambada}"]
    results = run_study(inputs, "new.txt", *flags, "--objectives", *objectives)
    rows = results["runs"]
    assert [(row["objective"], row["rate"], row["steps"]) for row in rows] == [
        (objective, 1e-2, 4) for objective in objectives
    ]
    # Random weights predict every token alike.
    before = results["before"]
    assert before["new"] == pytest.approx(300, rel=0.1)
    assert before["old"] == pytest.approx(300, rel=0.1)
    for row in rows:
        assert row["new"][0] < 0.99 * before["new"]
        assert row["seconds"][0] > 0
        assert row["memory"][0] > 0.1
    assert [row["unseen_mass"] == [None] for row in rows] == [True, False, True]
    # Models that load by themselves are scored.
    assert list(before["scores"]) == ["lambada_openai"]
    assert [row["objective"] for row in rows if row["scores"]] == ["vanilla"]
    adapters = list((inputs / "runs").glob("*/adapter_model.safetensors"))
    assert [path.parent.name for path in adapters] == [
        "sampled_softmax___LoRA_4_with_--exact_every_2_0.01_4_0"
    ]
    # Nothing is trained twice.
    console = inputs / "runs" / "vanilla_0.01_4_0" / "console.log"
    said = console.read_text()
    again = run_study(inputs, "new.txt", "--rates", "1e-2", "--objectives", "vanilla")
    assert console.read_text() == said
    assert again["runs"][0]["new"] == rows[0]["new"]
