# What type checkers read: `__init__.py` imports each name when it is first used.
from .arguments import HeadlessTrainingArguments as HeadlessTrainingArguments
from .checkpoints.token_counts import load_token_counts as load_token_counts
from .corpus.streaming import PackedStream as PackedStream
from .corpus.tokenization import train_tokenizer as train_tokenizer
from .models.lm_head import attach_lm_head as attach_lm_head
from .objective.losses import balanced_cross_entropy as balanced_cross_entropy
from .objective.losses import cwt_loss as cwt_loss
from .objective.losses import vocabulary_cross_entropy as vocabulary_cross_entropy
from .objective.negatives import NegativePool as NegativePool
from .trainers.headless import HeadlessTrainer as HeadlessTrainer
from .trainers.sampled_softmax import SampledSoftmaxTrainer as SampledSoftmaxTrainer
from .trainers.vanilla import VanillaTrainer as VanillaTrainer

__version__: str
