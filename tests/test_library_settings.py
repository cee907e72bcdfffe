"""Settings that a library refuses are refused with their names, before any long work."""

import pytest

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.library_settings import check_libraries


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optim": "adamw_bnb_8bit"}, "optim is 'adamw_bnb_8bit', which fails"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type is .*, which fails"),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1e-4}},
            "lr_scheduler_type is 'polynomial', which fails: lr_end",
        ),
        (
            {"torch_compile": True, "torch_compile_mode": "nonsense"},
            "torch_compile_mode is 'nonsense', which fails",
        ),
        (
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"reentrant": True}},
            r"_checkpointing_kwargs is \{'reentrant': True\}, which fails: .*'reentrant'",
        ),
        ({"torch_compile_backend": "nonsense"}, "torch_compile_backend is 'nonsense', which fails"),
    ],
)
def test_what_a_library_refuses_is_refused_by_name(tmp_path, settings, said):
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **settings)
    with pytest.raises(ValueError, match=said):
        check_libraries(args)


def test_what_the_libraries_can_make_is_accepted(tmp_path):
    settings = {
        "torch_compile": True,
        "torch_compile_mode": "max-autotune",
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True, "every_n_layers": 2},
    }
    check_libraries(
        HeadlessTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **settings)
    )
