"""Rules BH844 to BH855: mistakes in what networks are given, asked for and measured on, that only a run shows."""

from __future__ import annotations

from training.review.findings import Severity

OF_DATA: tuple[tuple[str, str, Severity, str, str, str, str, str], ...] = (
    (
        "BH844",
        "untrained-copy-evaluated",
        "error",
        "A network that learned nothing is evaluated",
        "What is evaluated is a network of the class that was trained, with the weights of its start: no optimizer steps it, no state is loaded, no average updated. "
        "The one that was trained is never asked for these rows.",
        "evaluate the trained network, call the update of its average after each step, or load the weights that were kept",
        "average = copy.deepcopy(model)\ntrain(model)\nevaluate(average)",
        "average = AveragedModel(model)\ntrain(model, after_each_step=average.update_parameters)\nevaluate(average)",
    ),
    (
        "BH845",
        "norm-statistics-of-start",
        "error",
        "A batch norm is evaluated with statistics that are not those of its network",
        "In eval mode a batch norm divides by its running statistics. Where they are still mean 0 and variance 1, or those of an earlier network whose average this one is, "
        "features are on another scale than in training.",
        "copy buffers as well as parameters into an average, or call update_bn before the evaluation; leave momentum at 0.1",
        "for mine, theirs in zip(average.parameters(), model.parameters()):\n    mine.lerp_(theirs, 0.1)",
        "for mine, theirs in zip(average.parameters(), model.parameters()):\n    mine.lerp_(theirs, 0.1)\n"
        "for mine, theirs in zip(average.buffers(), model.buffers()):\n    mine.copy_(theirs)",
    ),
    (
        "BH846",
        "inputs-barely-differ",
        "error",
        "Inputs barely differ",
        "All values lie close to one number beside their size, or fractions were cut to whole numbers: constants of another scale (those of 0 to 255 for pixels of 0 to 1), or a cast. "
        "The network sees an offset, and hardly the rows.",
        "take mean and deviation from the train rows as they are given, and cast to float before anything is divided",
        "x = (pixels / 255 - 123.0) / 58.0",
        "x = (pixels / 255 - 0.48) / 0.23",
    ),
    (
        "BH847",
        "scores-start-large",
        "warning",
        "Scores start far too large",
        "Before anything is learned the cross-entropy is many times that of guessing: weights are made too large, the last layer shares those of an embedding with "
        "deviation 1, or inputs are not scaled. The first steps are lost on it, and layers may saturate for good.",
        "initialise with a deviation of about 1 / sqrt(inputs of the layer) (0.02 for tied embeddings), and scale inputs",
        "nn.init.normal_(head.weight, std=2.0)",
        "nn.init.normal_(head.weight, std=0.02)",
    ),
    (
        "BH848",
        "rate-rises-to-the-end",
        "error",
        "The rate rises to the end",
        "Most is moved at the end, where a network should come to rest: the rate drops after the warm-up and follows half a cosine upwards, as its sign is wrong; or a cosine is stepped "
        "past its end, where it climbs back.",
        "(1 + cos(pi * share)) / 2 falls from 1 to 0; `T_max` is the number of steps that the schedule makes in the whole run",
        "return 0.5 * (1 - math.cos(math.pi * share))",
        "return 0.5 * (1 + math.cos(math.pi * share))",
    ),
    (
        "BH849",
        "labels-outside-0-1",
        "error",
        "Labels of a loss of yes and no are outside 0 to 1",
        "Binary cross-entropy is made for labels of 0 and 1. With −1 or 2 it has no lower bound: scores grow without end, and other rows count little beside.",
        "map labels to 0 and 1 ((y + 1) / 2), and leave rows without a label out",
        "F.binary_cross_entropy_with_logits(scores, torch.where(sick, 1.0, -1.0))",
        "F.binary_cross_entropy_with_logits(scores, torch.where(sick, 1.0, 0.0))",
    ),
    (
        "BH850",
        "class-ignored",
        "warning",
        "ignore_index is a class that occurs",
        "Rows and tokens of that class are left out of the loss. The network is never told of it, and evaluations count it as any other.",
        "fill with a number that is no class (-100, the default), or leave ignore_index out",
        "loss = F.cross_entropy(scores, labels, ignore_index=0)",
        "loss = F.cross_entropy(scores, labels)",
    ),
    (
        "BH851",
        "loss-rows-transposed",
        "error",
        "Scores and labels are made flat in different orders",
        "One of them has the batch first, the other the places of the sequence. Made flat, the numbers of rows agree, and nearly each score meets the label of another place.",
        "bring both to [batch, places, …] before view or flatten",
        "loss = F.cross_entropy(scores.transpose(0, 1).reshape(-1, vocab), labels.reshape(-1))",
        "loss = F.cross_entropy(scores.reshape(-1, vocab), labels.reshape(-1))",
    ),
    (
        "BH852",
        "balanced-twice",
        "warning",
        "Classes are balanced twice",
        "A sampler draws rare rows more often, and the loss weighs the same rows more as well. Together they make the rare class the one that counts most, and probabilities are far off.",
        "keep one of the two: the sampler, or weight and pos_weight",
        "loader = DataLoader(rows, sampler=WeightedRandomSampler(1 / counts[y], len(y)))\ncriterion = nn.BCEWithLogitsLoss(pos_weight=negatives / positives)",
        "loader = DataLoader(rows, shuffle=True)\ncriterion = nn.BCEWithLogitsLoss(pos_weight=negatives / positives)",
    ),
    (
        "BH853",
        "evaluation-drawn-with-replacement",
        "error",
        "An evaluation draws its rows with replacement",
        "Some held-out rows count several times, a third and more of them not at all, and by weights the classes have other shares than in use. Scores change from call to call.",
        "evaluate every row once: no sampler, shuffle=False",
        "held_out = DataLoader(rows, sampler=WeightedRandomSampler(weights, len(rows)))",
        "held_out = DataLoader(rows, batch_size=256)",
    ),
    (
        "BH854",
        "embedding-of-one-row",
        "warning",
        "One row of an embedding is ever used",
        "All that is looked up is one number: a column of codes that was overwritten, clamped or multiplied by 0. The network is given a constant instead of what tells rows apart.",
        "look at the codes before the embedding, and at the column that they come from",
        "h = self.site(codes[:, 0] * 0)",
        "h = self.site(codes[:, 0])",
    ),
    (
        "BH855",
        "counts-lost",
        "error",
        "Places that come twice are counted once",
        "table[rows, columns] += 1 reads all places, adds, and writes them back: a place that comes five times is one higher, not five. So is index_put_ without accumulate.",
        "index_put_(…, accumulate=True), scatter_add_, bincount, or torchmetrics",
        "table[labels, predicted] += 1",
        "table.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)",
    ),
)
