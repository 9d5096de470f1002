"""Route support tickets to teams: a pretrained encoder and its new head are tuned on tickets that people routed."""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import ClassLabel, load_dataset
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_cosine_schedule_with_warmup,
)

PARTS = ("train", "val")


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tickets", type=Path, help="holds train.csv and val.csv with the columns subject, body, team")
    parser.add_argument("--encoder", default="distilroberta-base")
    parser.add_argument("--tokens", type=int, default=320)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--window", type=int, default=4, help="batches a step of the optimizer")
    parser.add_argument("--rate", type=float, default=3e-5)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--state-every", type=int, default=0, help="steps between saved states; 0: none")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--result", type=Path, default=Path("router"))
    return parser.parse_args()


def read(args, tokenizer):
    tables = load_dataset("csv", data_files={part: str(args.tickets / f"{part}.csv") for part in PARTS})
    teams = ClassLabel(names=sorted(set(tables["train"]["team"])))

    def encode(rows):
        encoded = tokenizer(rows["subject"], rows["body"], truncation="only_second", max_length=args.tokens)
        return {**encoded, "labels": [teams.str2int(team) for team in rows["team"]]}

    return tables.map(encode, batched=True, remove_columns=["subject", "body", "team"]), teams.names


def groups_of(model, decay):
    """Matrices shrink; biases and gains of norms do not."""
    shrinking, free = [], []
    for parameter in model.parameters():
        (shrinking if parameter.ndim >= 2 else free).append(parameter)
    return [{"params": shrinking, "weight_decay": decay}, {"params": free, "weight_decay": 0.0}]


def main():
    args = options()
    accelerator = Accelerator(gradient_accumulation_steps=args.window, mixed_precision="bf16")
    set_seed(args.seed, device_specific=True)
    tokenizer = AutoTokenizer.from_pretrained(args.encoder)
    with accelerator.main_process_first():  # the others find its cache
        tickets, teams = read(args, tokenizer)
    model = AutoModelForSequenceClassification.from_pretrained(args.encoder, num_labels=len(teams))

    def padded(rows):
        return tokenizer.pad(rows, pad_to_multiple_of=8, return_tensors="pt")

    train_loader = DataLoader(tickets["train"], batch_size=args.rows, shuffle=True, collate_fn=padded)
    val_loader = DataLoader(tickets["val"], batch_size=4 * args.rows, collate_fn=padded)
    optimizer = torch.optim.AdamW(groups_of(model, 0.02), lr=args.rate)
    steps = args.passes * -(-len(train_loader) // args.window)
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=steps // 20, num_training_steps=steps)
    model, optimizer, train_loader, val_loader, schedule = accelerator.prepare(model, optimizer, train_loader, val_loader, schedule)

    bar = tqdm(total=steps, disable=not accelerator.is_main_process)
    for number in range(args.passes):
        model.train()
        summed = torch.zeros((), device=accelerator.device)
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                summed += loss.detach()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            bar.update()
            if args.state_every and bar.n % args.state_every == 0:
                accelerator.save_state(args.result / f"state-{bar.n}")

        model.eval()
        guesses, truths = [], []
        for batch in val_loader:
            with torch.inference_mode():
                scores = model(**batch).logits
            guess, truth = accelerator.gather_for_metrics((scores.argmax(dim=-1), batch["labels"]))
            guesses += guess.tolist()
            truths += truth.tolist()
        figures = {"macro_f1": f1_score(truths, guesses, average="macro"), "balanced_accuracy": balanced_accuracy_score(truths, guesses)}
        accelerator.print(f"pass {number + 1}: train loss {summed.item() / len(train_loader):.3f}, {json.dumps(figures)}")

    accelerator.wait_for_everyone()
    tuned = accelerator.unwrap_model(model)
    tuned.save_pretrained(args.result, is_main_process=accelerator.is_main_process, save_function=accelerator.save)
    if accelerator.is_main_process:
        tokenizer.save_pretrained(args.result)
        (args.result / "teams.json").write_text(json.dumps(teams))
    bar.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
