"""Fine-tuning with transformers' Trainer and a loss of one's own."""

import numpy as np
from sklearn.metrics import accuracy_score, f1_score
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.CrossEntropyLoss()(outputs.logits.view(-1, self.model.config.num_labels), labels.view(-1))
        return (loss, outputs) if return_outputs else loss


def compute_metrics(predicted):
    labels = np.argmax(predicted.predictions, axis=-1)
    return {"accuracy": accuracy_score(predicted.label_ids, labels), "f1": f1_score(predicted.label_ids, labels, average="macro")}


def main(train_dataset, eval_dataset):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=3)
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    arguments = TrainingArguments("out", num_train_epochs=3, eval_strategy="epoch", load_best_model_at_end=True, save_strategy="epoch")
    trainer = WeightedTrainer(
        model=model, args=arguments, train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=tokenizer, compute_metrics=compute_metrics
    )
    trainer.train()
    trainer.save_model("out")
