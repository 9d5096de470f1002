import torch
from transformers import get_cosine_schedule_with_warmup


def main(model, train_loader, num_epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=num_epochs)
    for epoch in range(num_epochs):
        for batch in train_loader:
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
