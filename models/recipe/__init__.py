"""The recipe that trained the shipped checkpoints; it also takes your own text.

python -m interlock.models.recipe.train_lm --attention gqa --out models/tiny-gqa
python -m interlock.models.recipe.train_drafter eagle --target models/tiny-gqa
"""
