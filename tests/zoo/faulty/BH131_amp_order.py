import torch

scaler = torch.amp.GradScaler()


def train(model, loader, opt, crit):
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            loss = crit(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
