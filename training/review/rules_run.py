"""Rules BH801 to BH824: mistakes that only a run shows."""

from __future__ import annotations

import textwrap

from training.review.findings import Place, Rule, Severity, Subject


def seen(_: Subject) -> list[Place]:
    """What the program did when it was run (`bulkhead review PROGRAM --run`)."""
    return []


def _rule(id: str, name: str, severity: Severity, title: str, why: str, remedy: str, bad: str, good: str) -> Rule:
    return Rule(id, name, severity, title, why, remedy, textwrap.dedent(bad).strip() + "\n", textwrap.dedent(good).strip() + "\n", seen)


RUN_RULES: dict[str, Rule] = {
    r.id: r
    for r in (
        _rule(
            "BH801",
            "rows-mix",
            "error",
            "Rows of a batch mix",
            "The scores of one row depend on the other rows of its batch. What is measured on batches is not what a single row gets in use, and "
            "neighbours tell labels.",
            "look for softmax, mean, norm or attention over axis 0, a view that merges rows, a recurrent layer without batch_first, batch norm without running statistics",
            "scores = layer(x)\nreturn scores - scores.mean(0)",
            "scores = layer(x)\nreturn scores - scores.mean(1, keepdim=True)",
        ),
        _rule(
            "BH802",
            "future-visible",
            "error",
            "The next token is predicted by a network that sees it",
            "Scores at a place change with tokens after it. The loss falls to almost nothing, and generated text is noise.",
            "mask attention causally (is_causal=True), pad convolutions on the left alone, use no bidirectional layer",
            "h = F.scaled_dot_product_attention(q, k, v)",
            "h = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
        _rule(
            "BH803",
            "trained-rows-evaluated",
            "error",
            "Held-out rows were trained on",
            "Each evaluation holds some of the rows that were trained on, and other ones as well: the sides were drawn independently, overlap, or repeat each other.",
            "split indexes once, remove equal rows before the split, and evaluate on rows of the other side alone",
            "train = torch.randperm(n)[:800]\ntest = torch.randperm(n)[:200]",
            "order = torch.randperm(n)\ntrain, test = order[:800], order[800:]",
        ),
        _rule(
            "BH805",
            "label-among-inputs",
            "error",
            "A column of the inputs is the label",
            "The network is given the answer, so every score is near perfect and worth nothing.",
            "drop the label (and its copies) before the inputs are made",
            "x = table.to_numpy()\ny = table['price'].to_numpy()",
            "x = table.drop(columns='price').to_numpy()\ny = table['price'].to_numpy()",
        ),
        _rule(
            "BH806",
            "order-not-mixed",
            "warning",
            "Train rows come sorted by label",
            "Batches hold rows of one kind each, in the same order in every epoch: steps undo each other, and batch norm learns the statistics of kinds.",
            "shuffle=True for the train rows",
            "loader = DataLoader(by_class, batch_size=64)",
            "loader = DataLoader(by_class, batch_size=64, shuffle=True)",
        ),
        _rule(
            "BH807",
            "weights-unmoved",
            "error",
            "Steps change nothing",
            "After all steps the weights are, to the bit, those of the beginning: the rate is 0 or too small for float32, or what was stepped is a copy.",
            "look at the rate of every group and at what the schedule makes of it",
            "optimizer = SGD(model.parameters(), lr=0.0)",
            "optimizer = SGD(model.parameters(), lr=0.1)",
        ),
        _rule(
            "BH808",
            "loss-lost",
            "error",
            "The loss is lost",
            "The loss is not a finite number, or grew many times over, and training goes on.",
            "lower the rate, clip gradients, look for log, sqrt and division at 0, and stop at the first loss that is not finite",
            "loss = torch.log(p).mean()\nloss.backward()",
            "loss = F.logsigmoid(scores).mean()\nloss.backward()",
        ),
        _rule(
            "BH809",
            "units-alike",
            "error",
            "All units of a layer are the same",
            "Units that start alike get the same gradient and stay alike: the layer is as wide as one unit.",
            "initialise weights at random",
            "nn.init.constant_(layer.weight, 0.1)",
            "nn.init.xavier_uniform_(layer.weight)",
        ),
        _rule(
            "BH810",
            "parameters-without-gradient",
            "warning",
            "Parameters that no gradient reaches",
            "The optimizer holds parameters that in all steps got no gradient: a layer is not used, or cut off from the loss.",
            "use the layer in forward, look for detach, no_grad, argmax and item on its path, or leave it out",
            "h = self.encoder(x).detach()\nreturn self.head(h)",
            "return self.head(self.encoder(x))",
        ),
        _rule(
            "BH811",
            "frozen-norm-moves",
            "warning",
            "A frozen batch norm still learns",
            "requires_grad = False freezes weights. In train mode the running statistics move all the same, so the frozen part is another network after each batch.",
            "put the frozen part into eval mode after every call of train()",
            "backbone.requires_grad_(False)\nmodel.train()",
            "backbone.requires_grad_(False)\nmodel.train()\nbackbone.eval()",
        ),
        _rule(
            "BH817",
            "tokens-not-shifted",
            "error",
            "Labels of a language model are not the next tokens",
            "A network that sees the tokens up to a place is asked for one of these: it copies, its loss falls to 0, and it predicts nothing.",
            "give tokens[:, :-1] as input and tokens[:, 1:] as labels",
            "loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())",
            "loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())",
        ),
        _rule(
            "BH818",
            "one-score",
            "error",
            "Cross-entropy over one score",
            "The softmax of a single score is 1 and its loss 0, whatever the label is: nothing is learned.",
            "two outputs, or one output with binary_cross_entropy_with_logits",
            "head = nn.Linear(64, 1)\nloss = F.cross_entropy(head(h), y)",
            "head = nn.Linear(64, 1)\nloss = F.binary_cross_entropy_with_logits(head(h).squeeze(1), y.float())",
        ),
        _rule(
            "BH819",
            "batch-changed",
            "error",
            "A network changes its batch",
            "What is given is changed in place. Where it is a view of the data set, each epoch changes it again; elsewhere the caller goes on with other values.",
            "compute a new tensor: x = x / 255 instead of x /= 255",
            "def forward(self, x):\n    x /= 255\n    return self.body(x)",
            "def forward(self, x):\n    return self.body(x / 255)",
        ),
        _rule(
            "BH820",
            "scaled-otherwise",
            "error",
            "Evaluated rows are scaled otherwise",
            "Train and evaluated rows differ in mean or deviation by several times in most columns: one side was not scaled, or by other statistics.",
            "fit the scaling on train rows and apply the same to all sides",
            "x_train = scaler.fit_transform(x_train)\nscore(model, x_test)",
            "x_train = scaler.fit_transform(x_train)\nscore(model, scaler.transform(x_test))",
        ),
        _rule(
            "BH821",
            "copy-is-itself",
            "error",
            "A copy is the network itself",
            "Weights are copied from a network into itself: the target, teacher or average that should lag behind is the same object, and moves with every step.",
            "make it with copy.deepcopy(network)",
            "target = online\ntarget.load_state_dict(online.state_dict())",
            "target = copy.deepcopy(online)\ntarget.load_state_dict(online.state_dict())",
        ),
        _rule(
            "BH822",
            "same-order-each-epoch",
            "error",
            "Every epoch has the same order",
            "A generator that is seeded anew for each epoch shuffles the rows the same way every time: batches never mix otherwise.",
            "make the loader, or its generator, once before the epochs",
            "for epoch in range(9):\n    loader = DataLoader(rows, 32, shuffle=True, generator=torch.Generator().manual_seed(0))",
            "loader = DataLoader(rows, 32, shuffle=True, generator=torch.Generator().manual_seed(0))\nfor epoch in range(9):\n    run(loader)",
        ),
        _rule(
            "BH823",
            "mean-of-uneven-means",
            "warning",
            "Means over unequal numbers of labels count alike",
            "The batches of a window hold unequal numbers of labels, and each adds the mean of its own: labels of short batches weigh more, so the gradient is not that of one large batch.",
            "add up losses (reduction='sum') and divide by the labels of the whole window",
            "for x, y in window:\n    (F.cross_entropy(model(x), y, ignore_index=0) / len(window)).backward()",
            "labels = sum((y != 0).sum() for _, y in window)\nfor x, y in window:\n    (F.cross_entropy(model(x), y, ignore_index=0, reduction='sum') / labels).backward()",
        ),
        _rule(
            "BH824",
            "ranks-drift-apart",
            "error",
            "Ranks hold different weights",
            "After the same step the weights differ between ranks: gradients are not exchanged, or ranks began with other weights. What is saved is the network of one rank, trained on its share alone.",
            "call the wrapped network (not network.module), keep the backward before the step out of no_sync, wrap before the optimizer is made",
            "net = make()\nddp = DistributedDataParallel(net)\nloss = loss_of(net(x))",
            "ddp = DistributedDataParallel(make())\nloss = loss_of(ddp(x))",
        ),
    )
}
