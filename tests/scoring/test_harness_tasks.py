"""The harness's tasks on local files, and their examples."""

from types import SimpleNamespace

import pytest
from harness_inputs import ARC
from row_files import write_jsonl

pytest.importorskip("lm_eval")


from headless_trainer.scoring import harness_tasks


def test_a_misspelt_task_suggests_the_nearest(inputs):
    with pytest.raises(ValueError, match="lambada_opnai.*'lambada_openai'"):
        harness_tasks.open_tasks(["lambada_opnai"])
    with pytest.raises(ValueError, match="tiny_lambda'.*'tiny_lambada'"):
        harness_tasks.open_tasks(["tiny_lambda"], inputs.tasks)
    with pytest.raises(ValueError, match="data_files.*'qasper_bool'"):  # of a tag
        harness_tasks.use_data_files(
            harness_tasks.open_tasks(["qasper"]), [f"qasper={inputs.documents}"]
        )


def test_a_row_that_a_task_cannot_read_is_blamed_on_its_file(tmp_path):
    file = write_jsonl(tmp_path / "docs.jsonl", [{"text": None}, {"text": "a b"}])
    manager = harness_tasks.open_tasks(["lambada_openai"])
    harness_tasks.use_data_files(manager, [f"lambada_openai={file}"])
    with pytest.raises(ValueError, match="documents are those of .*docs.jsonl: check that every"):
        harness_tasks.load_named_tasks(manager, "lambada_openai")


def test_a_document_is_no_example_of_its_own_prompt(tmp_path):
    file = write_jsonl(tmp_path / "arc.jsonl", ARC)
    manager = harness_tasks.open_tasks(["arc_easy"])
    harness_tasks.use_data_files(manager, [f"arc_easy={file}"])
    task = harness_tasks.load_named_tasks(manager, "arc_easy")["tasks"]["arc_easy"]
    harness_tasks.set_examples(task, num_fewshot=2)
    task.build_all_requests()
    for instance in task.instances:
        prompt = instance.args[0]
        assert prompt.count("Question:") == 3 and all(
            prompt.count(row["question"]) == 1 for row in ARC
        )


def test_a_task_that_says_0_examples_keeps_0(inputs):
    manager = harness_tasks.open_tasks(["tiny_lambada"], inputs.tasks)
    task = harness_tasks.load_named_tasks(manager, "tiny_lambada")["tasks"]["tiny_lambada"]
    for number in (None, 3):
        harness_tasks.set_examples(task, number)
        assert task.get_config("num_fewshot") == 0


@pytest.mark.parametrize("name", ["lambada_openai", "lambada"])
def test_a_file_is_for_a_task_behind_a_name(name):
    manager = harness_tasks.open_tasks([name])
    harness_tasks.check_files_are_read(manager, ["lambada_openai=a.jsonl"], [name])
    with pytest.raises(
        ValueError, match=f"data_files has a file for 'arc_easy', but tasks is {name}"
    ):
        harness_tasks.check_files_are_read(manager, ["arc_easy=a.jsonl"], [name])


def test_tasks_behind_a_group_of_groups():
    """A group names its members, changes the definition of one, or lists several in a mapping."""

    def entry(kind: str, members=()):
        return SimpleNamespace(kind=SimpleNamespace(name=kind), cfg={"task": members}, tags=members)

    members = ["inner", {"task": "b", "num_fewshot": 2}, {"group": "c and d", "task": ["c", "d"]}]
    index = dict.fromkeys("abcd", entry("TASK"))
    index |= {"outer": entry("GROUP", members), "inner": entry("TAG", ["a"])}
    manager = SimpleNamespace(task_index=index)
    files = [f"{task}=file.jsonl" for task in "abcd"]
    harness_tasks.check_files_are_read(manager, files, ["outer"])
    with pytest.raises(ValueError, match="data_files has a file for 'b', but tasks is inner"):
        harness_tasks.check_files_are_read(manager, files, ["inner"])
