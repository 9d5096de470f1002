"""Tickets are ranked by urgency with transformers' Trainer, which owns the loop, and a loss that knows the order of the levels."""

import torch
import torch.nn.functional as F
from scipy.stats import kendalltau
from sklearn.metrics import cohen_kappa_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
)

LEVELS = 4  # of urgency


class ByOrder(Trainer):
    """One yes or no for each step up: is it more urgent than level 0, 1, 2?"""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        urgency = inputs.pop("labels")
        answers = model(**inputs)
        above = urgency[:, None] > torch.arange(LEVELS - 1, device=urgency.device)
        cost = F.binary_cross_entropy_with_logits(answers.logits, above.float())
        if return_outputs:
            return cost, answers
        return cost


def agreement(evaluated):
    level = (evaluated.predictions > 0).sum(axis=1)
    return {"kappa": cohen_kappa_score(evaluated.label_ids, level, weights="quadratic"), "tau": kendalltau(evaluated.label_ids, level).statistic}


def tune(tickets, val_tickets, folder, encoder="distilbert-base-multilingual-cased"):
    settings = TrainingArguments(
        folder, num_train_epochs=8, learning_rate=4e-5, warmup_steps=200, eval_strategy="steps", eval_steps=250, save_steps=250,
        load_best_model_at_end=True, metric_for_best_model="kappa", bf16=True,
    )  # fmt: skip
    trainer = ByOrder(
        AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=LEVELS - 1), settings, train_dataset=tickets, eval_dataset=val_tickets,
        processing_class=AutoTokenizer.from_pretrained(encoder), compute_metrics=agreement, callbacks=[EarlyStoppingCallback(3)],
    )  # fmt: skip
    trainer.train()
    trainer.save_model(folder)
    return trainer.evaluate()
