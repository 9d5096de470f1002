"""A user's training program run under watch: what its steps, networks, losses and loaders really do, told as findings.

record      findings, the places of the program they belong to, and who listens
patches     where torch is listened to
forwards    every call of a network: modes, what it changes, what it makes
gradients   optimizers, backward passes, clipping and scaling
losses      what loss functions are given
loaders     how batches are drawn
rows        which rows were trained on and evaluated, and how they are scaled
networks    whether rows mix, and whether a sequence sees its future
schedules   learning rates
kept        graphs and weights that are kept
rules       the mistakes that only a run shows
main        the process that runs the program
"""
