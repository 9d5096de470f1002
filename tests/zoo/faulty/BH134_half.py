import torch


def train(net, loader, opt, crit):
    model = net.half().cuda()
    for x, y in loader:
        opt.zero_grad()
        loss = crit(model(x.half()), y)
        loss.backward()
        opt.step()
