import torch


def fit(model, tl, vl, opt, crit, epochs):
    model.train()
    for epoch in range(epochs):
        for x, y in tl:
            opt.zero_grad()
            crit(model(x), y).backward()
            opt.step()
        evaluate(model, vl)


def evaluate(net, vl):
    net.eval()
    n = 0
    with torch.no_grad():
        for x, y in vl:
            n += (net(x).argmax(1) == y).sum().item()
    return n / len(vl.dataset)
