"""A student learns from a frozen teacher."""

import torch
import torch.nn.functional as F


def distill(student, teacher, loader, optimizer, scheduler, temperature=4.0, alpha=0.7, epochs=10):
    teacher.eval()
    teacher.requires_grad_(False)
    history = []
    for _ in range(epochs):
        student.train()
        running, seen = 0.0, 0
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            soft = F.kl_div(
                F.log_softmax(student_logits / temperature, dim=-1),
                F.softmax(teacher_logits / temperature, dim=-1),
                reduction="batchmean",
            )
            loss = alpha * temperature**2 * soft + (1 - alpha) * F.cross_entropy(student_logits, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(y)
            seen += len(y)
        scheduler.step()
        history.append(running / seen)
    return history
