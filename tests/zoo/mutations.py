"""Mistakes planted in the programs of `scripts/` and `sound/`: the program, the rule that must name
it, and what is replaced by what.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ZOO = Path(__file__).resolve().parent


class Mutation(NamedTuple):
    """One mistake; `old` occurs in the program exactly once."""

    program: str
    rule: str
    old: str
    new: str

    @property
    def text(self) -> str:
        """The program with the mistake in it."""
        sound = (ZOO / f"{self.program}.py").read_text()
        if sound.count(self.old) != 1:
            raise ValueError(f"{self.program}: {self.old!r} occurs {sound.count(self.old)} times")
        return sound.replace(self.old, self.new)


DECODER, IMAGES, TEXT = "scripts/pretrain_decoder", "scripts/train_images", "scripts/finetune_text"
FROZEN, TABULAR, TRAINER = "sound/frozen_backbone", "sound/tabular", "sound/trainer_class"

MUTATIONS = (
    # ---------------------------------------------------------------- the script of a decoder
    Mutation(DECODER, "BH101", "    optimizer.zero_grad(set_to_none=True)\n", ""),
    Mutation(
        DECODER,
        "BH102",
        "    if LARGEST_NORM:\n        scaler.unscale_(optimizer)",
        "    optimizer.zero_grad(set_to_none=True)\n    if LARGEST_NORM:\n       "
        " scaler.unscale_(optimizer)",
    ),
    Mutation(DECODER, "BH107", "    scaler.update()\n", "    scaler.update\n"),
    Mutation(DECODER, "BH131", "        scaler.unscale_(optimizer)\n", ""),
    Mutation(DECODER, "BH132", "    scaler.update()\n", ""),
    Mutation(
        DECODER, "BH133", "    scaler.step(optimizer)\n", "    optimizer.step()\n    _ = scaler\n"
    ),
    Mutation(
        DECODER,
        "BH106",
        "    if LARGEST_NORM:\n        scaler.unscale_(optimizer)\n       "
        " nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)\n    scaler.step(optimizer)\n "
        "   scaler.update()\n",
        "    scaler.step(optimizer)\n    scaler.update()\n   "
        " nn.utils.clip_grad_norm_(model.parameters(), LARGEST_NORM)\n",
    ),
    Mutation(DECODER, "BH203", "    network.train()\n", ""),
    Mutation(
        DECODER,
        "BH401",
        "self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))",
        "self.layers = [Layer(shape) for _ in range(shape.layers)]",
    ),
    Mutation(
        DECODER,
        "BH402",
        "        wide = F.silu(wide)\n",
        "        wide = nn.Linear(wide.size(-1), wide.size(-1))(F.silu(wide))\n",
    ),
    Mutation(
        DECODER,
        "BH403",
        "        return self.drop(self.down(wide))",
        "        return F.dropout(self.down(wide), 0.05)",
    ),
    Mutation(
        DECODER, "BH404", "dropout_p=self.drop if self.training else 0.0", "dropout_p=self.drop"
    ),
    Mutation(
        DECODER, "BH405", "        wide = self.up(x)\n", "        wide = self.up(x).detach()\n"
    ),
    Mutation(
        DECODER,
        "BH301",
        "                scores = model(tokens)\n",
        "                scores = model(tokens).softmax(dim=-1)\n",
    ),
    Mutation(
        DECODER,
        "BH411",
        "asked = self.asks(x).view(per_head).transpose(1, 2)",
        "asked = x.view(length, rows, width)",
    ),
    Mutation(DECODER, "BH414", "-math.inf), dim=-1)", "-math.inf))"),
    Mutation(
        DECODER,
        "BH602",
        "                scores = model(tokens)\n",
        "                scores = model.module(tokens)\n",
    ),
    Mutation(
        DECODER,
        "BH603",
        "    if chief and step % EVALUATE_EVERY == 0:",
        "    if step % EVALUATE_EVERY == 0:",
    ),
    Mutation(DECODER, "BH701", "torch.amp.GradScaler(kind, ", "torch.cuda.amp.GradScaler("),
    Mutation(DECODER, "BH406", "        wide = F.silu(wide)\n", "        F.silu(wide)\n"),
    Mutation(
        DECODER,
        "BH703",
        "torch.load(LAST, map_location=device)",
        "torch.load(LAST, map_location=device, weights_only=False)",
    ),
    # ---------------------------------------------------------------- the script of photographs
    Mutation(IMAGES, "BH101", "        optimizer.zero_grad()\n", ""),
    Mutation(
        IMAGES,
        "BH102",
        "        optimizer.zero_grad()\n        cost.backward()\n",
        "        cost.backward()\n        optimizer.zero_grad()\n",
    ),
    Mutation(
        IMAGES,
        "BH103",
        "        cost.backward()\n        optimizer.step()\n",
        "        optimizer.step()\n        cost.backward()\n",
    ),
    Mutation(IMAGES, "BH104", "        cost.backward()\n", ""),
    Mutation(IMAGES, "BH107", "        cost.backward()\n", "        cost.backward\n"),
    Mutation(
        IMAGES,
        "BH111",
        "        learn(model, train_loader,",
        "        scheduler.step()\n        learn(model, train_loader,",
    ),
    Mutation(IMAGES, "BH112", "        scheduler.step()\n", ""),
    Mutation(IMAGES, "BH201", "    model.eval()\n", ""),
    Mutation(IMAGES, "BH202", "        with torch.inference_mode():\n", "        if True:\n"),
    Mutation(IMAGES, "BH203", "    model.train()\n", ""),
    Mutation(
        IMAGES,
        "BH308",
        "        costs.add(cost.item(), len(species))\n",
        "        costs.add(cost, len(species))\n",
    ),
    Mutation(IMAGES, "BH512", "            train_share.set_epoch(epoch)\n", "            pass\n"),
    Mutation(IMAGES, "BH511", "shuffle=train_share is None", "shuffle=True"),
    Mutation(IMAGES, "BH513", "shuffle=train_share is None, sampler=train_share", "shuffle=True"),
    Mutation(
        IMAGES,
        "BH601",
        " DistributedDataParallel(model, device_ids=[place])",
        " nn.DataParallel(model)",
    ),
    Mutation(IMAGES, "BH603", "        if place == 0:\n", "        if True:\n"),
    Mutation(
        IMAGES,
        "BH604",
        "            train_share.set_epoch(epoch)\n",
        "            train_share.set_epoch(epoch)\n        if place == 0:\n           "
        " dist.barrier()\n",
    ),
    Mutation(
        IMAGES,
        "BH702",
        '    torch.save(state, folder / "last.pt")\n',
        '    torch.save(state, folder / "last.pt")\n\n\ndef export(model):\n    torch.save(model,'
        ' "whole.pt")\n\n\ndef _copy(folder, better):\n',
    ),
    Mutation(
        IMAGES,
        "BH415",
        "    scheduler = MultiStepLR(",
        "    model.fc = nn.Linear(512, 10)\n    scheduler = MultiStepLR(",
    ),
    Mutation(
        IMAGES,
        "BH306",
        "        cost = criterion(scores, species)\n",
        "        cost = criterion(species, scores)\n",
    ),
    Mutation(IMAGES, "BH516", "cudnn.benchmark = False", "cudnn.benchmark = True"),
    Mutation(
        IMAGES, "BH124", "        cost.backward()\n", "        cost.backward(retain_graph=True)\n"
    ),
    # ---------------------------------------------------------------- the loop with accelerate
    Mutation(TEXT, "BH101", "                optimizer.zero_grad()\n", ""),
    Mutation(
        TEXT,
        "BH111",
        "                optimizer.step()\n                schedule.step()\n",
        "                schedule.step()\n                optimizer.step()\n",
    ),
    Mutation(TEXT, "BH112", "                schedule.step()\n", ""),
    Mutation(TEXT, "BH201", "        model.eval()\n", ""),
    Mutation(TEXT, "BH202", "            with torch.inference_mode():\n", "            if True:\n"),
    Mutation(TEXT, "BH308", "summed += loss.detach()", "summed += loss"),
    Mutation(
        TEXT,
        "BH106",
        "                    accelerator.clip_grad_norm_(model.parameters(), 0.5)\n               "
        " optimizer.step()\n",
        "                    pass\n                optimizer.step()\n               "
        " accelerator.clip_grad_norm_(model.parameters(), 0.5)\n",
    ),
    Mutation(TEXT, "BH104", "                accelerator.backward(loss)\n", ""),
    # ---------------------------------------------------------------- smaller programs
    Mutation(
        FROZEN,
        "BH407",
        "        for p in self.backbone.parameters():\n            p.requires_grad = False\n",
        "        self.backbone.requires_grad = False\n",
    ),
    Mutation(
        FROZEN,
        "BH206",
        "        if correct / total > best:",
        "        test_acc = accuracy(model, test_loader)\n        if test_acc > best:\n           "
        " best = test_acc\n        if correct / total > best:",
    ),
    Mutation(
        FROZEN,
        "BH113",
        "            optimizer.step()\n        scheduler.step()\n",
        "            optimizer.step()\n            scheduler.step()\n",
    ),
    Mutation(TABULAR, "BH207", "copy.deepcopy(model.state_dict())", "model.state_dict()"),
    Mutation(TABULAR, "BH115", "scheduler.step(auc)", "scheduler.step()"),
    Mutation(
        TABULAR,
        "BH302",
        "            loss = criterion(logits, y)",
        "            loss = criterion(torch.sigmoid(logits), y)",
    ),
    Mutation(
        TABULAR, "BH502", "prepare.transform(X_test)]", "StandardScaler().fit_transform(X_test)]"
    ),
    Mutation(
        TABULAR,
        "BH501",
        '    y = LabelEncoder().fit_transform(df["outcome"])\n',
        '    y = LabelEncoder().fit_transform(df["outcome"])\n    df[["age"]] ='
        ' StandardScaler().fit_transform(df[["age"]])\n',
    ),
    Mutation(TABULAR, "BH515", "torch.manual_seed(SEED)\n", ""),
    Mutation(
        TABULAR,
        "BH506",
        '    y = LabelEncoder().fit_transform(df["outcome"])\n',
        '    y = LabelEncoder().fit_transform(df["outcome"])\n    df ='
        ' df.drop(columns=["patient_id"])\n',
    ),
    Mutation(TABULAR, "BH517", "batch_size=256, shuffle=True", "batch_size=1, shuffle=True"),
    Mutation(TRAINER, "BH132", "        self.scaler.update()\n", ""),
    Mutation(
        TRAINER,
        "BH133",
        "        self.scaler.unscale_(self.optimizer)\n       "
        " nn.utils.clip_grad_norm_(self.network.parameters(), 2.0)\n       "
        " self.scaler.step(self.optimizer)\n",
        "        self.optimizer.step()\n",
    ),
    Mutation(TRAINER, "BH201", "        self.network.eval()\n", ""),
    Mutation(TRAINER, "BH203", "        self.network.train()\n", ""),
    Mutation(TRAINER, "BH512", "        self.days.sampler.set_epoch(number)\n", ""),
    Mutation(
        TRAINER,
        "BH603",
        "                if self.rank == 0:\n                    self.write",
        "                if True:\n                    self.write",
    ),
    Mutation(TRAINER, "BH605", "        dist.all_reduce(degrees_and_rows)\n", ""),
    Mutation(
        TRAINER,
        "BH602",
        "self.cost(self.network(weeks), tomorrow)",
        "self.cost(self.network.module(weeks), tomorrow)",
    ),
    Mutation("sound/gan", "BH101", "            generator_steps.zero_grad()\n", ""),
    Mutation(
        "sound/multi_loss",
        "BH121",
        "loss = weights[name] * loss_fn(outputs[name], targets[name]) / accumulate",
        "loss = loss_fn(outputs[name], targets[name])",
    ),
    Mutation(
        "sound/multi_loss",
        "BH122",
        "        if (i + 1) % accumulate == 0 or i + 1 == num_batches:",
        "        if (i + 1) % accumulate == 0:",
    ),
    Mutation(
        "sound/distillation",
        "BH305",
        "F.log_softmax(answer / heat, dim=1)",
        "F.softmax(answer / heat, dim=1)",
    ),
    Mutation(
        "sound/weight_tying", "BH303", "F.log_softmax(chances, dim=1)", "F.softmax(chances, dim=1)"
    ),
    Mutation(
        "sound/ema",
        "BH207",
        "{name: value.detach().clone() for name, value in slow.network.state_dict().items()}",
        "network.state_dict()",
    ),
    Mutation(
        "sound/diffusion",
        "BH114",
        "            rate.step()\n            optimizer.zero_grad()\n            summed +="
        " cost.detach()\n",
        "            optimizer.zero_grad()\n            summed += cost.detach()\n       "
        " rate.step()\n",
    ),
    Mutation(
        "sound/kfold",
        "BH123",
        "        for _ in range(epochs):\n            model.train()\n",
        "        for epoch in range(epochs):\n            optimizer ="
        " torch.optim.Adam(model.parameters(), lr=1e-3)\n            model.train()\n",
    ),
    Mutation(
        "sound/attention_shapes",
        "BH412",
        "        seen = seen.transpose(0, 1).reshape(count, -1)\n",
        "        seen = readings.transpose(0, 1).reshape(readings.shape[0], -1)\n",
    ),
    Mutation(
        "sound/attention_shapes", "BH413", "nearness.softmax(dim=-1)", "nearness.softmax(dim=0)"
    ),
    Mutation(
        "sound/attention_shapes",
        "BH408",
        'self.register_buffer("depth", torch.linspace(0, 1, layers))',
        "self.depth = torch.linspace(0, 1, layers)",
    ),
    Mutation(
        "sound/vae",
        "BH309",
        "        loss.backward()\n",
        "        loss = torch.tensor(loss.item(), requires_grad=True)\n        loss.backward()\n",
    ),
    # ---------------------------------------------------------------- a second round, in the
    # programs' own words
    Mutation("sound/vae", "BH101", "        optimizer.zero_grad()\n", ""),
    Mutation("sound/vae", "BH201", "        vae.eval()\n", ""),
    Mutation("sound/vae", "BH203", "        vae.train()\n", ""),
    Mutation("sound/vae", "BH308", "summed += loss.item()", "summed += loss"),
    Mutation("sound/gan_retained", "BH101", "            judge.zero_grad()\n", ""),
    Mutation("sound/gan_retained", "BH308", "judged.append(both.item())", "judged.append(both)"),
    Mutation(
        "sound/gan",
        "BH103",
        "            critic_loss.backward()\n            critic_steps.step()\n",
        "            critic_steps.step()\n            critic_loss.backward()\n",
    ),
    Mutation("sound/dqn", "BH101", "        self.steps.zero_grad()\n", ""),
    Mutation(
        "sound/dqn",
        "BH106",
        "        nn.utils.clip_grad_norm_(self.worth.parameters(), 5.0)\n       "
        " self.steps.step()\n",
        "        self.steps.step()\n        nn.utils.clip_grad_norm_(self.worth.parameters(),"
        " 5.0)\n",
    ),
    Mutation("sound/policy_gradient", "BH101", "        optimizer.zero_grad()\n", ""),
    Mutation("sound/policy_gradient", "BH104", "        loss.backward()\n", ""),
    Mutation("sound/weight_tying", "BH201", "    melody.eval()\n", ""),
    Mutation("sound/weight_tying", "BH202", "@torch.inference_mode()\n", ""),
    Mutation("sound/weight_tying", "BH203", "    melody.train()\n", ""),
    Mutation(
        "sound/weight_tying",
        "BH417",
        "        with torch.no_grad():\n            for weight in melody.parameters():\n           "
        "     weight -= rate * weight.grad",
        "        if True:\n            for weight in melody.parameters():\n                weight"
        " -= rate * weight.grad",
    ),
    Mutation("sound/seq2seq", "BH101", "            writer_steps.zero_grad()\n", ""),
    Mutation(TRAINER, "BH101", "        self.optimizer.zero_grad()\n", ""),
    Mutation(TRAINER, "BH131", "        self.scaler.unscale_(self.optimizer)\n", ""),
    Mutation(TRAINER, "BH202", "    @torch.inference_mode()\n", ""),
    Mutation("sound/soft_actor_critic", "BH101", "        self.judge_steps.zero_grad()\n", ""),
    Mutation("sound/diffusion", "BH101", "            optimizer.zero_grad()\n", ""),
    Mutation(
        "sound/diffusion",
        "BH102",
        "            optimizer.step()\n            rate.step()\n           "
        " optimizer.zero_grad()\n",
        "            optimizer.zero_grad()\n            optimizer.step()\n           "
        " rate.step()\n",
    ),
    Mutation(
        "sound/diffusion",
        "BH111",
        "            optimizer.step()\n            rate.step()\n",
        "            rate.step()\n            optimizer.step()\n",
    ),
    Mutation(
        "sound/distillation", "BH101", "            optimizer.zero_grad(set_to_none=True)\n", ""
    ),
    Mutation("sound/ema", "BH202", "@torch.inference_mode()\n", ""),
    Mutation(
        "sound/adversarial", "BH203", "    network.train()\n    return (spec", "    return (spec"
    ),
    Mutation(
        "sound/physics",
        "BH309",
        "    loss.backward()\n",
        "    loss = torch.tensor(loss.item(), requires_grad=True)\n    loss.backward()\n",
    ),
    Mutation(
        "sound/vq_and_stop",
        "BH407",
        "copy.deepcopy(network).requires_grad_(False)",
        "copy.deepcopy(network)\n        self.twin.requires_grad = False",
    ),
    Mutation(
        "sound/rank_zero_validation",
        "BH604",
        "        dist.barrier()\n",
        "            dist.barrier()\n",
    ),
    Mutation(DECODER, "BH201", "    network.eval()\n    losses", "    losses"),
    Mutation(DECODER, "BH202", "@torch.no_grad()\ndef held", "def held"),
    Mutation(
        DECODER,
        "BH121",
        "                    / micro_batches\n",
        "",
    ),
    Mutation(
        DECODER,
        "BH604",
        "        held_out = held_out_loss(network)\n",
        "        held_out = held_out_loss(network)\n        dist.barrier()\n",
    ),
    Mutation(
        IMAGES,
        "BH301",
        "        cost = criterion(scores, species)\n",
        "        cost = criterion(scores.softmax(dim=1), species)\n",
    ),
    Mutation(
        IMAGES,
        "BH602",
        "        scores = model(photographs)\n",
        "        scores = model.module(photographs)\n",
    ),
    Mutation(
        TEXT,
        "BH102",
        "                optimizer.step()\n                schedule.step()\n               "
        " optimizer.zero_grad()\n",
        "                optimizer.zero_grad()\n                optimizer.step()\n               "
        " schedule.step()\n",
    ),
    Mutation(TEXT, "BH203", "        model.train()\n", ""),
    Mutation(TEXT, "BH113", "num_training_steps=steps", "num_training_steps=args.passes"),
)
