"""Mistakes planted in the programs of `scripts/` and `sound/`: the program, the rule that must name it, and what is replaced by what."""

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


GPT, IMAGES, TEXT = "scripts/pretrain_gpt", "scripts/train_images", "scripts/finetune_text"
FROZEN, TABULAR, TRAINER = "sound/frozen_backbone", "sound/tabular", "sound/trainer_class"

MUTATIONS = (
    # ---------------------------------------------------------------- the script of a small GPT
    Mutation(GPT, "BH101", "    optimizer.zero_grad(set_to_none=True)\n", ""),
    Mutation(
        GPT,
        "BH102",
        "    if grad_clip != 0.0:\n        scaler.unscale_(optimizer)",
        "    optimizer.zero_grad(set_to_none=True)\n    if grad_clip != 0.0:\n        scaler.unscale_(optimizer)",
    ),
    Mutation(GPT, "BH107", "    scaler.update()\n    optimizer", "    scaler.update\n    optimizer"),
    Mutation(GPT, "BH131", "        scaler.unscale_(optimizer)\n", ""),
    Mutation(GPT, "BH132", "    scaler.update()\n", ""),
    Mutation(GPT, "BH133", "    scaler.step(optimizer)\n", "    optimizer.step()\n    _ = scaler\n"),
    Mutation(
        GPT,
        "BH106",
        "    if grad_clip != 0.0:\n        scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n    scaler.step(optimizer)\n    scaler.update()\n",
        "    scaler.step(optimizer)\n    scaler.update()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n",
    ),
    Mutation(GPT, "BH203", "    model.train()\n    return out", "    return out"),
    Mutation(GPT, "BH401", "self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])", "self.h = [Block(config) for _ in range(config.n_layer)]"),
    Mutation(GPT, "BH402", "        x = F.gelu(x)\n", "        x = nn.Linear(x.size(-1), x.size(-1))(F.gelu(x))\n"),
    Mutation(GPT, "BH403", "        x = self.c_proj(x)\n        return self.dropout(x)", "        x = self.c_proj(x)\n        return F.dropout(x, 0.1)"),
    Mutation(GPT, "BH404", "dropout_p=self.dropout if self.training else 0", "dropout_p=self.dropout"),
    Mutation(GPT, "BH405", "        x = self.c_fc(x)\n", "        x = self.c_fc(x).detach()\n"),
    Mutation(
        GPT,
        "BH301",
        "loss = F.cross_entropy(logits.view(-1, logits.size(-1))",
        "probs = F.softmax(logits, dim=-1)\n        loss = F.cross_entropy(probs.view(-1, logits.size(-1))",
    ),
    Mutation(GPT, "BH411", "k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)", "k = x.view(T, B, C)"),
    Mutation(GPT, "BH414", "F.softmax(logits, dim=-1)", "F.softmax(logits)"),
    Mutation(
        GPT,
        "BH602",
        "            logits, loss = model(X, Y)\n            loss = loss / ",
        "            logits, loss = model.module(X, Y)\n            loss = loss / ",
    ),
    Mutation(GPT, "BH603", "    if iter_num % eval_interval == 0 and master_process:", "    if iter_num % eval_interval == 0:"),
    Mutation(GPT, "BH701", "torch.amp.GradScaler(device_type, ", "torch.cuda.amp.GradScaler("),
    Mutation(GPT, "BH406", "        x = F.gelu(x)\n", "        F.gelu(x)\n"),
    Mutation(GPT, "BH703", "map_location=device)\n    config", "map_location=device, weights_only=False)\n    config"),
    # ---------------------------------------------------------------- the script of image folders
    Mutation(IMAGES, "BH101", "        optimizer.zero_grad()\n", ""),
    Mutation(
        IMAGES, "BH102", "        loss.backward()\n        optimizer.step()", "        loss.backward()\n        optimizer.zero_grad()\n        optimizer.step()"
    ),
    Mutation(IMAGES, "BH103", "        loss.backward()\n        optimizer.step()\n", "        optimizer.step()\n        loss.backward()\n"),
    Mutation(IMAGES, "BH104", "        loss.backward()\n", ""),
    Mutation(IMAGES, "BH107", "        loss.backward()\n", "        loss.backward\n"),
    Mutation(IMAGES, "BH111", "        train(train_loader, model, criterion,", "        scheduler.step()\n        train(train_loader, model, criterion,"),
    Mutation(IMAGES, "BH112", "        scheduler.step()\n", ""),
    Mutation(IMAGES, "BH201", "    model.eval()\n", ""),
    Mutation(IMAGES, "BH202", "        with torch.no_grad():\n            end = time.time()", "        if True:\n            end = time.time()"),
    Mutation(IMAGES, "BH203", "    model.train()\n    end", "    end"),
    Mutation(
        IMAGES,
        "BH308",
        "        losses.update(loss.item(), images.size(0))\n        top1.update(acc1[0], images.size(0))\n        optimizer",
        "        losses.update(loss, images.size(0))\n        top1.update(acc1[0], images.size(0))\n        optimizer",
    ),
    Mutation(IMAGES, "BH512", "            train_sampler.set_epoch(epoch)\n", "            pass\n"),
    Mutation(IMAGES, "BH511", "shuffle=(train_sampler is None)", "shuffle=True"),
    Mutation(
        IMAGES,
        "BH513",
        "shuffle=(train_sampler is None), num_workers=args.workers, pin_memory=True, sampler=train_sampler",
        "shuffle=True, num_workers=args.workers",
    ),
    Mutation(IMAGES, "BH601", "torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu])", "torch.nn.DataParallel(model)"),
    Mutation(IMAGES, "BH603", "        if not args.distributed or args.rank % ngpus_per_node == 0:\n", "        if True:\n"),
    Mutation(
        IMAGES,
        "BH604",
        "            train_sampler.set_epoch(epoch)\n",
        "            train_sampler.set_epoch(epoch)\n        if args.rank == 0:\n            dist.barrier()\n",
    ),
    Mutation(
        IMAGES,
        "BH702",
        "    torch.save(state, filename)\n",
        "    torch.save(state, filename)\n\n\ndef export(model):\n    torch.save(model, 'whole.pt')\n\n\ndef _copy(is_best, filename):\n",
    ),
    Mutation(IMAGES, "BH415", "    scheduler = StepLR(", "    model.fc = nn.Linear(512, 10)\n    scheduler = StepLR("),
    Mutation(
        IMAGES,
        "BH306",
        "        loss = criterion(output, target)\n        acc1, _ = accuracy(output, target, topk=(1, 5))\n        losses",
        "        loss = criterion(target, output)\n        acc1, _ = accuracy(output, target, topk=(1, 5))\n        losses",
    ),
    Mutation(IMAGES, "BH516", "cudnn.benchmark = False", "cudnn.benchmark = True"),
    Mutation(IMAGES, "BH124", "        loss.backward()\n", "        loss.backward(retain_graph=True)\n"),
    # ---------------------------------------------------------------- the loop with accelerate
    Mutation(TEXT, "BH101", "                optimizer.zero_grad()\n", ""),
    Mutation(
        TEXT,
        "BH111",
        "                optimizer.step()\n                lr_scheduler.step()\n",
        "                lr_scheduler.step()\n                optimizer.step()\n",
    ),
    Mutation(TEXT, "BH112", "                lr_scheduler.step()\n", ""),
    Mutation(TEXT, "BH201", "        model.eval()\n", ""),
    Mutation(TEXT, "BH202", "            with torch.no_grad():\n                outputs", "            if True:\n                outputs"),
    Mutation(TEXT, "BH308", "total_loss += loss.detach().float()", "total_loss += loss"),
    Mutation(
        TEXT,
        "BH106",
        "                    accelerator.clip_grad_norm_(model.parameters(), 1.0)\n                optimizer.step()\n",
        "                    pass\n                optimizer.step()\n                accelerator.clip_grad_norm_(model.parameters(), 1.0)\n",
    ),
    Mutation(TEXT, "BH104", "                accelerator.backward(loss)\n", ""),
    # ---------------------------------------------------------------- smaller programs
    Mutation(
        FROZEN, "BH407", "        for p in self.backbone.parameters():\n            p.requires_grad = False\n", "        self.backbone.requires_grad = False\n"
    ),
    Mutation(
        FROZEN,
        "BH206",
        "        if correct / total > best:",
        "        test_acc = accuracy(model, test_loader)\n        if test_acc > best:\n            best = test_acc\n        if correct / total > best:",
    ),
    Mutation(FROZEN, "BH113", "            optimizer.step()\n        scheduler.step()\n", "            optimizer.step()\n            scheduler.step()\n"),
    Mutation(TABULAR, "BH207", "copy.deepcopy(model.state_dict())", "model.state_dict()"),
    Mutation(TABULAR, "BH115", "scheduler.step(auc)", "scheduler.step()"),
    Mutation(TABULAR, "BH302", "            loss = criterion(logits, y)", "            loss = criterion(torch.sigmoid(logits), y)"),
    Mutation(TABULAR, "BH502", "prepare.transform(X_test)]", "StandardScaler().fit_transform(X_test)]"),
    Mutation(
        TABULAR,
        "BH501",
        '    y = LabelEncoder().fit_transform(df["outcome"])\n',
        '    y = LabelEncoder().fit_transform(df["outcome"])\n    df[["age"]] = StandardScaler().fit_transform(df[["age"]])\n',
    ),
    Mutation(TABULAR, "BH515", "torch.manual_seed(SEED)\n", ""),
    Mutation(
        TABULAR,
        "BH506",
        '    y = LabelEncoder().fit_transform(df["outcome"])\n',
        '    y = LabelEncoder().fit_transform(df["outcome"])\n    df = df.drop(columns=["patient_id"])\n',
    ),
    Mutation(TABULAR, "BH517", "batch_size=256, shuffle=True", "batch_size=1, shuffle=True"),
    Mutation(TRAINER, "BH132", "        self.scaler.update()\n", ""),
    Mutation(
        TRAINER,
        "BH133",
        "        self.scaler.unscale_(self.optimizer)\n        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n        self.scaler.step(self.optimizer)\n",
        "        self.optimizer.step()\n",
    ),
    Mutation(TRAINER, "BH201", "        self.model.eval()\n", ""),
    Mutation(TRAINER, "BH203", "        self.model.train()\n", ""),
    Mutation(TRAINER, "BH512", "        self.train_data.sampler.set_epoch(epoch)\n", ""),
    Mutation(
        TRAINER,
        "BH603",
        "                if self.global_rank == 0:\n                    self._save",
        "                if True:\n                    self._save",
    ),
    Mutation(TRAINER, "BH605", "        dist.all_reduce(total)\n", ""),
    Mutation(TRAINER, "BH602", "            output = self.model(source)\n            loss", "            output = self.model.module(source)\n            loss"),
    Mutation("sound/gan", "BH101", "            opt_g.zero_grad()\n", ""),
    Mutation(
        "sound/multi_loss",
        "BH121",
        "loss = weights[name] * loss_fn(outputs[name], targets[name]) / accumulate",
        "loss = loss_fn(outputs[name], targets[name])",
    ),
    Mutation("sound/multi_loss", "BH122", "        if (i + 1) % accumulate == 0 or i + 1 == num_batches:", "        if (i + 1) % accumulate == 0:"),
    Mutation("sound/distillation", "BH305", "F.log_softmax(student_logits / temperature, dim=-1)", "F.softmax(student_logits / temperature, dim=-1)"),
    Mutation("sound/weight_tying", "BH303", "        return F.log_softmax(decoded, dim=1), hidden", "        return F.softmax(decoded, dim=1), hidden"),
    Mutation("sound/ema", "BH207", "{k: v.detach().clone() for k, v in ema.module.state_dict().items()}", "model.state_dict()"),
    Mutation(
        "sound/diffusion",
        "BH114",
        "            lr_scheduler.step()\n            optimizer.zero_grad()\n            if step % 100 == 0:\n                print(step, loss.item(), lr_scheduler.get_last_lr())\n",
        "            optimizer.zero_grad()\n        lr_scheduler.step()\n",
    ),
    Mutation(
        "sound/kfold",
        "BH123",
        "        for _ in range(epochs):\n            model.train()\n",
        "        for epoch in range(epochs):\n            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)\n            model.train()\n",
    ),
    Mutation(
        "sound/attention_shapes", "BH412", "        y = y.transpose(0, 1).reshape(batch, -1)\n", "        y = x.transpose(0, 1).reshape(x.shape[0], -1)\n"
    ),
    Mutation("sound/attention_shapes", "BH413", ".softmax(dim=-1))", ".softmax(dim=0))"),
    Mutation(
        "sound/attention_shapes",
        "BH408",
        '        self.register_buffer("positions", torch.arange(layers))\n\n    def forward(self, states):\n',
        "        self.offset = torch.zeros(layers)\n\n    def forward(self, states):\n        states = states + self.offset\n",
    ),
    Mutation(
        "sound/vae",
        "BH309",
        "            loss.backward()\n",
        "            loss = torch.tensor(loss.item(), requires_grad=True)\n            loss.backward()\n",
    ),
)
