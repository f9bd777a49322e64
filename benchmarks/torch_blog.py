"""The founding experiment in plain PyTorch: the opponent of `table.py`. One run a call.

    pip install torch
    python benchmarks/torch_blog.py lag rope 10000 0        task scheme argument seed [steps]
                                                            [--compile] [--microbatch=16]

Prints accuracy at 32, 64 and 128 tokens, past position 32 at 128, with scores scaled by
log 128 / log 32, and seconds. At its fastest on a machine with N cores it is N calls side by side
with OMP_NUM_THREADS=1, or one call with all threads, compiled or not: `table.py` tries all four.
"""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, TRAIN, LONGEST, IGNORE = 64, 32, 128, -100


def sinusoids(length):
    angle = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    table = torch.empty(length, WIDTH)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


def rotate(x, base):
    angle = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    cos, sin, a, b = angle.cos(), angle.sin(), x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, scheme, argument):
        super().__init__()
        self.scheme, self.argument, self.scale = scheme, argument, 1.0
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        length = x.shape[1]
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        if self.scheme == 'rope':
            q, k = rotate(q, self.argument), rotate(k, self.argument)
        score = self.scale * q @ k.transpose(1, 2) / math.sqrt(WIDTH)
        if self.scheme == 'alibi':
            distance = torch.arange(length)[:, None] - torch.arange(length)
            score = score - self.argument * distance.clamp(min=0)
        score = score.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        x = x + self.out(score.softmax(-1) @ v)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, scheme, argument, vocab, classes):
        super().__init__()
        self.scheme, self.token = scheme, nn.Embedding(vocab, WIDTH)
        self.position = nn.Embedding(LONGEST, WIDTH) if scheme == 'learned' else None
        self.blocks = nn.ModuleList(Block(scheme, argument) for _ in range(2))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, tokens):
        x, length = self.token(tokens), tokens.shape[1]
        if self.scheme == 'sinusoidal':
            x = x + sinusoids(length)
        if self.scheme == 'learned':
            x = x + self.position(torch.arange(length))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sample(task, count, length, generator):
    if task == 'lag':
        tokens = torch.randint(16, (count, length), generator=generator)
        target = torch.full_like(tokens, IGNORE)
        target[:, 3:] = tokens[:, :-3]
        return tokens, target
    tokens = torch.randint(96, (count, length), generator=generator)
    return tokens, (tokens[:, :, None] == tokens[:, None]).tril(-1).any(-1).long()


def accuracy(model, task, length, seed, start=0):
    tokens, target = sample(task, 256, length, torch.Generator().manual_seed(10**6 + seed))
    with torch.no_grad():
        right = model(tokens).argmax(-1) == target
    scored = target != IGNORE
    scored[:, :start] = False
    return right[scored].float().mean().item()


def main(task, scheme, argument, seed, steps, compiled, microbatch):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    vocab, classes = (16, 16) if task == 'lag' else (96, 2)
    model = Transformer(scheme, argument, vocab, classes)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    forward = torch.compile(model) if compiled else model
    start = time.time()
    for _ in range(steps):
        tokens, target = sample(task, 64, TRAIN, generator)
        optimizer.zero_grad()
        for part, answers in zip(tokens.split(microbatch), target.split(microbatch), strict=True):
            # Every sequence scores equally many positions, so means of parts are a mean of all.
            loss = F.cross_entropy(
                forward(part).flatten(0, 1), answers.flatten(), ignore_index=IGNORE
            )
            (loss * microbatch / 64).backward()
        optimizer.step()
    seconds = time.time() - start
    at = [accuracy(model, task, n, seed) for n in (32, 64, 128)]
    past = accuracy(model, task, LONGEST, seed, start=TRAIN)
    for block in model.blocks:
        block.scale = math.log(LONGEST) / math.log(TRAIN)
    scaled = accuracy(model, task, LONGEST, seed)
    print(
        f'{task} {scheme}:{argument:g} seed {seed}: {at[0]:.3f} / {at[1]:.3f} / {at[2]:.3f}; '
        f'past {past:.3f}; scaled {scaled:.3f}; {seconds:.1f} s for {steps} steps',
        flush=True,
    )


if __name__ == '__main__':
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('task', choices=('lag', 'seen'))
    options.add_argument('scheme')
    options.add_argument('argument', type=float)
    options.add_argument('seed', type=int)
    options.add_argument('steps', type=int, nargs='?', default=2000)
    options.add_argument('--compile', action='store_true', dest='compiled')
    options.add_argument('--microbatch', type=int, default=64, help='sequences at a time')
    main(**vars(options.parse_args()))
