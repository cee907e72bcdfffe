"""What a card says of a model of items: its interactions, its tau, and its ranks of the whole catalogue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from huggingface_hub import EvalResult

TEMPLATE_NAME = "item_card_template.md"
TAG = "sequential-recommendation"
# Those of all that is measured that others publish, and what tau trades for it.
FIGURES = {"ndcg@10": "NDCG@10", "recall@10": "recall@10", "mrr": "MRR", "coverage@10": "coverage@10"}


@dataclass
class ItemFacts:
    """What stands in a card where the tokens of a run are items.

    Attributes:
        catalogue: how many items there are, in words.
        source: where the interactions come from, in words.
        data: what there is, and what is held out, by label.
        tau: weight of log q that validation chose; None until the run has ended.
        results: figures of the weights that leave the run.
    """

    catalogue: str
    source: str
    data: dict[str, str]
    tau: float | None = None
    results: Sequence[EvalResult] = ()

    def score(self, found: Mapping[str, float], users: Mapping[str, int]) -> None:
        """Take tau and figures from the results of a run.

        Args:
            found: ``tau``, and under ``test_...``, ``validation_...`` and ``test_..._at_tau_0`` what `FIGURES` names.
            users: that are scored in validation and test.
        """
        self.tau = found["tau"]
        parts = (("test", "", self.tau), ("test", "_at_tau_0", 0.0), ("validation", "", self.tau))
        self.results = [
            EvalResult(
                task_type=TAG,
                dataset_type="local",
                dataset_name=f"{part} part of {self.source}",
                dataset_split=part,
                metric_type=name,
                metric_name=label + (" at tau 0" if ending else ""),
                metric_value=float(f"{found[f'{part}_{name}{ending}']:.6g}"),
                metric_args={"tau": tau, "users": users[part]},
            )
            for part, ending, tau in parts
            for name, label in FIGURES.items()
        ]
