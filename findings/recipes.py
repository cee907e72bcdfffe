"""The names of recipes in the records, and the small models that most cards are about."""

# Pretrainings of studies/recipe.py. A recipe that names no beta2 has 0.98, and one that names no
# epsilon 1e-8. All use Muon for the matrices of the layers.
TIED = "headless + Muon"
UNTIED = "headless untied + Muon"
TIED_VANILLA = "vanilla tied + bias log q + Muon"
UNTIED_VANILLA = "vanilla untied + bias log q + Muon"
# AdamW's settings with which vanilla is at its best.
BETA2 = " + beta2 0.999"
EPSILON = f"{BETA2} + epsilon 1e-5"
# Each method with the settings that suit it in longer trainings, and headless with larger pools.
HEADLESS = UNTIED + BETA2
# AdamW's epsilon is its default.
VANILLA_DEFAULT = UNTIED_VANILLA + BETA2
VANILLA = UNTIED_VANILLA + EPSILON
LARGE_POOLS = f"{HEADLESS} + pools of 32512"
ENCODER_WITH_POOLS = f"{TIED} + RoFormer + pools of 16256"
# The same with other pools: see studies/pool_variants.py.
ENCODER_WITH_DRAWN_TARGETS = f"{ENCODER_WITH_POOLS} + drawn by frequency"
ENCODER_WITH_GROWING_POOLS = f"{ENCODER_WITH_POOLS} + growing"
ENCODER_WITH_EXACT_STEPS = f"{ENCODER_WITH_POOLS} + exact now and then"
NEOX_WITH_POOLS = f"{UNTIED} + GPT-NeoX + pools of 32512"
NEOX_WITH_GROWING_POOLS = f"{NEOX_WITH_POOLS} + growing"

GPT2 = "GPT-2 with two layers of width 128"
TIED_DECODER = f"{GPT2}, tied"
SMALL_DECODER = f"{GPT2}, untied"
SMALL_NEOX = "GPT-NeoX with two layers of width 128, untied"
SMALL_BATCHES = "batches of 8 rows of 128"
BATCHES = "batches of 32 rows of 128"
