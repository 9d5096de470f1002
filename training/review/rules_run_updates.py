"""Rules BH837: to BH843, BH870 and BH873 to BH876: mistakes in layers, optimizers, classes and wrappers that only a run shows."""

from __future__ import annotations

from training.review.findings import Severity

OF_UPDATES: tuple[tuple[str, str, Severity, str, str, str, str, str], ...] = (
    (
        "BH837",
        "dropout-on-scores",
        "warning",
        "Scores are dropped out",
        "Dropout after the last layer sets scores to 0 at random and scales up the others: the loss asks the network to be right about scores that it cannot set, "
        "and what is learned fits other scores than those of eval mode.",
        "drop out features before the last layer",
        "return self.drop(self.head(h))",
        "return self.head(self.drop(h))",
    ),
    (
        "BH838",
        "nothing-between-layers",
        "warning",
        "Nothing stands between two layers",
        "A layer is given the result of another of its kind as it is. Two linear maps are one linear map: the network is less deep than it looks, and pays for both.",
        "put an activation between them, or use one layer; a bottleneck of low rank is no finding",
        "h = self.second(self.first(x))",
        "h = self.second(F.relu(self.first(x)))",
    ),
    (
        "BH839",
        "decay-erases-weights",
        "error",
        "Decay erases the weights",
        "Rate times weight decay is the share of each weight that every step takes away. At 1 % and more hardly a third is left after a hundred steps of what was learned "
        "before, and weights that the gradient does not hold up go to 0.",
        "start at weight_decay=0.01 with AdamW, 1e-4 with SGD",
        "optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=60)",
        "optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)",
    ),
    (
        "BH840",
        "betas-swapped",
        "error",
        "Betas stand in the wrong order",
        "The first is of the mean of gradients, the second of their squares. Swapped, steps follow the mean of a thousand batches, divided by the size of the last ten: "
        "they grow without bound where gradients become small.",
        "betas=(0.9, 0.999)",
        "optimizer = Adam(model.parameters(), betas=(0.999, 0.9))",
        "optimizer = Adam(model.parameters(), betas=(0.9, 0.999))",
    ),
    (
        "BH841",
        "nothing-is-learned",
        "error",
        "Steps change next to nothing",
        "The whole run moves the weights by less than 1e-5 of their size, or clips gradients to nothing beside the eps of Adam: what is evaluated is the network as it was made.",
        "look at the power of ten of the rate, and at the norm that gradients are clipped to (1.0 is usual)",
        "nn.utils.clip_grad_norm_(model.parameters(), 1e-9)\noptimizer.step()",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()",
    ),
    (
        "BH842",
        "frequent-class-weighs-most",
        "error",
        "The most frequent class weighs most",
        "Weights of classes have the order of the frequencies that they are to make up for: the loss ignores rare classes more than it did without weights.",
        "weight by the inverse: labels / (classes × labels of the class); pos_weight is negatives / positives",
        "counts = torch.bincount(y).float()\nloss = F.cross_entropy(scores, y, weight=counts / counts.sum())",
        "counts = torch.bincount(y).float()\nloss = F.cross_entropy(scores, y, weight=counts.sum() / (len(counts) * counts))",
    ),
    (
        "BH843",
        "added-after-wrapping",
        "error",
        "A part is put into a network that is already wrapped",
        "DistributedDataParallel averages the gradients of those parameters that it finds when it is made. What is put in later gets the gradients of its own rank alone: "
        "ranks come to hold different weights, and a part of the network is trained on a part of the rows.",
        "build the whole network first, then wrap it; wrap it anew after a change",
        "net = DistributedDataParallel(Net())\nnet.module.head = nn.Linear(64, classes)",
        "core = Net()\ncore.head = nn.Linear(64, classes)\nnet = DistributedDataParallel(core)",
    ),
    (
        "BH873",
        "classes-exclude-each-other",
        "warning",
        "Rows have several labels, and the loss picks one",
        "Softmax shares one unit of probability among all classes: where a row has three labels none of them can be certain, and where it has none the loss is 0 whatever is said. "
        "Thresholds on such scores mean nothing.",
        "one decision a label: `F.binary_cross_entropy_with_logits(scores, labels)`",
        "loss = F.cross_entropy(scores, labels)  # labels [rows, tags] of 0 and 1",
        "loss = F.binary_cross_entropy_with_logits(scores, labels)",
    ),
    (
        "BH874",
        "order-not-told",
        "warning",
        "A transformer is not told in which order its tokens stand",
        "Attention sees a set: without something that tells places apart 'dog bites man' and 'man bites dog' get the very same score.",
        "add positions to the embeddings: `self.embed(x) + self.places[:, : x.shape[1]]`; where rows are sets of tokens, as baskets, no finding",
        "h = self.encoder(self.embed(x))",
        "h = self.encoder(self.embed(x) + self.places[:, : x.shape[1]])",
    ),
    (
        "BH875",
        "decay-of-vectors-alone",
        "warning",
        "Biases decay, and matrices do not",
        "Weight decay keeps matrices small; biases and the scales of norms are left out of it as a rule. With the groups the wrong way round it does nothing that it is for, "
        "and pulls every norm towards 0.",
        "decay what has two axes or more: `[p for p in net.parameters() if p.ndim > 1]`",
        'groups = [{"params": vectors, "weight_decay": 0.05}, {"params": matrices, "weight_decay": 0.0}]',
        'groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]',
    ),
    (
        "BH876",
        "inputs-are-large",
        "warning",
        "The network is given numbers of hundreds and thousands",
        "Layers are initialised for inputs about as large as 1. Pixels of 0 to 255, or columns in their own units, make the first scores and gradients hundreds of times too large; "
        "training starts with repairing that, if it does.",
        "scale with statistics of the train rows: `(x - mean) / std`, pixels by 1 / 255 first",
        "x = image.float()",
        "x = (image.float() / 255 - mean) / std",
    ),
    (
        "BH870",
        "short-batch-counts-as-a-full-one",
        "warning",
        "A short last batch counts as much as a full one",
        "The mean of a score over batches is that over rows only where all batches are equal. Here the last one is much shorter: its rows weigh several times what others do, "
        "and the score changes with the batch size.",
        "add up over rows and divide by their number: `right += (scores.argmax(1) == y).sum()`, `total += loss.item() * len(y)`",
        "for x, y in val_loader:\n    total += (net(x).argmax(1) == y).float().mean().item()\nprint(total / len(val_loader))",
        "for x, y in val_loader:\n    right += (net(x).argmax(1) == y).sum().item()\nprint(right / len(val_loader.dataset))",
    ),
)
